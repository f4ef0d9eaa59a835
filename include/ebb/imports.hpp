#pragma once
/// History that comes in from the engine's memory: room for it, its pages, its rows, its publication.

#include <ebb/copy_queue.hpp>
#include <ebb/loan_allocator.hpp>

#include <string>
#include <vector>

namespace ebb {

/// Rows that come in: row i at `rows + i · row_stride`, in-row bytes then page-end bytes; stride 0: packed.
struct import_rows {
  std::byte const* rows;
  std::int64_t row_stride = 0;
};
/// Where an engine writes one reserved page of one source itself; either may be null. Bytes follow `page_layout` of the
/// source.
struct import_page {
  page_index page;
  std::byte* host;
  std::byte* frame;
};

/// Imports under way, at most one a request. Part of `residency`, which has checked handles and order. Host only, one
/// control thread.
template <policy P, space S>
class imports {
 public:
  imports(S const& space, geometry<P> const& geometry, arenas<P, S> const& rows, loan_allocator<P>& allocator,
          copy_queue<P, S>& copies, int requests)
      : space_{space},
        geometry_{geometry},
        rows_{rows},
        allocator_{allocator},
        copies_{copies},
        under_way_(static_cast<std::size_t>(requests)) {}

  /// The ticket after which nobody else writes to, or reads, the reserved pages.
  ticket reserve(request_record& r, std::int64_t tokens) {
    allocator_.reserve(r, tokens);
    of(r) = {};
    of(r).sources.resize(static_cast<std::size_t>(geometry_.sources()));
    // Steps may still write scratch into the page that is partly there.
    ticket ready = r.tokens % P::page_tokens != 0 ? book().main : ticket::none;
    for (int p = first(r); p < static_cast<int>(r.pages.size()); ++p) {
      page_record const& page = book().page(r, p);
      if (book().has_frame(r, p)) ready = std::max(ready, book().frames[page.at.frame].after);
      ready = std::max({ready, book().hosts.after(page.at.host), page.busy});
    }
    return ready;
  }
  std::vector<import_page> pages(request_record& r, int source) {
    of(r).sources[static_cast<std::size_t>(source)] = true;
    allocator_.expose(r);
    source_view const& v = rows_.view(source);
    std::vector<import_page> out;
    for (int p = first(r); p < static_cast<int>(r.pages.size()); ++p) {
      page_record const& page = book().page(r, p);
      out.push_back({page_index{p},
                     page.to_host ? v.host + std::int64_t{index(page.at.host)} * v.host_layout.stride : nullptr,
                     book().has_frame(r, p) ? v.base + std::int64_t{index(page.at.frame)} * v.layout.stride : nullptr});
    }
    return out;
  }
  ticket copy(request_record& r, int source, std::byte const* rows, std::int64_t stride) {
    under_way& in = of(r);
    in.sources[static_cast<std::size_t>(source)] = true;
    std::erase_if(in.failed, [&](failure const& f) { return f.source == source; });
    int const ratio = geometry_.ratio(source);
    std::int64_t const base = r.tokens / ratio;
    std::vector<page_import> pages;
    for (int p = first(r); p < static_cast<int>(r.pages.size()); ++p) {
      std::int64_t const start = std::int64_t{p} * P::page_tokens;
      std::int64_t const from = std::max(r.tokens, start) / ratio;
      std::int64_t const to = std::min(r.reserved, start + P::page_tokens) / ratio;
      if (from >= to) continue;
      if (space_.refuses_copy(copy_kind::import, r.id.slot, p)) {
        in.failed.push_back({p, source});
        book().refused_copy(copy_kind::import, r, p);
        continue;
      }
      page_record const& page = book().page(r, p);
      pages.push_back({index(page.at.frame), page.to_host ? index(page.at.host) : -1,
                       static_cast<std::int32_t>(from - start / ratio), static_cast<std::int32_t>(to - from),
                       from - base});
    }
    ticket const t = copies_.import(source, rows, stride, pages);
    if (t == ticket::none) return t;
    for (int p = first(r); p < static_cast<int>(r.pages.size()); ++p) book().touch(book().page(r, p), t);
    in.last = t;
    return t;
  }
  /// Throws: see `residency::publish`.
  void check_publish(request_record const& r, std::int64_t tokens) const {
    under_way const& in = under_way_[static_cast<std::size_t>(r.id.slot)];
    for (int s = 0; s < geometry_.sources(); ++s) {
      bool const none = tokens / geometry_.ratio(s) == r.tokens / geometry_.ratio(s);
      require(none || geometry_.is_drafters(s) || in.sources[static_cast<std::size_t>(s)], "publish: source",
              index(geometry_.id_of_source(s)), "one whose rows were imported");
    }
    if (!in.failed.empty()) {
      throw std::runtime_error("publish: page " + std::to_string(in.failed.front().page) + " of the request in slot " +
                               std::to_string(r.id.slot) + " was not imported: its copy was refused");
    }
  }
  void publish(request_record& r, std::int64_t tokens) {
    int const from = first(r);
    // The drafter's rows are there where they came along, unless it was behind; a windowed one's never come.
    bool whole = P::draft.layers == 0;
    for (int s = 0; s < geometry_.sources(); ++s)
      whole &= !geometry_.is_drafters(s) || of(r).sources[static_cast<std::size_t>(s)] != 0;
    r.draft_from = !whole ? tokens : r.drafted < r.tokens ? r.tokens : r.draft_from;
    allocator_.set_tokens(r, tokens);
    book().wait_main(of(r).last);
    for (int p = from; p < book().pages_of(tokens); ++p) {
      page_record& page = book().page(r, p);
      if (page.to_host) page.backed = page.backing = book().tokens_in(r, p);
      if (book().has_frame(r, p)) {
        book().wait_main(page.busy);
        book().land(r, p);
      }
      ++book().counts.imported;
    }
    of(r) = {};
    allocator_.published(r);
  }

 private:
  struct failure {
    int page, source;
  };
  struct under_way {
    ticket last = ticket::none;
    std::vector<char> sources;  ///< whose rows were asked for
    std::vector<failure> failed;
  };
  under_way& of(request_record const& r) { return under_way_[static_cast<std::size_t>(r.id.slot)]; }
  ledger& book() { return allocator_.book(); }
  static int first(request_record const& r) { return static_cast<int>(r.tokens / P::page_tokens); }

  S space_;
  geometry<P> const& geometry_;
  arenas<P, S> const& rows_;
  loan_allocator<P>& allocator_;
  copy_queue<P, S>& copies_;
  std::vector<under_way> under_way_;  ///< of each slot
};

}  // namespace ebb

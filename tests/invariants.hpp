#pragma once
// What must hold of an instance after every call: recomputed from the ledger's records, compared with the reference model.

#include <ebb/residency.hpp>

#include <concepts>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "reference_model.hpp"

namespace ebb::testing {

/// Something that must hold does not.
struct fault : std::logic_error {
  using std::logic_error::logic_error;
};
/// A piece of a message.
struct word {
  word(char const* s) : text{s} {}
  word(std::string s) : text{std::move(s)} {}
  word(std::integral auto n) : text{std::to_string(n)} {}
  std::string text;
};
inline std::string sentence(std::initializer_list<word> words) {
  std::string out;
  for (word const& w : words) out += w.text;
  return out;
}
[[noreturn]] inline void fail_with(std::initializer_list<word> words) { throw fault{sentence(words)}; }
template <class... Words>
[[noreturn, gnu::noinline, gnu::cold]] void fail(Words const&... words) {
  fail_with({words...});
}

/// Audits of one instance. Frames and host pages that are free are filled with poison, which must stay until they are used again.
template <policy P, class Residency>
class auditor {
 public:
  auditor(Residency const& kv, reference_model const& model)
      : kv_{kv},
        model_{model},
        poisoned_frames_(static_cast<std::size_t>(model.shape.frames)),
        poisoned_hosts_(static_cast<std::size_t>(model.shape.host_pages)) {
    for (int s = 0; s < sources(); ++s) views_.push_back(kv.view(static_cast<source_id>(s)));
  }

  std::vector<source_view> const& views() const { return views_; }

  /// I7, and the claims of I1: each frame and host page in one place, all counts as recounted, every committed row somewhere.
  /// `collected`: frames that the engine has in hand; `uncollected`: frames of takes under way.
  void books(std::vector<frame_id> const& collected, std::int64_t uncollected) {
    ledger const& book = kv_.allocator().book();
    model_shape const& shape = model_.shape;
    owner_.assign(static_cast<std::size_t>(shape.frames), 0);
    host_owner_.assign(static_cast<std::size_t>(shape.host_pages), 0);
    auto const claim = [&](frame_id f, char const* what, int slot) {
      if (index(f) < 0 || index(f) >= shape.frames)
        fail("I7: frame ", index(f), " of slot ", slot, " (", what, ") is out of range");
      if (owner_[static_cast<std::size_t>(index(f))]++ != 0)
        fail("I7: frame ", index(f), " is in two places, one is ", what, " of slot ", slot);
    };
    int marked = 0;
    std::int64_t reserve = 0;
    int hosts = 0;
    std::size_t vacant = 0;
    for (request_record const& r : book.requests()) {
      if (r.phase == phase::vacant) {
        ++vacant;
        if (!r.pages.empty() || !r.hot.empty() || !r.idle.empty())
          fail("I7: vacant slot ", r.id.slot, " holds something");
        continue;
      }
      model_request const* m = find(r.id);
      if (m == nullptr) fail("I7: slot ", r.id.slot, " is not vacant, but its request is gone");
      std::int64_t const reserved = m->importing() ? m->reserved : m->certain;
      if (r.tokens != m->certain || r.pending != m->pending || r.reserved != reserved ||
          r.tokens_max != m->tokens_max) {
        fail("slot ", r.id.slot, ": tokens ", r.tokens, "+", r.pending, "/", r.reserved, "/", r.tokens_max, ", model ",
             m->certain, "+", m->pending, "/", reserved, "/", m->tokens_max);
      }
      if (m->pending > 0 && m->importing()) fail("slot ", r.id.slot, " imports behind a length that is not known");
      if ((r.phase == phase::preempted) != m->preempted)
        fail("slot ", r.id.slot, ": preempted ", m->preempted, " in the model only");
      if (r.reserve != m->reserve)
        fail("I7: slot ", r.id.slot, " is promised ", r.reserve, " frames, model ", m->reserve);
      reserve += r.reserve;
      int framed = 0, lent = 0, missing = 0, required = 0;
      for (int p = 0; p < static_cast<int>(r.pages.size()); ++p) {
        page_record const& page = r.pages[static_cast<std::size_t>(p)];
        int const host = index(page.at.host);
        if (host < 0 || host >= shape.host_pages || !book.hosts.is_used(host))
          fail("I7: page ", p, " of slot ", r.id.slot, " has no host page in use: ", host);
        if (host_owner_[static_cast<std::size_t>(host)]++ != 0)
          fail("I7: host page ", host, " is in two places, one is page ", p, " of slot ", r.id.slot);
        ++hosts;
        missing += !page.mapped;
        std::int64_t const tokens =
            std::clamp<std::int64_t>(m->tokens - std::int64_t{p} * shape.page_tokens, 0, shape.page_tokens);
        if (!page.mapped && page.backed < tokens) {
          fail("I1: page ", p, " of slot ", r.id.slot, " is not in the map and only ", page.backed, " of ", tokens,
               " tokens are in the host store");
        }
        if (page.at.frame == frame_id::none) {
          if (page.mapped) fail("I1: page ", p, " of slot ", r.id.slot, " is mapped without a frame");
          continue;
        }
        claim(page.at.frame, "a page", r.id.slot);
        frame_record const& f = book.frames[page.at.frame];
        if (f.slot != r.id.slot || f.page != p)
          fail("I7: frame ", index(page.at.frame), " says slot ", f.slot, " page ", f.page, ", it keeps slot ",
               r.id.slot, " page ", p);
        ++framed;
        switch (f.state) {
          case frame_state::required:
            ++required;
            break;
          case frame_state::lent:
            ++lent;
            break;
          case frame_state::filling:
            break;
          case frame_state::revoking:
            ++marked;
            break;
          default:
            fail("I7: frame ", index(page.at.frame), " keeps page ", p, " of slot ", r.id.slot, " in state ",
                 static_cast<int>(f.state));
        }
      }
      for (auto const* list : {&r.hot, &r.idle}) {
        for (frame_id f : *list) {
          claim(f, list == &r.hot ? "hot rows" : "idle", r.id.slot);
          if (book.frames[f].state != frame_state::required || book.frames[f].slot != r.id.slot) {
            fail("I7: frame ", index(f), " of slot ", r.id.slot, " is in state ",
                 static_cast<int>(book.frames[f].state), " of slot ", book.frames[f].slot);
          }
          ++required;
        }
      }
      if (framed != r.framed || lent != r.lent || missing != r.missing) {
        fail("I7: slot ", r.id.slot, " counts framed ", r.framed, " lent ", r.lent, " missing ", r.missing,
             "; recounted ", framed, " ", lent, " ", missing);
      }
      if (!r.hot.empty() && static_cast<int>(r.hot.size()) != shape.hot_frames())
        fail("slot ", r.id.slot, " has ", r.hot.size(), " hot frames of ", shape.hot_frames());
      if (required > r.reserve)
        fail("I11: slot ", r.id.slot, " requires ", required, " frames and is promised ", r.reserve);
      if (shape.pages(m->tokens) > static_cast<std::int64_t>(r.pages.size()))
        fail("slot ", r.id.slot, " has ", r.pages.size(), " pages for ", m->tokens, " tokens");
    }
    if (vacant + model_.live.size() != book.requests().size())
      fail("I7: ", vacant, " slots are vacant, the model has ", model_.live.size(), " requests");

    for (frame_id f : collected) {
      claim(f, "the engine's", -1);
      if (book.frames[f].state != frame_state::taken)
        fail("I7: frame ", index(f), " of the engine is in state ", static_cast<int>(book.frames[f].state));
    }
    int counts[frame_states] = {};
    for (int i = 0; i < shape.frames; ++i) {
      frame_record const& f = book.frames[frame_id{i}];
      ++counts[static_cast<int>(f.state)];
      bool const nobodys = f.state == frame_state::free || (f.state == frame_state::revoking && f.page < 0);
      if (nobodys && owner_[static_cast<std::size_t>(i)] != 0)
        fail("I7: frame ", i, " is held and in state ", static_cast<int>(f.state));
      if (!nobodys && f.state != frame_state::taken && owner_[static_cast<std::size_t>(i)] == 0) {
        fail("I7: frame ", i, " in state ", static_cast<int>(f.state), " is held by nobody; it says slot ", f.slot,
             " page ", f.page);
      }
    }
    for (int k = 0; k < frame_states; ++k) {
      if (counts[k] != book.frames.count(static_cast<frame_state>(k)))
        fail("I7: ", counts[k], " frames in state ", k, ", counted ", book.frames.count(static_cast<frame_state>(k)));
    }
    if (counts[static_cast<int>(frame_state::revoking)] != marked + book.frames.returning()) {
      fail("I7: ", counts[static_cast<int>(frame_state::revoking)], " frames revoking, of which ", marked,
           " keep pages and ", book.frames.returning(), " return");
    }
    std::int64_t const taken = counts[static_cast<int>(frame_state::taken)];
    if (taken < static_cast<std::int64_t>(collected.size()) ||
        taken > static_cast<std::int64_t>(collected.size()) + uncollected) {
      fail("I7: ", taken, " frames taken, the engine has ", collected.size(), " and waits for ", uncollected);
    }
    std::int64_t const promised = reserve + static_cast<std::int64_t>(collected.size()) + uncollected;
    if (promised != kv_.allocator().promised().frames())
      fail("I7: ", promised, " frames promised, the library says ", kv_.allocator().promised().frames());
    if (promised > shape.frames) fail("I7: ", promised, " of ", shape.frames, " frames are promised");
    int used = 0;
    for (int h = 0; h < shape.host_pages; ++h) {
      if (!book.hosts.is_used(h)) continue;
      ++used;
      if (host_owner_[static_cast<std::size_t>(h)] == 0) fail("I7: host page ", h, " is in use by nobody");
    }
    if (used != hosts || shape.host_pages - used != book.hosts.free())
      fail("I7: ", hosts, " host pages are held, ", used, " in use, ", book.hosts.free(), " free");
  }

  /// I1 and I8 by the bytes of one request. Requires: everything enqueued is done.
  void bytes(model_request const& m) const {
    ledger const& book = kv_.allocator().book();
    request_record const& r = book.at(m.id.slot);
    for (int p = 0; p < static_cast<int>(r.pages.size()); ++p) {
      page_record const& page = r.pages[static_cast<std::size_t>(p)];
      for (int s = 0; s < sources(); ++s) {
        source_view const& v = views_[static_cast<std::size_t>(s)];
        int const rows = model_.shape.rows_per_page(s);
        std::int64_t const first = std::int64_t{p} * rows;
        std::int64_t const committed = std::clamp<std::int64_t>(model_.rows_of(s, m.tokens) - first, 0, rows);
        std::int64_t const backed =
            std::min<std::int64_t>(committed, page.backed / model_.shape.ratios[static_cast<std::size_t>(s)]);
        std::int64_t const in_frame = page.mapped ? committed : 0;
        for (std::int64_t i = 0; i < in_frame; ++i) {
          if (!row_is(v.base, v.layout, std::int64_t{index(page.at.frame)} * rows + i, m.row(s, first + i).seed)) {
            fail("I1: row ", first + i, " of source ", s, ", slot ", m.id.slot, " is wrong in frame ",
                 index(page.at.frame), " (page ", p, ")");
          }
        }
        for (std::int64_t i = 0; i < backed; ++i) {
          if (!row_is(v.host, v.host_layout, std::int64_t{index(page.at.host)} * rows + i, m.row(s, first + i).seed)) {
            fail("I1: row ", first + i, " of source ", s, ", slot ", m.id.slot, " is wrong in host page ",
                 index(page.at.host), " (page ", p, ", backed ", page.backed, ")");
          }
        }
        for (std::int64_t i = committed;
             i < rows && first + i < static_cast<std::int64_t>(m.rows[static_cast<std::size_t>(s)].size()); ++i) {
          model_row const& row = m.row(s, first + i);
          if (row.scratch && row_is(v.host, v.host_layout, std::int64_t{index(page.at.host)} * rows + i, row.seed)) {
            fail("I8: scratch row ", first + i, " of source ", s, ", slot ", m.id.slot, " is in host page ",
                 index(page.at.host));
          }
        }
      }
    }
  }

  /// The map on the device against the ledger. Requires: everything enqueued is done and no map change waits for begin_step.
  void map(model_request const& m) const {
    request_record const& r = kv_.allocator().book().at(m.id.slot);
    for (int p = 0; p < static_cast<int>(r.pages.size()); ++p) {
      page_record const& page = r.pages[static_cast<std::size_t>(p)];
      map_entry const want{page.mapped ? page.at.frame : frame_id::none, page.at.host};
      map_entry const have = kv_.map().at(m.id.slot, p);
      if (have != want) {
        fail("map: page ", p, " of slot ", m.id.slot, " is at frame ", index(have.frame), " host ", index(have.host),
             ", the ledger says ", index(want.frame), " ", index(want.host));
      }
    }
  }

  /// I2: fills what became free, and looks whether what is free was written. `look`: a number that chooses which to look at; −1: all.
  void free_memory(std::int64_t look) {
    ledger const& book = kv_.allocator().book();
    for (int f = 0; f < model_.shape.frames; ++f) {
      bool const free = book.frames[frame_id{f}].state == frame_state::free;
      visit(free, book.frames[frame_id{f}].after, poisoned_frames_[static_cast<std::size_t>(f)],
            look < 0 || look % model_.shape.frames == f, "frame ", f,
            [f](source_view const& v) { return v.base + f * v.layout.stride; });
    }
    for (int h = 0; h < model_.shape.host_pages; ++h) {
      bool const free = !book.hosts.is_used(h) && book.hosts.after(host_page_id{h}) <= book.done;
      visit(free, book.hosts.after(host_page_id{h}), poisoned_hosts_[static_cast<std::size_t>(h)],
            look < 0 || look % model_.shape.host_pages == h, "host page ", h,
            [h](source_view const& v) { return v.host + h * v.host_layout.stride; });
    }
  }

 private:
  static constexpr int sources() { return static_cast<int>(P::ratios.size()); }
  model_request const* find(request_id id) const {
    for (auto const& m : model_.live) {
      if (m.id == id) return &m;
    }
    return nullptr;
  }
  template <class At>
  void visit(bool free, ticket after, std::uint64_t& poisoned, bool look, char const* what, int number, At at) {
    std::uint64_t const now = free ? static_cast<std::uint64_t>(after) + 1 : 0;
    bool const fresh = std::exchange(poisoned, now) != now;
    if (!free || (!fresh && !look)) return;
    for (source_view const& v : views_) {
      auto const bytes = static_cast<std::size_t>(v.host_layout.payload());
      if (fresh) {
        std::memset(at(v), poison, bytes);
      } else if (!is_poison(at(v), v.host_layout.payload())) {
        fail("I2: ", what, number, " is free and was written");
      }
    }
  }

  Residency const& kv_;
  reference_model const& model_;
  std::vector<source_view> views_{};
  std::vector<std::uint64_t> poisoned_frames_,
      poisoned_hosts_;  ///< the ticket after which it was free, plus 1; 0: in use
  std::vector<int> owner_{}, host_owner_{};
};

}  // namespace ebb::testing

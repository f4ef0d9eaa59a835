#pragma once
/// The library under test: an instance whose requests have a long history, resolved through its public calls.

#include <ebb/residency.hpp>

#include <optional>
#include <stdexcept>
#include <utility>

#include "oracle.hpp"
#include "script.hpp"
#include "timing.hpp"

namespace bench {

/// A row that a call fetched: byte offsets from the source's host and GPU bases, in-row segment and page-end segment.
struct fetched_row {
  std::int64_t from, to, from_end, to_end;
};
/// What one call fetched, request by request.
struct fetched_call {
  std::vector<fetched_row> rows;
  std::vector<std::int32_t> positions, addresses;  ///< of each row
  std::vector<int> first;                          ///< row of each request, and the number of all
};

/// One instance of the library. Everything outside `timed` and `timed_swept` is untimed: admission, history, clearing
/// the tables before each pass, warming them, reading back.
template <class P, ebb::space S>
class subject {
  static constexpr ebb::source_id source{0};
  static constexpr int words = P::row.total() / 8;
  static_assert(P::row.in_row % 8 == 0 && P::row.at_page_end % 8 == 0, "the oracle works in words of 8 bytes");

 public:
  /// `store`: host memory for all pages, as `setting.pinned` says; `spoil`: every so manieth row is wrong there.
  subject(timing<S>& clock, setting const& s, std::byte* store, int spoil)
      : space_{clock.space()},
        clock_{clock},
        setting_{s},
        tail_{ebb::tail_pages(P::page_tokens, P::max_queries, 1)},
        committed_{s.history - P::page_tokens},
        kv_{space_,
            {.frames = frames(s),
             .host_pages = s.requests * (s.history / P::page_tokens),
             .requests = s.requests,
             .max_batch = s.requests,
             .max_tokens = s.history,
             .hot_rows = s.hot(),
             .host = s.pinned ? ebb::host_kind::pinned : ebb::host_kind::managed,
             .host_memory = {store, store_bytes(s)}}} {
    results_ = space_.device_memory(sizeof(std::uint64_t));
    bring_history(spoil);
  }

  static std::size_t store_bytes(setting const& s) {
    return static_cast<std::size_t>(s.requests) * static_cast<std::size_t>(s.history / P::page_tokens) *
           static_cast<std::size_t>(ebb::geometry_of<P>::layout(0).stride);
  }
  /// Positions that may be selected: committed and in no page of the tail, so that none is near for nothing.
  int selectable() const { return committed_ - tail_ * P::page_tokens; }
  ebb::source_view const& view() const { return kv_.view(source); }
  std::int64_t addresses() const { return view().staging + std::int64_t{setting_.requests} * staging_slots(); }
  int slot(int request) const { return ids_[static_cast<std::size_t>(request)].slot; }
  ebb::counters counts() const { return kv_.counts(); }
  std::int32_t const* selection(int call) const { return selections_.at(call); }
  std::int32_t* out_memory(int call) const { return outs_.at(call); }

  /// Uploads a script and runs its first part: tables cleared, then filled by the warming calls.
  void warm(script const& s) {
    script_ = &s;
    selections_.fit(space_, s);
    outs_.fit(space_, s);
    copy_in(space_, selections_.memory.get(), s.positions.data(), s.positions.size() * sizeof(std::int32_t));
    if (!setting_.whole) {
      for (int r = 0; r < s.batch; ++r) kv_.truncate(ids_[static_cast<std::size_t>(r)], committed_);
    }
    auto const step = begin();
    for (int c = 0; c < s.warm; ++c) resolve(step, c, c);
    end(step);
  }

  /// The calls of the script, each followed by a look at all rows it returned. Returns: rows that were wrong.
  std::uint64_t checked() {
    space_.zero(clock_.on(), results_.get(), sizeof(std::uint64_t));
    auto const step = begin();
    for (int c = 0; c < script_->calls; ++c) {
      resolve(step, c, script_->warm + c);
      look(script_->warm + c);
    }
    end(step);
    return wrong();
  }
  /// One graph of all calls; microseconds of one. The last call's rows are checked behind it, and added to `wrong`.
  double timed(std::uint64_t& wrong_rows) {
    auto const step = begin();
    if (!graph_ || graph_of_ != script_->calls * 1000 + script_->warm) {
      graph_of_ = script_->calls * 1000 + script_->warm;
      graph_.emplace(clock_.capture(script_->calls, [&](int c) { resolve(step, c, script_->warm + c); }));
    }
    double const us = clock_.launch(*graph_, script_->calls);
    wrong_rows += check_last();
    end(step);
    return us;
  }
  /// Every call alone, behind a sweep.
  double timed_swept(std::uint64_t& wrong_rows) {
    auto const step = begin();
    double const us = clock_.swept(script_->calls, [&](int c) { resolve(step, c, script_->warm + c); });
    wrong_rows += check_last();
    end(step);
    return us;
  }
  /// The next cell has another batch or other shapes.
  void forget_graph() { graph_.reset(); }

  /// What the calls of the checked pass fetched, found from the addresses: a hot slot that holds another row than
  /// before, or a staged one, was fetched.
  std::vector<fetched_call> fetched() {
    script const& s = *script_;
    std::vector<ebb::map_entry> map(static_cast<std::size_t>(setting_.requests) *
                                    static_cast<std::size_t>(kv_.map().pages));
    copy_out(space_, map.data(), kv_.map().entries, map.size() * sizeof(ebb::map_entry));
    std::vector<std::int32_t> addresses(s.positions.size());
    copy_out(space_, addresses.data(), outs_.memory.get(), addresses.size() * sizeof(std::int32_t));
    int const all = s.warm + s.calls;
    std::vector<std::vector<fetched_call>> of(static_cast<std::size_t>(s.batch));
    std::vector<slot_state> slots(static_cast<std::size_t>(this->addresses()));
    parallel_for(s.batch, [&](int r) {
      auto& mine = of[static_cast<std::size_t>(r)];
      mine.resize(static_cast<std::size_t>(s.calls));
      int const per = s.queries * s.k;
      for (int c = 0; c < all; ++c) {
        for (int i = 0; i < per; ++i) {
          std::int64_t const e = std::int64_t{c} * s.entries() + std::int64_t{r} * per + i;
          std::int32_t const a = addresses[static_cast<std::size_t>(e)], p = s.positions[static_cast<std::size_t>(e)];
          if (a < 0 || a >= this->addresses()) continue;
          slot_state& at = slots[static_cast<std::size_t>(a)];
          bool const known = at.position == p && at.request == r && (!view().is_staged(a) || at.call == c);
          at = {r, p, c};
          if (known || c < s.warm || setting_.whole) continue;
          ebb::map_entry const page =
              map[static_cast<std::size_t>(slot(r)) * static_cast<std::size_t>(kv_.map().pages) +
                  static_cast<std::size_t>(p / P::page_tokens)];
          std::int64_t const row = std::int64_t{ebb::index(page.host)} * P::page_tokens + p % P::page_tokens;
          fetched_call& call = mine[static_cast<std::size_t>(c - s.warm)];
          call.rows.push_back({view().host_layout.in_row_offset(row), view().layout.in_row_offset(a),
                               view().host_layout.page_end_offset(row), view().layout.page_end_offset(a)});
          call.positions.push_back(p);
          call.addresses.push_back(a);
        }
      }
    });
    std::vector<fetched_call> out(static_cast<std::size_t>(s.calls));
    for (int c = 0; c < s.calls; ++c) {
      fetched_call& call = out[static_cast<std::size_t>(c)];
      for (int r = 0; r < s.batch; ++r) {
        fetched_call const& mine = of[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)];
        call.first.push_back(static_cast<int>(call.rows.size()));
        auto const append = [](auto& to, auto const& from) { to.insert(to.end(), from.begin(), from.end()); };
        append(call.rows, mine.rows);
        append(call.positions, mine.positions);
        append(call.addresses, mine.addresses);
      }
      call.first.push_back(static_cast<int>(call.rows.size()));
    }
    return out;
  }
  /// Row of the host store where a request's position is.
  std::vector<std::int64_t> host_rows(int request) const {
    std::vector<ebb::map_entry> map(static_cast<std::size_t>(kv_.map().pages));
    copy_out(space_, map.data(), kv_.map().entries + std::int64_t{slot(request)} * kv_.map().pages,
             map.size() * sizeof(ebb::map_entry));
    std::vector<std::int64_t> rows(static_cast<std::size_t>(setting_.history), -1);
    for (int p = 0; p < committed_; ++p)
      rows[static_cast<std::size_t>(p)] =
          std::int64_t{ebb::index(map[static_cast<std::size_t>(p / P::page_tokens)].host)} * P::page_tokens +
          p % P::page_tokens;
    return rows;
  }
  ebb::map_entry const* map() const { return kv_.map().entries; }
  int map_pages() const { return kv_.map().pages; }

  /// Clears every row on the GPU; only the next `warm` makes the instance whole again.
  void poison() {
    space_.zero(clock_.on(), view().base, static_cast<std::size_t>(view().layout.in_row_offset(addresses())));
    finish(space_, clock_.on());
  }
  /// Rows that a call should have fetched and that are not what they must be.
  std::uint64_t check_rows(fetched_call const& call) {
    std::vector<std::int32_t> lists(call.positions);
    lists.insert(lists.end(), call.addresses.begin(), call.addresses.end());
    for (int r = 0; r + 1 < static_cast<int>(call.first.size()); ++r)
      lists.insert(lists.end(),
                   static_cast<std::size_t>(call.first[static_cast<std::size_t>(r) + 1] -
                                            call.first[static_cast<std::size_t>(r)]),
                   r);
    auto const memory = space_.device_memory(lists.size() * sizeof(std::int32_t));
    copy_in(space_, memory.get(), lists.data(), lists.size() * sizeof(std::int32_t));
    auto const* at = reinterpret_cast<std::int32_t const*>(memory.get());
    int const n = static_cast<int>(call.positions.size());
    space_.zero(clock_.on(), results_.get(), sizeof(std::uint64_t));
    check(at, at + n, at + 2 * n, n);
    return wrong();
  }
  /// Rows that the last call of the script returned and that are not what it selected.
  std::uint64_t check_last() {
    space_.zero(clock_.on(), results_.get(), sizeof(std::uint64_t));
    look(script_->warm + script_->calls - 1);
    return wrong();
  }

 private:
  struct slot_state {
    std::int32_t request = -1, position = -1, call = -1;
  };
  /// Device array with room for each call of a script.
  struct calls_array {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes = 0;
    int entries = 0;
    void fit(S const& space, script const& s) {
      entries = s.entries();
      if (std::size_t const wanted = s.positions.size() * sizeof(std::int32_t); wanted > bytes) {
        memory = {};
        memory = space.device_memory(bytes = wanted);
      }
    }
    std::int32_t* at(int call) const {
      return reinterpret_cast<std::int32_t*>(memory.get()) + std::int64_t{call} * entries;
    }
  };

  int staging_slots() const {
    return ebb::staging_slots(ebb::default_staging_rows(P::max_queries, P::top_k, setting_.hot()), P::page_tokens);
  }
  static int frames(setting const& s) {
    int const tail = ebb::tail_pages(P::page_tokens, P::max_queries, 1);
    int const pages = s.history / P::page_tokens;
    return s.requests *
           (s.whole ? pages
                    : ebb::required_frames(s.history, P::page_tokens, tail, ebb::hot_frames(s.hot(), P::page_tokens)));
  }

  void bring_history(int spoil) {
    std::size_t const bytes = static_cast<std::size_t>(committed_) * P::row.total();
    auto const rows = space_.device_memory(bytes);
    for (int r = 0; r < setting_.requests; ++r) {
      auto const id = kv_.admit(setting_.history, setting_.whole ? setting_.history : committed_);
      if (!id) throw std::runtime_error("subject: " + id.error().message());
      ids_.push_back(*id);
    }
    // All are admitted before the first history comes: it would borrow the frames of those to come.
    for (int r = 0; r < setting_.requests; ++r) {
      ebb::request_id const id = ids_[static_cast<std::size_t>(r)];
      space_.run(clock_.on(), (committed_ + fill_body::rows_per_item - 1) / fill_body::rows_per_item,
                 fill_body{reinterpret_cast<std::uint64_t*>(rows.get()), r, committed_, words, spoil});
      finish(space_, clock_.on());
      kv_.reserve_import(id, committed_);
      kv_.wait(kv_.import(id, source, {rows.get()}));
      kv_.publish(id, committed_);
    }
    batch_.assign(ids_.begin(), ids_.end());
    queries_ = 1;
    end(begin());  // maps what was imported, and makes hot rows
    for (int r = 0; r < setting_.requests; ++r) {
      if (kv_.whole(ids_[static_cast<std::size_t>(r)]) != setting_.whole)
        throw std::runtime_error("subject: a request is whole where the setting says it is not, or the other way");
    }
  }

  ebb::step begin() {
    if (script_ != nullptr) {
      batch_.assign(ids_.begin(), ids_.begin() + script_->batch);
      queries_ = script_->queries;
    }
    auto const step = kv_.begin_step(clock_.on(), {.requests = batch_, .queries = queries_});
    kv_.addresses(clock_.on(), step);
    finish(space_, clock_.on());
    return step;
  }
  void resolve(ebb::step const& step, int group, int call) {
    kv_.resolve(clock_.on(), step, ebb::group_id{group}, selections_.at(call), {outs_.at(call)});
  }
  /// Commits nothing: the history stays as long as it is.
  void end(ebb::step const& step) {
    kv_.end_step(clock_.on(), step, std::vector<int>(batch_.size(), 0));
    finish(space_, clock_.on());
  }
  void look(int call) { check(selections_.at(call), outs_.at(call), nullptr, script_->entries()); }
  void check(std::int32_t const* positions, std::int32_t const* addresses_of, std::int32_t const* owners, int n) {
    int const per = script_->queries * script_->k;
    space_.run(clock_.on(), (n + check_body::rows_per_item - 1) / check_body::rows_per_item,
               check_body{view().base, view().layout, addresses(), positions, addresses_of, owners, per, n,
                          reinterpret_cast<std::uint64_t*>(results_.get())});
  }
  std::uint64_t wrong() {
    finish(space_, clock_.on());
    std::uint64_t n = 0;
    copy_out(space_, &n, results_.get(), sizeof n);
    return n;
  }

  S space_;
  timing<S>& clock_;
  setting setting_;
  int tail_;
  int committed_;
  ebb::residency<P, S> kv_;
  std::vector<ebb::request_id> ids_, batch_;
  int queries_ = 1;
  script const* script_ = nullptr;
  calls_array selections_, outs_;
  std::shared_ptr<std::byte> results_;
  std::optional<decltype(std::declval<S const&>().end_capture(std::declval<typename S::stream>()))> graph_;
  int graph_of_ = 0;
};

}  // namespace bench

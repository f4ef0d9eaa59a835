#pragma once
/// An instance whose requests have a long history in every source, and what its calls read and write.

#include <ebb/residency.hpp>

#include <span>
#include <stdexcept>
#include <vector>

#include "../resolver/oracle.hpp"
#include "../resolver/timing.hpp"

namespace bench {

/// A batch is the first `batch` requests with `queries` queries each; `shape` says how many, before anything else.
/// Nothing of positions 0 … selectable − 1 lies in the tail, so that nothing is near for nothing.
template <class P, ebb::space S>
class sessions {
  using geo = ebb::geometry_of<P>;
  static constexpr int words = P::row.total() / 8;
  static constexpr int tail = ebb::tail_pages(P::page_tokens, P::max_queries, 1);

 public:
  static constexpr int groups = geo::groups, sources = geo::sources;

  sessions(timing<S>& clock, int requests, int selectable, int hot)
      : space_{clock.space()},
        clock_{clock},
        requests_{requests},
        committed_{selectable + tail * P::page_tokens},
        kv_{space_,
            {.frames =
                 requests * ebb::required_frames(tokens(), P::page_tokens, tail, ebb::hot_frames(hot, P::page_tokens)),
             .host_pages = requests * (tokens() / P::page_tokens),
             .requests = requests,
             .max_batch = requests,
             .max_tokens = tokens(),
             .hot_rows = hot}},
        staged_{ebb::staging_planes(sources) * requests *
                ebb::staging_slots(ebb::default_staging_rows(P::max_queries, P::top_k, hot), P::page_tokens)} {
    std::size_t const entries = static_cast<std::size_t>(requests) * P::max_queries * P::top_k;
    for (auto& m : selections_) m = words_of(entries);
    for (auto& m : outs_) m = words_of(entries);
    for (auto& m : owners_) m = words_of(entries);
    if constexpr (P::candidate_pool > 0)
      pool_ = words_of(static_cast<std::size_t>(requests) * P::max_queries * P::candidate_pool);
    results_ = space_.device_memory(sizeof(std::uint64_t));
    bring_history();
  }

  void shape(int batch, int queries) {
    batch_.assign(ids_.begin(), ids_.begin() + batch);
    queries_ = queries;
    std::vector<std::int32_t> owners(static_cast<std::size_t>(entries()));
    for (int k = 0; k < sources; ++k) {
      for (int e = 0; e < entries(); ++e)
        owners[static_cast<std::size_t>(e)] = e / (queries * P::top_k) + k * requests_;
      put(owners_[k], owners);
    }
  }
  int entries() const { return static_cast<int>(batch_.size()) * queries_ * P::top_k; }
  /// Empties the tables.
  void clear() {
    for (ebb::request_id id : ids_) kv_.truncate(id, committed_);
  }

  void select(int group, std::span<std::int32_t const> positions) { put(selections_[group], positions); }
  /// `[batch][queries][size]`.
  void announce(std::span<std::int32_t const> positions) {
    put(pool_, positions);
    pool_size_ = static_cast<int>(positions.size()) / (static_cast<int>(batch_.size()) * queries_);
  }

  ebb::step const& begin() {
    step_ = kv_.begin_step(clock_.on(), {.requests = batch_, .queries = queries_});
    return step_;
  }
  void addresses() { kv_.addresses(clock_.on(), step_); }
  void resolve(int group) {
    kv_.resolve(clock_.on(), step_, ebb::group_id{group}, at(selections_[group]), {at(out(group, 0))});
  }
  void replay(int group, int source) {
    kv_.replay(clock_.on(), step_, ebb::group_id{group}, ebb::source_id{source}, {at(out(group, source))});
  }
  void prefetch(int group)
    requires(P::candidate_pool > 0)
  {
    kv_.prefetch(clock_.on(), step_, ebb::group_id{group}, {at(pool_), pool_size_, true});
  }
  void join() { kv_.join(clock_.on(), step_); }
  /// Compares every row that the group's last resolve or replay returned for the source; see `wrong`.
  void check(int group, int source) {
    ebb::source_view const& v = kv_.view(ebb::source_id{source});
    int const n = entries();
    checked_ += static_cast<std::uint64_t>(n);
    space_.run(clock_.on(), (n + check_body::rows_per_item - 1) / check_body::rows_per_item,
               check_body{v.base, v.layout, std::int64_t{v.first_staged} + staged_, at(selections_[group]),
                          at(out(group, source)), at(owners_[source]), queries_ * P::top_k, n,
                          reinterpret_cast<std::uint64_t*>(results_.get())});
  }
  /// Commits nothing: the history stays as long as it is.
  void end() {
    kv_.end_step(clock_.on(), step_, std::vector<int>(batch_.size(), 0));
    finish(space_, clock_.on());
  }
  /// After all work that is enqueued.
  ebb::counters counts() const {
    finish(space_, clock_.on());
    return kv_.counts();
  }
  /// Rows that were wrong and checked so far.
  std::uint64_t wrong() const {
    finish(space_, clock_.on());
    std::uint64_t n = 0;
    copy_out(space_, &n, results_.get(), sizeof n);
    return n;
  }
  std::uint64_t checked() const { return checked_; }
  timing<S>& clock() const { return clock_; }

 private:
  using memory = std::shared_ptr<std::byte>;
  int tokens() const { return committed_ + P::page_tokens; }
  memory words_of(std::size_t n) const { return space_.device_memory(n * sizeof(std::int32_t)); }
  static std::int32_t* at(memory const& m) { return reinterpret_cast<std::int32_t*>(m.get()); }
  memory const& out(int group, int source) const { return outs_[group * sources + source]; }
  void put(memory const& to, std::span<std::int32_t const> from) const {
    copy_in(space_, to.get(), from.data(), from.size_bytes());
  }
  void bring_history() {
    auto const rows = space_.device_memory(static_cast<std::size_t>(committed_) * P::row.total());
    for (int r = 0; r < requests_; ++r) {
      auto const id = kv_.admit(tokens(), committed_);
      if (!id) throw std::runtime_error("sessions: " + id.error().message());
      ids_.push_back(*id);
    }
    for (int r = 0; r < requests_; ++r) {
      ebb::request_id const id = ids_[static_cast<std::size_t>(r)];
      kv_.reserve_import(id, committed_);
      for (int k = 0; k < sources; ++k) {
        space_.run(clock_.on(), (committed_ + fill_body::rows_per_item - 1) / fill_body::rows_per_item,
                   fill_body{reinterpret_cast<std::uint64_t*>(rows.get()), r + k * requests_, committed_, words, 0});
        finish(space_, clock_.on());
        kv_.wait(kv_.import(id, ebb::source_id{k}, {rows.get()}));
      }
      kv_.publish(id, committed_);
    }
    batch_ = ids_;
    begin();  // maps what was imported, and makes hot rows
    end();
    for (ebb::request_id id : ids_) {
      if (kv_.whole(id)) throw std::runtime_error("sessions: a request is whole, nothing would be fetched");
    }
  }

  S space_;
  timing<S>& clock_;
  int requests_;
  int committed_;
  ebb::residency<P, S> kv_;
  std::int64_t staged_;
  std::vector<ebb::request_id> ids_, batch_;
  int queries_ = 1;
  int pool_size_ = 0;
  ebb::step step_{};
  memory selections_[groups], outs_[groups * sources], owners_[sources], pool_, results_;
  std::uint64_t checked_ = 0;
};

}  // namespace bench

#pragma once
// The slow, obvious model of an instance with unlimited memory: who lives, what is committed, what every row must hold, and who may be
// admitted. It never looks into the library for what is right.

#include <ebb/error.hpp>
#include <ebb/ids.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "oracle_rows.hpp"

namespace ebb::testing {

/// The shape that the model works with, in plain numbers.
struct model_shape {
  int page_tokens = 0;
  int max_queries = 0;
  bool caches = false;                     ///< the tiers have a row cache
  std::vector<int> ratios{};               ///< of each source
  std::vector<std::vector<int>> groups{};  ///< sources of each group, ascending
  std::vector<int> set_of_group{};         ///< groups with the same sources have the same number
  int sets = 0;

  int frames = 0, host_pages = 0, requests = 0, max_batch = 0, hot_rows = 0, staging_rows = 0, steps_in_flight = 1;
  int prefetch_rows = 0;  ///< of a request, of one prefetch
  std::int64_t max_tokens = 0;

  std::int64_t pages(std::int64_t tokens) const { return (tokens + page_tokens - 1) / page_tokens; }
  int rows_per_page(int source) const { return page_tokens / ratios[static_cast<std::size_t>(source)]; }
  int hot_frames() const { return caches ? static_cast<int>(pages(hot_rows)) : 0; }
  /// 2 + ⌈(1 + lag) · max_queries / page_tokens⌉, lag = steps_in_flight − 1.
  int tail_pages() const { return 2 + static_cast<int>(pages(std::int64_t{steps_in_flight} * max_queries)); }
  /// The smaller of its whole history and tail + hot rows; without a row cache always the whole.
  std::int64_t required(std::int64_t tokens) const {
    return caches ? std::min<std::int64_t>(pages(tokens), tail_pages() + hot_frames()) : pages(tokens);
  }
  bool is_long(std::int64_t tokens) const { return caches && pages(tokens) > tail_pages() + hot_frames(); }
  /// Row slots of one request's table of hot rows; fewer than 16 make one set.
  int ways(int source) const {
    int const rows = hot_frames() * rows_per_page(source);
    return rows < 16 ? rows : rows / 16 * 16;
  }
  /// Row slots of one request's plane of staging: whole pages of the source with the most rows in one.
  int staging_slots() const {
    int most = 1;
    for (int s = 0; s < static_cast<int>(ratios.size()); ++s) most = std::max(most, rows_per_page(s));
    return (staging_rows + most - 1) / most * most;
  }
};

struct model_row {
  std::uint64_t seed = 0;     ///< what it must hold once it counts
  std::uint32_t version = 0;  ///< how often it was written
  bool scratch = false;       ///< written by a step and never accepted since
};

struct model_request {
  request_id id{};
  std::uint64_t name = 0;  ///< of the incarnation, never used twice
  std::int64_t tokens_max = 0;
  std::int64_t tokens = 0;    ///< committed, as the device has it
  std::int64_t certain = 0;   ///< of these, what the host knows of
  int pending = 0;            ///< tokens that steps with acceptances unknown to the host may have committed
  std::int64_t reserved = 0;  ///< an import has room up to here
  std::int64_t reserve = 0;   ///< frames that it is promised
  bool preempted = false;
  bool pinned = false;                            ///< require_whole
  std::vector<std::vector<model_row>> rows{};     ///< of each source
  std::vector<std::set<std::int32_t>> fetched{};  ///< of each set: rows that may be in the row cache
  std::vector<std::set<std::int32_t>> claimed{};  ///< of each set: rows that calls of the open step may have pinned
  std::vector<std::set<std::int32_t>> present{};  ///< of each set: rows that the open step's next resolve must find
  std::vector<char> arrived{};                    ///< of each source: imported since reserve_import
  std::vector<std::set<int>> refused{};           ///< of each source: pages whose import was refused

  bool importing() const { return reserved > tokens; }
  model_row& row(int source, std::int64_t p) {
    auto& of = rows[static_cast<std::size_t>(source)];
    if (static_cast<std::int64_t>(of.size()) <= p) of.resize(static_cast<std::size_t>(p) + 1);
    return of[static_cast<std::size_t>(p)];
  }
  model_row const& row(int source, std::int64_t p) const {
    return rows[static_cast<std::size_t>(source)].at(static_cast<std::size_t>(p));
  }
  /// The row is written once more; what it holds from then on.
  std::uint64_t write(int source, std::int64_t p, bool scratch) {
    model_row& r = row(source, p);
    r.seed = row_seed(name, source, p, ++r.version);
    r.scratch = scratch;
    return r.seed;
  }
};

/// Who lives and what may be promised.
class reference_model {
 public:
  explicit reference_model(model_shape s) : shape{std::move(s)} {}

  model_shape const shape;
  std::vector<model_request> live{};
  std::map<std::uint64_t, std::int64_t> holds{};  ///< tokens_max of each hold
  std::int64_t taken = 0;                         ///< frames the engine has or waits for

  model_request* find(request_id id) {
    auto const it = std::find_if(live.begin(), live.end(), [&](auto const& r) { return r.id == id; });
    return it == live.end() ? nullptr : &*it;
  }

  std::int64_t promised_frames() const {
    std::int64_t n = taken;
    for (auto const& r : live) n += r.reserve;
    return n;
  }
  std::int64_t held_frames() const {
    std::int64_t n = 0;
    for (auto const& [id, tokens] : holds) n += shape.required(tokens);
    return n;
  }
  std::int64_t promised_hosts() const {
    std::int64_t n = 0;
    for (auto const& r : live) n += shape.pages(r.tokens_max);
    return n;
  }
  std::int64_t held_hosts() const {
    std::int64_t n = 0;
    for (auto const& [id, tokens] : holds) n += shape.pages(tokens);
    return n;
  }

  /// What a step accepted, until the host knows it.
  struct acceptance {
    struct one {
      request_id id;
      int queries;
      int tokens;
    };
    std::uint64_t step;
    ticket at;
    std::vector<one> of;
  };
  std::deque<acceptance> unknown{};
  bool is_unknown(request_id id) const {
    return std::any_of(unknown.begin(), unknown.end(), [&](auto const& a) {
      return std::any_of(a.of.begin(), a.of.end(), [&](auto const& o) { return o.id == id; });
    });
  }
  /// The host learns of the oldest steps as long as `due(acceptance)` says so.
  template <class Due>
  void settle(Due due) {
    for (; !unknown.empty() && due(unknown.front()); unknown.pop_front()) {
      for (auto const& o : unknown.front().of) {
        model_request* const r = find(o.id);
        if (r == nullptr) continue;
        r->pending -= o.queries;
        r->certain += o.tokens;
      }
    }
  }

  struct need {
    std::int64_t frames = 0, hosts = 0, slots = 0, tokens = 0;
  };
  /// Every pool that lacks what a call wants; empty: it must be accepted. `hold`: a promise that the call uses up.
  std::vector<shortage> lacking(need n, std::uint64_t hold = 0) const {
    std::vector<shortage> out;
    auto const limit = [&](pool p, std::int64_t wanted, std::int64_t all) {
      if (wanted > all) out.push_back({p, wanted, all, 0, false});
    };
    limit(pool::tokens, n.tokens, shape.max_tokens);
    limit(pool::frames, n.frames, shape.frames);
    limit(pool::host_pages, n.hosts, shape.host_pages);
    if (!out.empty()) return out;
    // A hold is served after older ones, and before younger ones; whoever has none after all of them.
    std::int64_t frames = shape.frames - promised_frames(), hosts = shape.host_pages - promised_hosts();
    for (auto const& [id, tokens] : holds) {
      if (hold != 0 && id >= hold) continue;
      frames -= shape.required(tokens);
      hosts -= shape.pages(tokens);
    }
    std::int64_t const slots = shape.requests - static_cast<std::int64_t>(live.size());
    auto const now = [&](pool p, std::int64_t wanted, std::int64_t free) {
      free = std::max<std::int64_t>(0, free);
      if (wanted > free) out.push_back({p, wanted, free, 0, true});
    };
    now(pool::frames, n.frames, frames);
    now(pool::host_pages, n.hosts, hosts);
    now(pool::requests, n.slots, slots);
    return out;
  }
  std::vector<shortage> impossible(need n) const {
    auto out = lacking(n);
    std::erase_if(out, [](shortage const& s) { return s.ever; });
    return out;
  }

  model_request& admit(request_id id, std::int64_t tokens_max) {
    model_request r;
    r.id = id;
    r.name = ++names_;
    r.tokens_max = tokens_max;
    r.reserve = shape.required(tokens_max);
    r.rows.resize(shape.ratios.size());
    for (auto* rows : {&r.fetched, &r.claimed, &r.present}) rows->resize(static_cast<std::size_t>(shape.sets));
    live.push_back(std::move(r));
    return live.back();
  }
  void finish(request_id id) {
    std::erase_if(live, [&](auto const& r) { return r.id == id; });
  }
  void preempt(model_request& r) const {
    r.preempted = true;
    r.pinned = false;
    r.reserve = 0;
  }
  void resume(model_request& r) const {
    r.preempted = false;
    r.reserve = shape.required(r.tokens_max);
    forget_fetched(r);
  }
  void truncate(model_request& r, std::int64_t tokens) const {
    r.tokens = r.certain = r.reserved = tokens;
    forget_fetched(r);
  }
  /// Rows that `tokens` tokens complete.
  std::int64_t rows_of(int source, std::int64_t tokens) const {
    return tokens / shape.ratios[static_cast<std::size_t>(source)];
  }
  /// `known`: to the host.
  void commit(model_request& r, std::int64_t tokens, bool known = true) const {
    for (int s = 0; s < static_cast<int>(shape.ratios.size()); ++s) {
      for (std::int64_t p = rows_of(s, r.tokens); p < rows_of(s, tokens); ++p) r.row(s, p).scratch = false;
    }
    if (known) r.certain += tokens - r.tokens;
    r.tokens = r.reserved = tokens;
  }

 private:
  void forget_fetched(model_request& r) const {
    for (auto* rows : {&r.fetched, &r.claimed, &r.present}) {
      for (auto& of_set : *rows) of_set.clear();
    }
  }
  std::uint64_t names_ = 0;
};

}  // namespace ebb::testing

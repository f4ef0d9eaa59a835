#pragma once
/// How much of what later groups select is on the GPU at their resolve, with and without announced pools.

#include "../resolver/json.hpp"
#include "policies.hpp"
#include "pools.hpp"
#include "sessions.hpp"

namespace bench {

/// What was counted, all steps and requests together.
struct share {
  std::uint64_t picked = 0, found = 0;  ///< rows that later groups selected
  std::uint64_t fetched = 0;            ///< by the resolves of later groups
  std::uint64_t prefetched = 0, dropped = 0;
};

template <class P, ebb::space S>
class shares {
 public:
  /// Every group is waited for, and all of its rows are checked.
  static share of(sessions<P, S>& on, pool_steps& steps, int batch, int queries, bool ahead, int warm, int counted) {
    on.clear();
    on.shape(batch, queries);
    share sum;
    for (int i = 0; i < warm + counted; ++i) {
      put(on, steps.next());
      on.begin();
      on.addresses();
      on.resolve(0);
      on.check(0, 0);
      ebb::counters const before = on.counts();
      if (ahead) on.prefetch(1);
      for (int g = 1; g < on.groups; ++g) {
        on.resolve(g);
        on.check(g, 0);
      }
      ebb::counters const after = on.counts();
      on.end();
      if (i < warm) continue;
      auto const hits = [](ebb::counters const& c) { return c.tail_hits + c.lent_hits + c.hot_hits; };
      sum.found += hits(after) - hits(before);
      sum.picked += hits(after) - hits(before) + after.misses - before.misses;
      sum.fetched += after.fetched_rows - before.fetched_rows;
      sum.prefetched += after.prefetched_rows - before.prefetched_rows;
      sum.dropped += after.prefetch_dropped - before.prefetch_dropped;
    }
    return sum;
  }
  static void put(sessions<P, S>& on, pool_step const& s) {
    on.announce(s.pool);
    for (std::size_t g = 0; g < s.selections.size(); ++g) on.select(static_cast<int>(g), s.selections[g]);
  }
};

/// Counts `selections` pools (recorded or generated) behind hot rows of once and twice the pool.
template <ebb::space S>
std::uint64_t measure_shares(timing<S>& clock, ahead_grid const& grid, std::vector<recorded_pool> const& recorded,
                             std::vector<std::string>& out) {
  using P = pool_policy;
  std::uint64_t wrong = 0;
  int const batch = grid.share_requests();
  for (bool generated : {false, true}) {
    if (!generated && recorded.empty()) continue;
    int const size = generated ? grid.pool() : recorded.front().size;
    int const selectable = generated ? grid.history() : recorded.front().context;
    for (int hot : {size, 2 * size}) {
      sessions<P, S> on{clock, batch, selectable, hot};
      for (int queries : {1, P::max_queries})
        for (bool ahead : {false, true}) {
          generated_steps made{generated ? batch : 0, queries, size, selectable, on.groups, P::top_k};
          recorded_steps played{recorded, batch, queries, P::top_k};
          pool_steps& steps = generated ? static_cast<pool_steps&>(made) : played;
          std::uint64_t const checked = on.checked(), before = on.wrong();
          int const counted = grid.steps(queries);
          share const s = shares<P, S>::of(on, steps, batch, queries, ahead, grid.warm(), counted);
          double const all = static_cast<double>(batch) * counted;
          double const found = static_cast<double>(s.found) / static_cast<double>(s.picked);
          wrong += on.wrong() - before;
          std::printf(
              "%-9s pool %5d hot %5d queries %d %-8s found %.4f prefetched %8.1f dropped %8.1f fetched %8.1f wrong "
              "%llu\n",
              generated ? "generated" : "recorded", size, hot, queries, ahead ? "prefetch" : "", found,
              static_cast<double>(s.prefetched) / all, static_cast<double>(s.dropped) / all,
              static_cast<double>(s.fetched) / all, static_cast<unsigned long long>(on.wrong() - before));
          std::fflush(stdout);
          json_object o;
          o.text("pools", generated ? "generated" : "recorded")
              .number("pool", size)
              .number("top_k", generated ? P::top_k : recorded.front().k)
              .number("history", selectable)
              .number("hot", hot)
              .number("batch", batch)
              .number("queries", queries)
              .flag("prefetch", ahead)
              .number("steps", counted)
              .number("found_share", found)
              .number("picked_rows", static_cast<double>(s.picked) / all)
              .number("prefetched_rows", static_cast<double>(s.prefetched) / all)
              .number("dropped_rows", static_cast<double>(s.dropped) / all)
              .number("fetched_rows", static_cast<double>(s.fetched) / all)
              .number("checked", on.checked() - checked)
              .number("wrong", on.wrong() - before);
          out.push_back(o.str());
        }
    }
  }
  return wrong;
}

}  // namespace bench

#pragma once
/// Bodies that copy rows ahead of their resolve: a plan for another source of its set, announced candidates.

#include <ebb/resolver.hpp>

namespace ebb {

/// Positions that later resolves of a table will select from: `[padded][size]`, or `[rows][size]` where every query row
/// announces its own; −1 = none. What is not valid is passed over.
struct candidates {
  std::int32_t const* positions = nullptr;
  int size = 0;
  bool per_query = false;
};

/// Copies planned rows for one source. Team k of `teams` takes units (request, part) k, k + teams, …, a bundle of lanes a
/// row. Stream: behind the body that made the plan.
template <policy P>
struct plan_copy_body {
  static constexpr int threads = 256;
  row_plan plan;
  int items;
  int parts;  ///< of a request's list
  int teams;
  source_view from;  ///< whose addresses the plan holds
  source_view to;

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    constexpr int bundles = T::width / T::bundle;
    EBB_ROLL
    for (int unit = item; unit < items * parts; unit += teams) {
      wanted_row const* const rows = plan.rows + std::int64_t{unit / parts} * plan.stride;
      int const n = static_cast<int>(plan.counts[unit / parts]);
      EBB_ROLL
      for (int i = unit % parts * bundles + t.rank() / T::bundle; i < n; i += parts * bundles) {
        wanted_row const w = rows[i];
        if (w.entry >= 0) continue;
        row_in_flight<P, T> flying;
        flying.read(t, to, w.backing);
        flying.write(t, to, w.backing, from.is_staged(w.row) ? w.row - from.staging + to.staging : w.row);
      }
    }
  }
};

/// Gives hot rows to the candidates of one request that are not on the GPU: looks, barrier, claims. Nothing that the
/// table's resolves of this step gave out is evicted; what finds no way, or no place in the plan, is left to demand and counted.
///
/// Concurrency: one team per request; no other body may work on its table. Cost: a map and a table look for each
/// position.
template <policy P>
struct prefetch_body {
  static constexpr int threads = 1024;
  using cache = typename P::tiers::cache;

  step_ref<P> step;
  table_ref hot;
  int page_shift;
  int ratio_shift;
  row_shape shape;  ///< of the step
  candidates pool;
  row_plan plan;
  int source_count;
  std::uint64_t* counters;

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    bool const real = item < static_cast<int>(step.header[header_words::requests]);
    bool const wanted = real && step.header[header_words::direct] == 0;
    std::uint32_t* const found = plan.counts + item;
    if (t.rank() == 0) *found = 0;
    if (!wanted) return;
    row_record const row = step.rows[item];
    query_rows const own = shape.of(item);
    row_table const table{.words = hot.words + std::int64_t{row.slot} * hot.stride(),
                          .ways = hot.ways,
                          .format = hot.format,
                          .now = step.header[hot.stamp_word] + static_cast<std::uint32_t>(hot.ordinal),
                          .steps = hot.steps,
                          .since = step.header[hot.stamp_word]};
    wanted_row* const list = plan.rows + std::int64_t{item} * plan.stride;
    std::int32_t bound = 0;
    for (int j = 0; j < own.count; ++j) {
      std::int32_t const of_query = step.bounds[own.first + j];
      bound = of_query > bound ? of_query : bound;
    }
    bound >>= ratio_shift;
    t.sync();

    int const first = pool.per_query ? own.first : item;
    int const all = (pool.per_query ? own.count : 1) * pool.size;
    std::int32_t const* const positions = pool.positions + std::int64_t{first} * pool.size;
    std::uint32_t dropped = 0;
    EBB_ROLL
    for (int i = t.rank(); i < all; i += T::width) {
      std::int32_t const position = positions[i];
      if (position < 0 || position >= bound) continue;
      map_entry const where = step.map.at(row.slot, position >> page_shift);
      if (where.frame != frame_id::none || cache::find(t, table, position) >= 0) continue;
      std::int64_t const backing = P::tiers::fetch(where, position & ((1 << page_shift) - 1), 1 << page_shift);
      if (backing < 0) continue;
      int const at = static_cast<int>(t.add(found, 1u));
      dropped += at >= plan.stride;
      if (at < plan.stride) list[at] = {backing, position, 0};
    }
    t.sync();
    int const all_missing = static_cast<int>(t.load(found));
    int const missing = all_missing < plan.stride ? all_missing : plan.stride;
    std::uint32_t copied = 0;
    EBB_ROLL
    for (int k = 0; k < missing; k += T::width / T::bundle) {
      int const i = k + t.rank() / T::bundle;
      std::int32_t const position = i < missing ? list[i].row : -1;
      claimed const c = cache::claim(t, table, position, false);
      bool const fetch = t.least(c.fetch ? 0 : 1) == 0;
      if (position < 0 || t.bundle_rank() != 0) continue;
      dropped += c.way < 0;
      if (!fetch) continue;
      std::int32_t const frame = step.hot_frames[std::int64_t{row.slot} * step.hot + (c.way >> page_shift)];
      list[i].row = (frame << page_shift) + (c.way & ((1 << page_shift) - 1));
      list[i].entry = -1;
      ++copied;
    }
    t.sync();
    if (t.rank() == 0) *found = static_cast<std::uint32_t>(missing);
    if constexpr (P::count) {
      std::uint64_t* const mine = counters + item * device_counts;
      t.add_all(mine + static_cast<int>(count::prefetched_rows), copied * static_cast<std::uint32_t>(source_count));
      t.add_all(mine + static_cast<int>(count::prefetch_dropped), dropped);
    }
  }
};

}  // namespace ebb

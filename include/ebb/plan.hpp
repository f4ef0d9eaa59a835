#pragma once
/// What fits where: constexpr predictions of memory, and of how many requests it serves.

#include <ebb/capacity.hpp>
#include <ebb/error.hpp>
#include <ebb/geometry.hpp>
#include <ebb/policy.hpp>
#include <ebb/tiers/host_pages.hpp>
#include <ebb/tiers/hot_rows.hpp>
#include <ebb/tiers/lent_pages.hpp>
#include <ebb/tiers/staging_rows.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace ebb {

/// The sizes that decide how much memory an instance takes.
struct pool_sizes {
  std::int64_t frames = 0;
  std::int64_t host_pages = 0;
  std::int64_t requests = 0;
  std::int64_t max_tokens = 0;
  int hot_rows = 0;       ///< rows at r = 1
  int staging_rows = -1;  ///< −1: what max_queries · top_k rows need beyond the smallest table
  bool borrowed = false;  ///< arenas are the engine's: staging then takes a plane per source, beside each
};

/// Bytes of an instance. Small arrays of a step (batch, bounds, stamps) are not counted.
struct footprint {
  std::int64_t arenas = 0;
  std::int64_t staging = 0;
  std::int64_t words = 0;
  std::int64_t map = 0;
  std::int64_t host = 0;
  constexpr std::int64_t device() const { return arenas + staging + words + map; }
};

/// Ways of a set's hot-row table; 0 without a row cache in the tiers.
template <policy P>
constexpr int ways_of_set(geometry<P> const& g, int set, int hot_rows) {
  return P::tiers::caches ? table_ways(hot_frames(hot_rows, P::page_tokens), P::page_tokens / g.ratio_of_set(set)) : 0;
}

/// Ways of the smallest table: what top-k is compared with.
template <policy P>
constexpr int smallest_ways(geometry<P> const& g, int hot_rows) {
  int least = std::numeric_limits<int>::max();
  for (int set = 0; set < g.sets(); ++set) least = std::min(least, ways_of_set(g, set, hot_rows));
  return least;
}

/// Staging rows of a request, the default resolved; 0 without staging in the tiers.
template <policy P>
constexpr int staging_rows_for(geometry<P> const& g, int hot_rows, int staging_rows) {
  if (!P::tiers::stages) return 0;
  return staging_rows >= 0 ? staging_rows : default_staging_rows(P::max_queries, P::top_k, smallest_ways(g, hot_rows));
}

/// Bytes that an instance of these sizes allocates.
template <policy P>
constexpr footprint footprint_of(geometry<P> const& g, pool_sizes const& sizes) {
  int const staging = staging_rows_for(g, sizes.hot_rows, sizes.staging_rows);
  int const widest = P::page_tokens / g.smallest_ratio();
  std::int64_t words = staging_slots(staging, widest);
  for (int set = 0; set < g.sets(); ++set) words += ways_of_set(g, set, sizes.hot_rows);
  std::int64_t planes = 0;
  if (sizes.borrowed) {
    for (int s = 0; s < g.sources(); ++s) planes += staging_plane_bytes(g.layout(s), staging_slots(staging, widest));
  } else {
    planes =
        staging_planes(g.largest_set()) * staging_plane_bytes(page_layout{P::row, widest, P::page_multiple}, staging);
  }
  return {.arenas = sizes.frames * g.page_bytes(),
          .staging = sizes.requests * planes,
          .words = sizes.requests * words * word_bytes,
          .map = sizes.requests * map_bytes(sizes.max_tokens, P::page_tokens),
          .host = sizes.host_pages * g.page_bytes()};
}

/// The fewest hot rows that give every table top-k ways.
template <policy P>
constexpr int fewest_hot_rows(geometry<P> const& g) {
  int most = 0;
  for (int set = 0; set < g.sets(); ++set) {
    most = std::max(most, least_hot_rows(P::top_k, P::page_tokens / g.ratio_of_set(set), P::page_tokens));
  }
  return most;
}

/// Hot rows that suit a model: twice its top-k in every table, and its candidate pool.
template <policy P>
constexpr int usual_hot_rows() {
  return std::max(2 * P::top_k * geometry_of<P>::largest_ratio, P::candidate_pool);
}

/// What the planner asks for.
struct plan_inputs {
  std::int64_t gpu_bytes = 0;   ///< for arenas, tables, and the engine's per-request and index bytes
  std::int64_t host_bytes = 0;  ///< for the host store
  std::int64_t history = 0;     ///< tokens of a request when it is admitted
  std::int64_t growth = 0;      ///< tokens it may add: it is admitted for history + growth
  std::int64_t max_tokens = 0;
  std::int64_t requests = 0;  ///< request slots; 0: as many as fit
  int hot_rows = 0;
  int staging_rows = -1;
  int steps_in_flight = 1;
  std::int64_t engine_bytes = 0;  ///< the engine's own state of a request
  layer_range layers = {};
  bool borrowed = false;
};

/// Requests that fit at once, and the pool that refuses the next one. `frames` stands for GPU memory.
struct fit {
  std::int64_t requests = 0;
  pool limit = pool::frames;
};

struct capacity_plan {
  std::int64_t frame_bytes = 0;  ///< one page of all local sources, on the GPU and in the host store
  std::int64_t words_bytes = 0;  ///< per request slot, as are the next two
  std::int64_t staging_bytes = 0;
  std::int64_t map_bytes = 0;
  std::int64_t index_bytes = 0;  ///< per running request, kept by the engine
  int staging_rows = 0;
  int tail_pages = 0;
  int hot_frames = 0;
  int required_frames = 0;
  int whole_pages = 0;  ///< of a request as long as it may grow

  fit resident{};           ///< whole histories on the GPU, no host store, no tables but the map
  fit fixed{};              ///< tail and hot rows only
  fit adaptive{};           ///< the same requests, and loans from what is spare
  std::int64_t frames = 0;  ///< of the adaptive pool
  std::int64_t host_pages = 0;
  std::int64_t loans = 0;           ///< pages lent at full load
  std::int64_t whole_requests = 0;  ///< up to so many running requests everything stays on the GPU
};

/// What fits.
///
/// Throws: std::invalid_argument with parameter, value and allowed range.
template <policy P>
constexpr capacity_plan plan_for(plan_inputs const& in) {
  static_assert(check_policy<P>());
  constexpr auto endless = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t most_tokens = 1LL << 30;
  auto const check = [](char const* argument, std::int64_t value, std::int64_t least, std::int64_t most,
                        char const* why = "") {
    if (value < least || value > most) {
      require(false, argument, value, std::to_string(least) + " to " + std::to_string(most) + why);
    }
  };
  check("gpu_bytes", in.gpu_bytes, 1, 1LL << 50);
  check("host_bytes", in.host_bytes, 0, 1LL << 50);
  check("engine_bytes", in.engine_bytes, 0, 1LL << 50);
  check("history", in.history, 1, most_tokens);
  check("growth", in.growth, 0, most_tokens);
  check("max_tokens", in.max_tokens, 1, most_tokens);
  check("requests", in.requests, 0, 1 << 20, ", 0 for as many as fit");
  check("steps_in_flight", in.steps_in_flight, 1, 64);

  geometry<P> const g{in.layers};
  if (P::tiers::caches) check("hot_rows", in.hot_rows, fewest_hot_rows(g), 1 << 24, ", for top_k rows in every table");
  int const ways = smallest_ways(g, in.hot_rows);
  int const short_of = default_staging_rows(P::max_queries, P::top_k, ways);
  if (P::tiers::caches && (in.staging_rows != -1 || !P::tiers::stages)) {
    check("staging_rows", P::tiers::stages ? in.staging_rows : 0, short_of, 1 << 24,
          ", for max_queries * top_k rows with the hot rows");
  }
  int const staging = staging_rows_for(g, in.hot_rows, in.staging_rows);

  std::int64_t const tokens = in.history + in.growth;
  auto const slot = footprint_of(g, {.requests = 1,
                                     .max_tokens = in.max_tokens,
                                     .hot_rows = in.hot_rows,
                                     .staging_rows = staging,
                                     .borrowed = in.borrowed});
  capacity_plan out{
      .frame_bytes = g.page_bytes(), .words_bytes = slot.words, .staging_bytes = slot.staging, .map_bytes = slot.map};
  for (int set = 0; set < g.sets(); ++set)
    out.index_bytes += complete_rows(tokens, g.ratio_of_set(set)) * P::index_row_bytes;
  out.staging_rows = staging;
  out.tail_pages = tail_pages(P::page_tokens, P::max_queries, in.steps_in_flight);
  out.hot_frames = P::tiers::caches ? hot_frames(in.hot_rows, P::page_tokens) : 0;
  out.required_frames = required_frames(tokens, P::page_tokens, out.tail_pages, out.hot_frames, P::tiers::caches);
  out.whole_pages = static_cast<int>(pages_for(tokens, P::page_tokens));
  out.host_pages = in.host_bytes / out.frame_bytes;
  if (tokens > in.max_tokens) {
    out.resident = out.fixed = out.adaptive = {0, pool::tokens};
    return out;
  }

  // Slots are paid for whether they run or not; without a number of them, every request that fits has one.
  std::int64_t const running = in.engine_bytes + out.index_bytes;
  auto const fits = [&](std::int64_t slot_bytes, std::int64_t frames, std::int64_t by_host) {
    std::int64_t const free = std::max<std::int64_t>(0, in.gpu_bytes - in.requests * slot_bytes);
    std::int64_t const by_gpu = free / ((in.requests > 0 ? 0 : slot_bytes) + running + frames * out.frame_bytes);
    std::int64_t const slots = in.requests > 0 ? in.requests : endless;
    std::int64_t const least = std::min({by_gpu, by_host, slots});
    return fit{least, least == slots ? pool::requests : least == by_host ? pool::host_pages : pool::frames};
  };
  out.resident = fits(slot.map, out.whole_pages, endless);
  out.fixed = fits(slot.device(), out.required_frames, out.host_pages / out.whole_pages);
  out.adaptive = out.fixed;

  std::int64_t const n = out.adaptive.requests;
  std::int64_t const pools = in.gpu_bytes - std::max(n, in.requests) * slot.device();
  std::int64_t const addressable_frames =
      std::numeric_limits<std::int32_t>::max() / (P::page_tokens / g.smallest_ratio());
  out.frames = std::clamp<std::int64_t>((pools - n * running) / out.frame_bytes, 0, addressable_frames);
  if (P::tiers::lends) {
    out.loans = std::min(out.frames - n * out.required_frames, n * (out.whole_pages - out.required_frames));
    out.whole_requests = std::min(n, std::max<std::int64_t>(0, pools) / (running + out.whole_pages * out.frame_bytes));
  }
  return out;
}

}  // namespace ebb

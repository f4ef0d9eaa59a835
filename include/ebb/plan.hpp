#pragma once
/// What fits where: constexpr predictions of memory, and of how many requests it serves.

#include <ebb/draft_ring.hpp>
#include <ebb/error.hpp>
#include <ebb/footprint.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace ebb {

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
  std::int64_t requests = 0;   ///< request slots; 0: as many as fit
  std::int64_t max_batch = 0;  ///< requests of one step at most; 0: all of them
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
  std::int64_t slot_bytes = 0;   ///< of a request slot: words of the hot rows, map
  std::int64_t step_bytes = 0;   ///< of a request in a step: staging and its words, lists
  std::int64_t draft_bytes = 0;  ///< of a running request: the ring of a windowed drafter
  std::int64_t index_bytes = 0;  ///< of a running request, kept by the engine
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

/// Throws: std::invalid_argument with parameter, value and allowed range on the first illegal input.
template <policy P>
constexpr void check_inputs(geometry<P> const& g, plan_inputs const& in) {
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
  check("max_tokens", in.max_tokens, 1, longest_tokens(g));
  check("requests", in.requests, 0, most_requests, ", 0 for as many as fit");
  check("max_batch", in.max_batch, 0, in.requests > 0 ? in.requests : most_requests, ", 0 for all requests");
  check("steps_in_flight", in.steps_in_flight, 1, most_steps);

  if (!P::tiers::stages) check("staging_rows", in.staging_rows, -1, 0, ", where the tiers have no staging_rows");
  if (!P::tiers::caches) return check("hot_rows", in.hot_rows, 0, 0, ", where the tiers have no row cache");
  check("hot_rows", in.hot_rows, fewest_hot_rows(g), most_rows,
        P::tiers::stages ? ", for top_k rows in every table" : ", for max_queries * top_k rows in every table");
  if (P::tiers::stages && in.staging_rows != -1)
    check("staging_rows", in.staging_rows,
          default_staging_rows(P::max_queries, P::top_k, smallest_ways(g, in.hot_rows)), most_rows,
          ", for max_queries * top_k rows with the hot rows");
}

/// What fits.
///
/// Throws: std::invalid_argument with parameter, value and allowed range.
template <policy P>
constexpr capacity_plan plan_for(plan_inputs const& in) {
  static_assert(check_policy<P>());
  constexpr auto endless = std::numeric_limits<std::int64_t>::max();
  geometry<P> const g{in.layers};
  check_inputs(g, in);
  int const staging = staging_rows_for(g, in.hot_rows, in.staging_rows);

  std::int64_t const tokens = in.history + in.growth;
  pool_sizes const one{
      .max_tokens = in.max_tokens, .hot_rows = in.hot_rows, .staging_rows = staging, .borrowed = in.borrowed};
  auto const with = [&](std::int64_t frames, std::int64_t requests, std::int64_t batch) {
    pool_sizes sizes = one;
    sizes.frames = frames;
    sizes.requests = requests;
    sizes.max_batch = batch;
    return footprint_of(g, sizes);
  };
  std::int64_t const empty = with(0, 0, 0).device();
  std::int64_t const slot = with(0, 1, 0).device() - empty;
  std::int64_t const step = with(0, 0, 1).device() - empty;
  capacity_plan out{.frame_bytes = g.page_bytes(), .slot_bytes = slot, .step_bytes = step};
  for (int set = 0; set < g.sets(); ++set)
    out.index_bytes += complete_rows(tokens, g.ratio_of_set(set)) * P::index_row_bytes;
  out.staging_rows = staging;
  out.tail_pages = tail_pages(P::page_tokens, P::max_queries, in.steps_in_flight, P::drafter_group >= 0);
  out.hot_frames = P::tiers::caches ? hot_frames(in.hot_rows, P::page_tokens) : 0;
  out.required_frames = required_frames(tokens, P::page_tokens, out.tail_pages, out.hot_frames, P::tiers::caches);
  out.whole_pages = static_cast<int>(pages_for(tokens, P::page_tokens));
  out.host_pages = in.host_bytes / out.frame_bytes;
  if (tokens > in.max_tokens) {
    out.resident = out.fixed = out.adaptive = {0, pool::tokens};
    return out;
  }

  // Slots and batch rows are paid for whether they run or not; where their number is not given, every request that fits
  // has one.
  out.draft_bytes = draft_ring_bytes(P::draft, P::max_queries);
  std::int64_t const running = in.engine_bytes + out.index_bytes + out.draft_bytes;
  auto const fits = [&](std::int64_t slot_bytes, std::int64_t step_bytes, std::int64_t frames, std::int64_t extra,
                        std::int64_t by_host) {
    std::int64_t const batch = in.max_batch > 0 ? in.max_batch : in.requests;
    std::int64_t const free =
        std::max<std::int64_t>(0, in.gpu_bytes - extra - in.requests * slot_bytes - batch * step_bytes);
    std::int64_t const each =
        (in.requests > 0 ? 0 : slot_bytes) + (batch > 0 ? 0 : step_bytes) + running + frames * out.frame_bytes;
    std::int64_t const by_gpu = free / each;
    std::int64_t const slots = in.requests > 0 ? in.requests : endless;
    std::int64_t const least = std::min({by_gpu, by_host, slots});
    return fit{least, least == slots ? pool::requests : least == by_host ? pool::host_pages : pool::frames};
  };
  std::int64_t rounding = 0;  // of owned arenas to strides of the widest page, at most
  for (int s = 0; s < g.sources() && !in.borrowed; ++s) {
    rounding += (g.ratio(s) / g.smallest_ratio() - 1) * g.layout(s).stride;
  }
  out.resident = fits(map_bytes(in.max_tokens, P::page_tokens), 0, out.whole_pages, 0, endless);
  out.fixed = fits(slot, step, out.required_frames, empty + rounding, out.host_pages / out.whole_pages);
  out.adaptive = out.fixed;

  std::int64_t const n = out.adaptive.requests;
  std::int64_t const slots = in.requests > 0 ? in.requests : n;
  std::int64_t const batch = in.max_batch > 0 ? in.max_batch : slots;
  std::int64_t const pools = std::max<std::int64_t>(0, in.gpu_bytes - empty - rounding - slots * slot - batch * step);
  std::int64_t const most_frames = std::numeric_limits<std::int32_t>::max() / (P::page_tokens / g.smallest_ratio());
  out.frames = std::clamp<std::int64_t>((pools - n * running) / out.frame_bytes, 0, most_frames);
  if (P::tiers::lends) {
    out.loans =
        std::clamp<std::int64_t>(out.frames - n * out.required_frames, 0, n * (out.whole_pages - out.required_frames));
    out.whole_requests = std::min(n, pools / (running + out.whole_pages * out.frame_bytes));
  }
  return out;
}

}  // namespace ebb

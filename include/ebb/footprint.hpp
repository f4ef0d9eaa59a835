#pragma once
/// How much memory an instance of given sizes takes: the bytes that `residency` allocates, but for small arrays of a
/// step.

#include <ebb/capacity.hpp>
#include <ebb/geometry.hpp>
#include <ebb/metadata/flashmla.hpp>
#include <ebb/metadata/plain_rows.hpp>
#include <ebb/orders/keep.hpp>
#include <ebb/policy.hpp>
#include <ebb/resolver.hpp>
#include <ebb/tiers/host_pages.hpp>
#include <ebb/tiers/hot_rows.hpp>
#include <ebb/tiers/lent_pages.hpp>
#include <ebb/tiers/staging_rows.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace ebb {

/// The sizes that decide how much memory an instance takes.
struct pool_sizes {
  std::int64_t frames = 0;
  std::int64_t host_pages = 0;
  std::int64_t requests = 0;
  std::int64_t max_batch = 0;
  std::int64_t max_tokens = 0;
  int hot_rows = 0;        ///< rows at r = 1
  int staging_rows = -1;   ///< −1: what max_queries · top_k rows need beyond the smallest table
  int prefetch_rows = -1;  ///< −1: the policy's candidate_pool
  bool borrowed = false;   ///< arenas are the engine's: each then holds staging of its own behind its frames
};

/// Bytes of an instance, on the device and in the host store. Arrays of a step that do not grow with top_k, history or
/// hot rows (batch, bounds, stamps) are not counted.
struct footprint {
  std::int64_t arenas = 0;   ///< frames, and the zeroed one that packed metadata needs
  std::int64_t staging = 0;  ///< row slots of every plane
  std::int64_t words = 0;    ///< of hot rows and staging
  std::int64_t map = 0;      ///< map, numbers of hot frames, use counts
  std::int64_t lists = 0;    ///< missing and planned rows of a resolve
  std::int64_t host = 0;
  constexpr std::int64_t device() const { return arenas + staging + words + map + lists; }
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

/// Ways that every table must have: top_k, or max_queries · top_k where nothing is staged.
template <policy P>
constexpr int least_ways() {
  return P::top_k * (P::tiers::stages ? 1 : P::max_queries);
}
/// The fewest hot rows that give every table so many.
template <policy P>
constexpr int fewest_hot_rows(geometry<P> const& g) {
  int most = 0;
  for (int set = 0; set < g.sets(); ++set)
    most = std::max(most, least_hot_rows(least_ways<P>(), P::page_tokens / g.ratio_of_set(set), P::page_tokens));
  return most;
}
/// Stamps of a table for one resolve: where pools are announced, a prefetch goes before it.
template <policy P>
inline constexpr int stamps_per_resolve = P::candidate_pool > 0 ? 2 : 1;

/// The longest request that the words of its tables can name.
template <policy P>
constexpr std::int64_t longest_tokens(geometry<P> const& g) {
  if constexpr (P::tiers::caches)
    return longest_history(P::tiers::cache::exponent_bits, (g.groups() + P::drafter_passes - 1) * stamps_per_resolve<P>,
                           g.smallest_ratio());
  return most_tokens;
}

/// Bytes that an instance of these sizes allocates.
template <policy P>
constexpr footprint footprint_of(geometry<P> const& g, pool_sizes const& sizes) {
  int const widest = P::page_tokens / g.smallest_ratio();
  std::int64_t const widest_stride = page_layout{P::row, widest, P::page_multiple}.stride;
  int const slots = staging_slots(staging_rows_for(g, sizes.hot_rows, sizes.staging_rows), widest);
  std::int64_t const hot = P::tiers::caches ? hot_frames(sizes.hot_rows, P::page_tokens) : 0;
  footprint out;
  for (int s = 0; s < g.sources(); ++s) {
    std::int64_t const bytes = (sizes.frames + (P::metadata::packed ? 1 : 0)) * g.layout(s).stride;
    // Owned arenas start at whole strides of the widest page, so that staging has a row address from each of them.
    out.arenas += sizes.borrowed ? bytes : (bytes + widest_stride - 1) / widest_stride * widest_stride;
    if (sizes.borrowed) out.staging += sizes.max_batch * (slots / g.rows_per_page(s)) * g.layout(s).stride;
  }
  if (!sizes.borrowed)
    out.staging = sizes.max_batch * staging_planes(g.largest_set()) * (slots / widest) * widest_stride;
  out.words = sizes.max_batch * slots * word_bytes;
  for (int set = 0; set < g.sets(); ++set)
    out.words +=
        sizes.requests * (P::tiers::caches ? std::max(ways_of_set(g, set, sizes.hot_rows), set_ways) : 0) * word_bytes;
  std::int64_t const uses = P::keep::wants_uses ? pages_for(sizes.max_tokens, P::page_tokens) : 0;
  out.map = sizes.requests * (map_bytes(sizes.max_tokens, P::page_tokens) + (hot + uses) * word_bytes);
  std::int64_t const planned = P::tiers::caches && g.largest_set() > 1 ? P::max_queries * P::top_k : 0;
  std::int64_t const ahead = P::tiers::caches && P::candidate_pool > 0 && sizes.prefetch_rows < 0
                                 ? P::candidate_pool
                                 : std::max(0, sizes.prefetch_rows);
  out.lists =
      sizes.max_batch * (resolve_body<P>::list_rows + planned + ahead) * static_cast<std::int64_t>(sizeof(wanted_row));
  out.host = sizes.host_pages * g.page_bytes();
  return out;
}

}  // namespace ebb

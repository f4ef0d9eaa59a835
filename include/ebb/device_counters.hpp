#pragma once
/// What the bodies count, word by word.

#include <ebb/config.hpp>

#include <cstdint>

namespace ebb {

/// Counters of the resolver on the device. Hits and misses count selected positions, once per query; fetches count
/// rows, once each.
enum class count : int {
  tail_hits,         ///< found in the newest pages
  lent_hits,         ///< found in older pages of the map, loans and the pages of whole requests
  hot_hits,          ///< found in the row cache
  misses,            ///< not on the GPU when asked for
  fetched_rows,      ///< rows copied from the host, distinct per resolve, per KV source
  staged_rows,       ///< of the fetched, those that the row cache had no way for; per claim
  invalid,           ///< −1 entries
  rejected,          ///< positions out of range or at and after the causal bound
  prefetched_rows,   ///< of announced candidates, copied ahead, per KV source
  prefetch_dropped,  ///< announced candidates left to demand: no way free, or more than one prefetch may copy; one that
                     ///< several queries announce counts for each
  lost,              ///< valid positions that could be found nowhere; always 0
  number
};
inline constexpr int device_counts = static_cast<int>(count::number);

}  // namespace ebb

#pragma once
// Selections as an indexer gives them, and as it never should.

#include <ebb/tiers/row_table.hpp>

#include <algorithm>
#include <limits>
#include <span>

#include "operations.hpp"

namespace ebb::testing {

/// Kinds of selection: anywhere, the newest, half of them −1, a few again and again, out of range, all in one pair of sets, distinct ones.
inline constexpr int selection_kinds = 7;

inline std::int32_t random_position(generator& g, std::int64_t rows, int kind) {
  auto const n = static_cast<int>(std::max<std::int64_t>(1, rows));
  switch (kind) {
    case 1:
      return std::max(0, n - 1 - g.below(1 + n / 3));
    case 2:
      return g.below(2) == 0 ? -1 : g.below(n);
    case 3:
      return g.below(1 + n / 6);
    case 4: {
      using limits = std::numeric_limits<std::int32_t>;
      static constexpr std::int32_t odd[] = {-2, -1, limits::min(), limits::max(), 1 << 20, -77};
      int const k = g.below(10);
      return k < 6 ? odd[k] : k == 6 ? n : k == 7 ? n + g.below(40) : n - 1;
    }
    default:
      return g.below(n);
  }
}
/// One row of a selection. `rows`: how many are selectable; `sets`: of the row cache.
inline void fill_selection(generator& g, std::span<std::int32_t> to, std::int64_t rows, int kind, int sets) {
  if (rows > 0 && kind >= 5) {
    int const wanted = g.below(sets);
    int const by = kind == 5 ? 1 : 1 + g.below(7);
    auto p = static_cast<std::int32_t>(g.below(static_cast<int>(rows)));
    for (std::int32_t& entry : to) {
      entry = p;
      for (std::int64_t k = 0; k < rows; ++k) {
        p = static_cast<std::int32_t>((p + by) % rows);
        if (kind == 6 || onto(mix(static_cast<std::uint32_t>(p), 0x5bd1e995u), sets) == wanted) break;
      }
    }
    return;
  }
  for (std::int32_t& entry : to) entry = random_position(g, rows, kind);
}

}  // namespace ebb::testing

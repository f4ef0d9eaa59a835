#pragma once
/// Row slots for what one resolve needs and the row cache cannot hold.

#include <ebb/tiers/row_table.hpp>

namespace ebb {

/// Rows of one resolve, forgotten by the next: a word counts only when stamped `now`. Probed cyclically from the
/// position's hash.
struct staging_rows {
  static constexpr tier_kind kind = tier_kind::staging;

  EBB_BODY
  template <team T>
  EBB_FN static claimed claim(T const& t, row_table const& table, std::int32_t position, bool last) {
    if (last || table.ways == 0) return {};
    int const start = onto(mix(static_cast<std::uint32_t>(position), 0x165667b1u), table.ways);
    std::uint32_t const mine = table.format.make(position, 0, table.now);
    for (int k = 0; k < table.ways; ++k) {
      int const way = start + k < table.ways ? start + k : start + k - table.ways;
      std::uint32_t word = t.load(table.words + way);
      while (table.format.stamp(word) != table.now) {
        if (t.cas(table.words + way, word, mine)) return {way, true};
        word = t.load(table.words + way);
      }
      if (word == mine) return {way, false};
    }
    return {};
  }
};
static_assert(row_place<staging_rows>);

}  // namespace ebb

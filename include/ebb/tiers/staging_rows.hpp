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
    std::uint32_t mine = none;
    if (t.bundle_rank() == 0 && position >= 0) mine = walk(t, table, position);
    mine = t.least(mine);
    if (mine == none) return {};
    return {static_cast<int>(mine >> 1), (mine & 1) == 0};
  }

 private:
  static constexpr std::uint32_t none = ~0u;

  /// Twice the way, and 1 where another lane won it.
  EBB_BODY
  template <team T>
  EBB_FN static std::uint32_t walk(T const& t, row_table const& table, std::int32_t position) {
    int const start = onto(mix(static_cast<std::uint32_t>(position), 0x165667b1u), table.ways);
    std::uint32_t const mine = table.format.make(position, 0, table.now);
    for (int k = 0; k < table.ways; ++k) {
      int const way = start + k < table.ways ? start + k : start + k - table.ways;
      std::uint32_t word = t.load(table.words + way);
      while (table.format.stamp(word) != table.now) {
        if (t.exchange(table.words + way, word, mine) == word) return static_cast<std::uint32_t>(way) * 2;
        word = t.load(table.words + way);
      }
      if (word == mine) return static_cast<std::uint32_t>(way) * 2 + 1;
    }
    return none;
  }
};
static_assert(row_place<staging_rows>);

}  // namespace ebb

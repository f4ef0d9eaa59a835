#pragma once
/// Row slots for what one resolve needs and the row cache cannot hold.

#include <ebb/tiers/row_table.hpp>

namespace ebb {

/// Rows of one resolve, forgotten by the next: a word counts only when stamped `now`. Probed cyclically from the
/// position's hash, four words a lane of the bundle at a time: the table may be full.
struct staging_rows {
  static constexpr tier_kind kind = tier_kind::staging;

  EBB_BODY
  template <team T>
  EBB_FN static claimed claim(T const& t, row_table const& table, std::int32_t position, bool last) {
    if (last || table.ways == 0) return {};
    constexpr std::uint32_t none = ~0u;
    int const quads = (table.ways + 3) / 4;
    int const start = onto(mix(static_cast<std::uint32_t>(position), 0x165667b1u), quads);
    std::uint32_t const mine = table.format.make(position < 0 ? 0 : position, 0, table.now);
    claimed out{};
    bool open = position >= 0;
    EBB_ROLL
    for (int first = 0; first < quads && t.some(open); first += T::bundle) {
      int const nth = first + t.bundle_rank();
      int const quad = start + nth < quads ? start + nth : start + nth - quads;
      std::uint32_t words[4];
      std::uint32_t ranks[4];  // twice the place in the walk; 1 more where the word is free
      read(t, table, open && nth < quads ? quad * 4 : table.ways, words);
      EBB_UNROLL
      for (int i = 0; i < 4; ++i) {
        bool const is_slot = open && nth < quads && quad * 4 + i < table.ways;
        ranks[i] = is_slot ? rank(table, words[i], mine, t.bundle_rank() * 4 + i) : none;
      }
      bool here = open;
      EBB_ROLL
      while (t.some(here)) {
        std::uint32_t best = none, word = 0;
        EBB_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (ranks[i] >= best) continue;
          best = ranks[i];
          word = words[i];
        }
        std::uint32_t const least = t.least(best);
        int const place = least == none ? 0 : static_cast<int>(least / 2);
        int const at = start + first + place / 4;
        int const way = (at < quads ? at : at - quads) * 4 + place % 4;
        bool const free = here && least != none && least % 2 == 1;
        bool won = false;
        if (free && best == least) {
          std::uint32_t const found = t.exchange(table.words + way, word, mine);
          won = found == word;
          EBB_UNROLL
          for (int i = 0; i < 4; ++i) ranks[i] = ranks[i] == least ? rank(table, found, mine, place) : ranks[i];
        }
        won = t.least(won ? 0 : 1) == 0;
        if (!here) continue;
        if (least != none && (won || !free)) {
          out = {way, won};
          open = false;
        }
        here = open && least != none;
      }
    }
    return out;
  }

 private:
  /// Words from `first` on, as far as the table goes.
  EBB_BODY
  template <team T>
  EBB_FN static void read(T const& t, row_table const& table, int first, std::uint32_t (&words)[4]) {
    if (table.ways % 4 == 0) {
      EBB_UNROLL
      for (int i = 0; i < 4; ++i) words[i] = 0;
      if (first < table.ways)
        t.load_set(static_cast<std::uint32_t const*>(__builtin_assume_aligned(table.words + first, 16)), 4, words);
      return;
    }
    EBB_UNROLL
    for (int i = 0; i < 4; ++i) words[i] = first + i < table.ways ? t.load(table.words + first + i) : 0;
  }
  EBB_FN static std::uint32_t rank(row_table const& table, std::uint32_t word, std::uint32_t mine, int place) {
    std::uint32_t const twice = static_cast<std::uint32_t>(place) * 2;
    return word == mine ? twice : table.format.stamp(word) != table.now ? twice + 1 : ~0u;
  }
};
static_assert(row_place<staging_rows>);

}  // namespace ebb

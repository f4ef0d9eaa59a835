#pragma once
// A place of one's own: a direct-mapped row cache. A position has one way where it may be cached, so a look reads one
// word where `hot_rows` reads 32; the price is more misses, since two wanted rows may share a way.

#include <ebb/tiers/row_table.hpp>

struct direct_rows {
  // What it is decides when the resolver asks it: a row cache keeps committed rows from one resolve to the next.
  static constexpr ebb::tier_kind kind = ebb::tier_kind::cache;
  // Bits of each word beside position and stamp. With one candidate there is nothing to rank, so none.
  static constexpr int exponent_bits = 0;

  // Called for every selected position before any is claimed. Finding a row pins it: its stamp becomes `now`, and what
  // is pinned is not evicted in this resolve.
  EBB_BODY
  template <ebb::team T>
  EBB_FN static int find(T const& t, ebb::row_table const& table, std::int32_t position) {
    int const way = home(table, position);
    for (;;) {
      std::uint32_t const word = t.load(table.words + way);
      std::uint32_t const stamp = table.format.stamp(word);
      if (stamp == 0 || table.format.position(word) != position) return -1;  // stamp 0: an empty way
      if (stamp == table.now || t.exchange(table.words + way, word, pinned(table, position)) == word) return way;
      // Another query of this request pinned the same row in between: look again.
    }
  }

  // Called for every position that was not found. All lanes that want one row walk the same ways in the same order and
  // stop at the first that is theirs, so exactly one of them wins it and fetches the row.
  EBB_BODY
  template <ebb::team T>
  EBB_FN static ebb::claimed claim(T const& t, ebb::row_table const& table, std::int32_t position, bool last) {
    if (position < 0) return {};  // other lanes of this warp claim
    // First its own way only; what is pinned there goes to staging. When staging is full, too, any way will do.
    int const tries = last ? table.ways : 1;
    int const first = home(table, position);
    for (int k = 0; k < tries; ++k) {
      int const way = (first + k) % table.ways;
      std::uint32_t word = t.load(table.words + way);
      while (!table.is_pinned(word)) {
        if (t.exchange(table.words + way, word, pinned(table, position)) == word) return {way, true};
        word = t.load(table.words + way);
      }
      if (table.format.position(word) == position) return {way, false};
    }
    return {};
  }

 private:
  EBB_FN static int home(ebb::row_table const& table, std::int32_t position) {
    return ebb::onto(ebb::mix(static_cast<std::uint32_t>(position), 0x51ed270bu), table.ways);
  }
  EBB_FN static std::uint32_t pinned(ebb::row_table const& table, std::int32_t position) {
    return table.format.make(position, 0, table.now);
  }
};
static_assert(ebb::row_cache<direct_rows>);

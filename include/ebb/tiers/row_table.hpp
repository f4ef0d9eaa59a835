#pragma once
/// The words of one table of row slots, and what a place does with them.

#include <ebb/orders/eviction.hpp>
#include <ebb/team.hpp>
#include <ebb/tiers/tier_list.hpp>

namespace ebb {

/// One word for each row slot of a request, in `word_format`. A word stamped `now` is pinned (`is_pinned`): within one
/// resolve a word changes at most once, from unpinned to pinned. All zero after admit, resume and truncate. Concurrency: lanes of one
/// team race on the words.
struct row_table {
  std::uint32_t* words;
  int ways;  ///< row slots
  word_format format;
  std::uint32_t now;  ///< stamp of the running resolve
  int steps;          ///< stamps of this table in one step
  /// Where `near`: the words as they were before the resolve, and `tag_of` their positions, four to a word; faster to
  /// search than `words`, which may be the same memory.
  std::uint32_t const* seen = nullptr;
  std::uint32_t const* tags = nullptr;
  bool near = false;
  /// Not 0: words stamped so or later are pinned, too. A prefetch leaves alone what resolves of its step gave out.
  std::uint32_t since = 0;

  EBB_FN bool is_pinned(std::uint32_t word) const {
    std::uint32_t const stamp = format.stamp(word);
    return stamp == now || (since != 0 && stamp >= since);
  }
};
/// What one load of a set brings.
struct alignas(16) four_words {
  std::uint32_t of[4];
};
/// Eight bits that tell most positions apart.
EBB_FN constexpr std::uint32_t tag_of(std::uint32_t position) { return (position ^ position >> 8) & 0xff; }

/// Where a row ends up: its slot, and whether this lane won it and must fetch the row. Slot −1: no room here.
struct claimed {
  int way = -1;
  bool fetch = false;
};

/// A place with row slots: a row cache or staging.
///
/// | expression | returns | meaning |
/// |---|---|---|
/// | `C::kind` | tier_kind | `cache` or `staging` |
/// | `C::exponent_bits` | int | a cache only, 0 to 16: bits of a word it wants besides position and stamp |
/// | `C::find(t, table, position)` | way or −1 | a cache only: a committed row cached earlier; pins it. No claim runs before all lanes have found theirs, so a plain store of the pinned word will do |
/// | `C::claim(t, table, position, last)` | claimed | a slot for a row that no lane found, or the slot that another lane just gave it; with `last`, anything unpinned will do. The lanes of a bundle claim one position together; −1: nothing is wanted, the lane reaches the collectives of its warp |
///
/// Lanes that claim one position must walk the same slots in the same order, looking at each whether it already holds the position with
/// stamp `now`, so that two can never both win. Lanes of a bundle may share the walk, or each take it.
template <class C>
concept row_place = tier<C> && requires(serial_team const t, row_table const& table) {
  { C::claim(t, table, 0, true) } -> std::same_as<claimed>;
};
template <class C>
concept row_cache = row_place<C> && C::exponent_bits >= 0 && C::exponent_bits <= 16 &&
                    requires(serial_team const t, row_table const& table) {
                      { C::find(t, table, 0) } -> std::same_as<int>;
                    };

/// A well-mixed 32-bit hash of a position.
EBB_FN constexpr std::uint32_t mix(std::uint32_t x, std::uint32_t seed) {
  x = (x ^ seed) * 0x9e3779b1u;
  x = (x ^ (x >> 15)) * 0x85ebca77u;
  x = (x ^ (x >> 13)) * 0xc2b2ae3du;
  return x ^ (x >> 16);
}
/// Maps a hash onto 0 … n − 1.
EBB_FN constexpr int onto(std::uint32_t hash, int n) {
  return static_cast<int>((std::uint64_t{hash} * static_cast<std::uint32_t>(n)) >> 32);
}

}  // namespace ebb

#pragma once
/// The row cache: set-associative, two candidate sets of 16 ways, a way is its own row slot.

#include <ebb/capacity.hpp>
#include <ebb/tiers/row_table.hpp>

namespace ebb {

/// A request's fixed cache of single rows in its own frames. A look reads two sets of 64 bytes, whatever the size of
/// the cache. `Order` chooses the victim among the unpinned ways of both sets: `lrfu` (default) or `lru`.
template <class Order>
struct hot_rows {
  static_assert(eviction_order<Order>,
                "ebb policy: the order of hot_rows is not an eviction order; use lru, lrfu or a type with "
                "exponent_bits, key and used");
  static constexpr tier_kind kind = tier_kind::cache;
  static constexpr int exponent_bits = Order::exponent_bits;

  EBB_BODY
  template <team T>
  EBB_FN static int find(T const& t, row_table const& table, std::int32_t position) {
    if (table.ways == 0) return -1;
    pair_of_sets const sets{table, position};
    for (;;) {
      bool changed = false;
      for (int s = 0; s < sets.count; ++s) {
        std::uint32_t words[set_ways];
        t.load_set(table.words + sets.first[s], set_ways, words);
        for (int i = 0; i < set_ways; ++i) {
          if (!holds(table, words[i], position)) continue;
          int const way = sets.first[s] + i;
          if (table.format.stamp(words[i]) == table.now || pin(t, table, way, words[i], position)) return way;
          changed = true;
        }
      }
      if (!changed) return -1;
    }
  }

  EBB_BODY
  template <team T>
  EBB_FN static claimed claim(T const& t, row_table const& table, std::int32_t position, bool last) {
    if (table.ways == 0) return {};
    pair_of_sets const sets{table, position};
    if (!last) return claim_in(t, table, position, sets.first, sets.count, sets.size);
    int const all = (table.ways + set_ways - 1) / set_ways;
    for (int k = 0; k < all; ++k) {
      int const first = (sets.first[0] / set_ways + k) % all * set_ways;
      claimed const c = claim_in(t, table, position, &first, 1, sets.size);
      if (c.way >= 0) return c;
    }
    return {};
  }

 private:
  /// The two sets where a position may be cached; one where the table has no second.
  struct pair_of_sets {
    int first[2];
    int count;
    int size;
    EBB_FN pair_of_sets(row_table const& table, std::int32_t position) {
      int const sets = table.ways < set_ways ? 1 : table.ways / set_ways;
      std::uint32_t const p = static_cast<std::uint32_t>(position);
      int const a = onto(mix(p, 0x5bd1e995u), sets);
      size = table.ways < set_ways ? table.ways : set_ways;
      count = sets > 1 ? 2 : 1;
      first[0] = a * set_ways;
      first[1] = sets > 1 ? (a + 1 + onto(mix(p, 0x27d4eb2fu), sets - 1)) % sets * set_ways : 0;
    }
  };

  EBB_FN static bool holds(row_table const& table, std::uint32_t word, std::int32_t position) {
    return table.format.stamp(word) != 0 && table.format.position(word) == position;
  }
  EBB_BODY
  template <team T>
  EBB_FN static bool pin(T const& t, row_table const& table, int way, std::uint32_t word, std::int32_t position) {
    return t.cas(table.words + way, word,
                 table.format.make(position, Order::used(table.format, word, table.now), table.now));
  }
  /// Claims the least unpinned way of the given sets, an empty one before any other; a failed CAS starts again.
  EBB_BODY
  template <team T>
  EBB_FN static claimed claim_in(T const& t, row_table const& table, std::int32_t position, int const* first, int sets,
                                 int size) {
    for (;;) {
      int victim = -1;
      std::uint32_t victim_word = 0;
      std::uint32_t least = 0;
      for (int s = 0; s < sets; ++s) {
        std::uint32_t words[set_ways];
        t.load_set(table.words + first[s], set_ways, words);
        for (int i = 0; i < set_ways; ++i) {
          if (i >= size) break;
          std::uint32_t const stamp = table.format.stamp(words[i]);
          if (stamp == table.now) {
            if (table.format.position(words[i]) == position) return {first[s] + i, false};
            continue;
          }
          std::uint32_t const key = stamp == 0 ? 0 : 1 + Order::key(table.format, words[i], table.steps);
          if (victim >= 0 && key >= least) continue;
          victim = first[s] + i;
          victim_word = words[i];
          least = key;
        }
      }
      if (victim < 0) return {};
      if (t.cas(table.words + victim, victim_word, table.format.make(position, 0, table.now))) return {victim, true};
    }
  }
};
static_assert(row_cache<hot_rows<lru>> && row_cache<hot_rows<lrfu>>);

}  // namespace ebb

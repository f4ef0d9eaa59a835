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
    pair_of_sets const sets{table, position};
    word_format const f = table.format;
    std::uint32_t held = 0;
    int way = -1;
    if (table.near) [[likely]] {
      way = find_near(t, table, sets, position, held);
    } else {
      way = find_far(t, table, sets, position, held);
    }
    // Every lane that pins this word writes the same.
    if (way >= 0 && f.stamp(held) != table.now)
      t.store(table.words + way, f.make(position, Order::used(f, held, table.now), table.now));
    return way;
  }

  EBB_BODY
  template <team T>
  EBB_FN static claimed claim(T const& t, row_table const& table, std::int32_t position, bool last) {
    if (table.ways == 0) return {};
    pair_of_sets const sets{table, position};
    if (!last) return claim_in(t, table, position, sets.first, sets.count, sets.size);
    int const all = (table.ways + set_ways - 1) / set_ways;
    claimed out{};
    EBB_ROLL
    for (int k = 0; k < all && t.some(position >= 0 && out.way < 0); ++k) {
      int const first = (sets.first[0] / set_ways + k) % all * set_ways;
      claimed const c = claim_in(t, table, out.way < 0 ? position : -1, {first, 0}, 1, sets.size);
      if (c.way >= 0) out = c;
    }
    return out;
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
      int const b = a + 1 + onto(mix(p, 0x27d4eb2fu), sets - 1);
      first[1] = (b < sets ? b : b - sets) * set_ways;  // of one set: the same
    }
  };

  EBB_FN static std::uint32_t const* aligned(std::uint32_t const* words) {
    return static_cast<std::uint32_t const*>(__builtin_assume_aligned(words, 4 * sizeof *words));
  }
  /// True for words that hold a position.
  struct holds {
    std::uint32_t key, others;
    EBB_FN holds(word_format f, std::int32_t position)
        : key{f.make(position, 0, 0)}, others{(1u << (32 - f.position_bits)) - 1} {}
    /// The empty word holds nothing.
    EBB_FN bool operator()(std::uint32_t word) const { return word - key - 1 < others; }
  };

  /// Sixteen tags are compared with twelve operations; the words of those that match decide.
  EBB_BODY
  template <team T>
  EBB_FN static int find_near(T const& t, row_table const& table, pair_of_sets const& sets, std::int32_t position,
                              std::uint32_t& held) {
    holds const is{table.format, position};
    std::uint32_t const pattern = tag_of(static_cast<std::uint32_t>(position)) * 0x01010101u;
    std::uint32_t matches = 0;  // bit 8 · b + 4 · s + q: byte b of quarter q of set s
    EBB_UNROLL
    for (int s = 0; s < 2; ++s) {
      four_words const tags = *reinterpret_cast<four_words const*>(table.tags + sets.first[s] / 4);
      EBB_UNROLL
      for (int q = 0; q < 4; ++q) {
        std::uint32_t const x = tags.of[q] ^ pattern;
        matches |= ((x - 0x01010101u) & ~x & 0x80808080u) >> (7 - 4 * s - q);  // bytes of zero, and some behind them
      }
    }
    while (matches != 0) {
      int const bit = t.lowest(matches);
      matches &= matches - 1;
      int const way = ((bit & 4) != 0 ? sets.first[1] : sets.first[0]) + bit % 4 * 4 + bit / 8;
      held = t.load(table.seen + way);
      if (is(held)) return way;
    }
    return -1;
  }
  EBB_BODY
  template <team T>
  EBB_FN static int find_far(T const& t, row_table const& table, pair_of_sets const& sets, std::int32_t position,
                             std::uint32_t& held) {
    holds const is{table.format, position};
    int way = -1;
    for (int s = 0; s < sets.count && way < 0; ++s) {
      int const first = s == 0 ? sets.first[0] : sets.first[1];
      EBB_ROLL
      for (int k = 0; k < set_ways; k += 4) {
        std::uint32_t words[4];
        t.load_set(aligned(table.words + first + k), 4, words);
        EBB_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (!is(words[i])) continue;
          way = first + k + i;
          held = words[i];
        }
      }
    }
    return way;
  }

  /// Claims the least unpinned way of the given sets, an empty one before any other. The lanes of a bundle look at a
  /// quarter of a set each, once: a failed exchange tells what is there now, and the next least is tried.
  EBB_BODY
  template <team T>
  EBB_FN static claimed claim_in(T const& t, row_table const& table, std::int32_t position, int const (&first)[2],
                                 int sets, int size) {
    constexpr std::uint32_t none = ~0u;
    constexpr int quarters = 8 / T::bundle;
    static_assert(quarters * T::bundle == 8);
    std::uint32_t ranks[4 * quarters];  // key and place: 0 a way that holds the position already, 1 an empty one, …
    std::uint32_t words[4 * quarters];
    EBB_UNROLL
    for (int q = 0; q < quarters; ++q) {
      int const k = q * T::bundle + t.bundle_rank();
      bool const look = position >= 0 && k < 4 * sets;
      EBB_UNROLL
      for (int i = 0; i < 4; ++i) words[4 * q + i] = 0;
      if (look) t.load_set(aligned(table.words + (k < 4 ? first[0] : first[1]) + k % 4 * 4), 4, words + 4 * q);
      EBB_UNROLL
      for (int i = 0; i < 4; ++i) {
        bool const is_way = look && k % 4 * 4 + i < size;
        std::uint32_t const of_way = rank(table, words[4 * q + i], position, k * 4 + i);
        ranks[4 * q + i] = is_way ? of_way : none;
      }
    }
    claimed out{};
    bool open = position >= 0;
    EBB_ROLL
    while (t.some(open)) {
      std::uint32_t best = none, word = 0;
      EBB_UNROLL
      for (int i = 0; i < 4 * quarters; ++i) {
        if (ranks[i] >= best) continue;
        best = ranks[i];
        word = words[i];
      }
      std::uint32_t const least = t.least(best);
      int const place = static_cast<int>(least % 32);
      int const way = (place < set_ways ? first[0] : first[1]) + place % set_ways;
      bool won = false;
      bool const here = open && least != none && least >= 32;
      if (here && best == least) {
        std::uint32_t const found = t.exchange(table.words + way, word, table.format.make(position, 0, table.now));
        std::uint32_t const changed = rank(table, found, position, place);
        won = found == word;
        EBB_UNROLL
        for (int i = 0; i < 4 * quarters; ++i) ranks[i] = ranks[i] == least ? changed : ranks[i];
      }
      won = t.least(won ? 0 : 1) == 0;
      if (!open) continue;
      if (least != none && (won || !here)) out = {way, won};
      open = here && !won;
    }
    return out;
  }
  /// The order in which a claim tries ways: 0 one that holds the position already, then an empty one, then by key; a way
  /// that another row has pinned comes never.
  EBB_FN static std::uint32_t rank(row_table const& table, std::uint32_t word, std::int32_t position, int place) {
    constexpr std::uint32_t most = (1u << 27) - 4;
    std::uint32_t const stamp = table.format.stamp(word);
    std::uint32_t const by_order = Order::key(table.format, word, table.steps);
    bool const pinned = table.is_pinned(word);
    bool const same = table.format.position(word) == position;
    std::uint32_t key = 2 + (by_order < most ? by_order : most);
    key = stamp == 0 ? 1 : key;
    key = pinned ? 0 : key;
    std::uint32_t const rank = key * 32 + static_cast<std::uint32_t>(place);
    return (pinned & !same) ? ~0u : rank;  // no branches: lanes have words of all kinds
  }
};
static_assert(row_cache<hot_rows<lru>> && row_cache<hot_rows<lrfu>>);

}  // namespace ebb

#pragma once
/// Eviction orders of the row cache: small pure types that rank the words of a set.

#include <ebb/config.hpp>

#include <concepts>
#include <cstdint>

namespace ebb {

/// One way of the row cache: `[position | exponent | stamp]`, low bits last. Stamp 0 is an empty way; a way whose stamp
/// is that of the running resolve is pinned.
struct word_format {
  int position_bits = 20;
  int exponent_bits = 0;

  EBB_FN constexpr int stamp_bits() const { return 32 - position_bits - exponent_bits; }
  EBB_FN constexpr std::uint32_t last_stamp() const { return (1u << stamp_bits()) - 1; }
  EBB_FN constexpr std::uint32_t stamp(std::uint32_t word) const { return word & last_stamp(); }
  EBB_FN constexpr std::uint32_t exponent(std::uint32_t word) const {
    return (word >> stamp_bits()) & ((1u << exponent_bits) - 1);
  }
  EBB_FN constexpr std::int32_t position(std::uint32_t word) const {
    return static_cast<std::int32_t>(word >> (32 - position_bits));
  }
  EBB_FN constexpr std::uint32_t make(std::int32_t position, std::uint32_t exponent, std::uint32_t stamp) const {
    return (static_cast<std::uint32_t>(position) << (32 - position_bits)) | (exponent << stamp_bits()) | stamp;
  }
};

/// An eviction order ranks an unpinned way; the least key is evicted first, ties by place in the probe list.
///
/// | expression | returns | meaning |
/// |---|---|---|
/// | `E::exponent_bits` | int | bits of a word that the order keeps for itself |
/// | `E::key(f, word, steps)` | uint32 | rank of a non-empty way, all from 2^27 − 4 on are equal; `steps`: resolves of this table in one step |
/// | `E::used(f, word, now)` | uint32 | the exponent after one more use at stamp `now` |
template <class E>
concept eviction_order = requires(word_format f, std::uint32_t w, int steps) {
  { E::exponent_bits } -> std::convertible_to<int>;
  { E::key(f, w, steps) } -> std::same_as<std::uint32_t>;
  { E::used(f, w, w) } -> std::same_as<std::uint32_t>;
};

/// Least recently used. Choose it where selections drift steadily and repeats mean little.
struct lru {
  static constexpr int exponent_bits = 0;
  EBB_FN static constexpr std::uint32_t key(word_format f, std::uint32_t word, int) { return f.stamp(word); }
  EBB_FN static constexpr std::uint32_t used(word_format, std::uint32_t, std::uint32_t) { return 0; }
};
static_assert(eviction_order<lru>);

/// Recency plus eight steps per doubling of uses: a row used often outlives rows that were used once, later. On the
/// shipped recordings it fetches fewer rows than `lru`, 0.2 to 15 % (`benchmarks/orders`), so it is the default. The use
/// count is a Morris counter of two bits: it rises from e with probability 2^-e, decided by a hash of position and stamp.
struct lrfu {
  static constexpr int exponent_bits = 2;
  EBB_FN static constexpr std::uint32_t key(word_format f, std::uint32_t word, int steps) {
    return f.stamp(word) + 8u * static_cast<std::uint32_t>(steps) * f.exponent(word);
  }
  EBB_FN static constexpr std::uint32_t used(word_format f, std::uint32_t word, std::uint32_t now) {
    std::uint32_t const e = f.exponent(word);
    std::uint32_t hash = (static_cast<std::uint32_t>(f.position(word)) * 0x9e3779b1u) ^ (now * 0x85ebca77u);
    hash = (hash ^ (hash >> 15)) * 0xc2b2ae3du;
    bool const rises = e < 3 && ((hash >> 16) & ((1u << e) - 1)) == 0;
    return e + (rises ? 1u : 0u);
  }
};
static_assert(eviction_order<lrfu>);

}  // namespace ebb

#pragma once
/// Lanes that run one body together, and all they may do besides pure arithmetic.

#include <ebb/config.hpp>

#include <atomic>
#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>

namespace ebb {

/// What `prefix` answers: lanes of lower rank that voted true, and all lanes that did.
struct vote {
  int before;
  int all;
};

/// What one lane holds of a row: `Bytes` bytes, aligned to as many.
template <int Bytes>
struct alignas(Bytes) piece {
  unsigned char bytes[Bytes];
};

/// Lanes that run one body together, in one block or in several of equal width that each have their own `shared`. Lanes of a block that run
/// in lockstep are a warp; neighbours in it form bundles. Every lane of a team must reach every collective (`sync`, `prefix`, `any`), every
/// lane of a block or warp those of the block or warp; everything a lane wrote before a barrier is visible to every lane it synchronises
/// with after it.
///
/// | expression | returns | meaning |
/// |---|---|---|
/// | `T::width` | int | number of lanes, a constant |
/// | `t.rank()` | int | this lane, 0 … width − 1 |
/// | `T::blocks`, `T::block_width` | int | blocks of the team and lanes of each, constants |
/// | `t.block()`, `t.block_rank()` | int | this lane's block, and the lane among those of it |
/// | `t.sync()` | – | collective: barrier |
/// | `t.sync_or_leave(p)` | – | collective: barrier; a block whose lanes all have p true need not wait, and does not look at what others wrote |
/// | `t.block_sync()` | – | collective of the block: barrier |
/// | `t.add_all(c, n)` | – | collective of the block: adds every lane's n to a 64-bit counter, as by `add` |
/// | `t.prefix(p)` | vote | collective: lanes before this one, and in all, with p true |
/// | `t.any(p)` | bool | collective: some lane has p true |
/// | `T::bundle` | int | lanes of a bundle, a constant that divides the width of a block |
/// | `t.bundle_rank()` | int | this lane among those of its bundle |
/// | `t.least(v)` | uint32 | collective of the warp: the least v of the lanes of this bundle |
/// | `t.some(p)` | bool | collective of the warp: some lane of it has p true |
/// | `t.load(w)` | uint32 | relaxed atomic read of a word other lanes may change |
/// | `t.store(w, v)` | – | relaxed atomic write |
/// | `t.exchange(w, old, now)` | uint32 | relaxed compare-and-swap; the word that was there: it took place if that is `old` |
/// | `t.add(c, n)` | value before | relaxed fetch-and-add on a 32- or 64-bit counter |
/// | `t.lowest(bits)` | int | place of the lowest bit that is set; one is |
/// | `t.load_set(w, n, out)` | – | n words of a set, each as by `load` |
/// | `t.template read<B>(held[K], from[K])` | – | K pieces of B bytes (1, 2, 4, 8 or 16, aligned to B), in flight together, streaming where the space can; a null `from` is skipped |
/// | `t.template write<B>(to[K], held[K])` | – | the same, outwards; a null `to` is skipped |
/// | `t.template copy<B>(to, from)`, `copy<B>(to[K], from[K])` | – | one piece, or K of them: all are read before the first is written; a null `from` is skipped |
template <class T>
concept team = requires(T const t, bool p, std::uint32_t* w, std::uint32_t v, std::uint64_t* c, piece<16> (&held)[4],
                        std::byte* const (&to)[4], std::byte const* const (&from)[4]) {
  { T::width } -> std::convertible_to<int>;
  { T::blocks } -> std::convertible_to<int>;
  { T::block_width } -> std::convertible_to<int>;
  { t.rank() } -> std::same_as<int>;
  { t.block() } -> std::same_as<int>;
  { t.block_rank() } -> std::same_as<int>;
  { t.sync() } -> std::same_as<void>;
  { t.sync_or_leave(p) } -> std::same_as<void>;
  { t.block_sync() } -> std::same_as<void>;
  { t.add_all(c, v) } -> std::same_as<void>;
  { T::bundle } -> std::convertible_to<int>;
  { t.bundle_rank() } -> std::same_as<int>;
  { t.least(v) } -> std::same_as<std::uint32_t>;
  { t.some(p) } -> std::same_as<bool>;
  { t.lowest(v) } -> std::same_as<int>;
  { t.prefix(p) } -> std::same_as<vote>;
  { t.any(p) } -> std::same_as<bool>;
  { t.load(w) } -> std::same_as<std::uint32_t>;
  { t.store(w, v) } -> std::same_as<void>;
  { t.exchange(w, v, v) } -> std::same_as<std::uint32_t>;
  { t.add(w, v) } -> std::same_as<std::uint32_t>;
  { t.add(c, std::uint64_t{1}) } -> std::same_as<std::uint64_t>;
  t.load_set(w, 4, w);
  t.template read<16>(held, from);
  t.template write<16>(to, held);
  t.template copy<16>(to[0], from[0]);
  t.template copy<16>(to, from);
};

/// What all host teams have in common: bundles of one lane, and words through std::atomic_ref, so that the thread
/// sanitizer sees what a device would do.
struct host_words {
  static constexpr int bundle = 1;
  int bundle_rank() const { return 0; }
  std::uint32_t least(std::uint32_t v) const { return v; }
  bool some(bool p) const { return p; }
  int lowest(std::uint32_t bits) const { return std::countr_zero(bits); }
  std::uint32_t load(std::uint32_t const* w) const {
    return std::atomic_ref<std::uint32_t>{*const_cast<std::uint32_t*>(w)}.load(std::memory_order_relaxed);
  }
  void store(std::uint32_t* w, std::uint32_t v) const {
    std::atomic_ref<std::uint32_t>{*w}.store(v, std::memory_order_relaxed);
  }
  std::uint32_t exchange(std::uint32_t* w, std::uint32_t old, std::uint32_t now) const {
    std::atomic_ref<std::uint32_t>{*w}.compare_exchange_strong(old, now, std::memory_order_relaxed);
    return old;
  }
  template <std::unsigned_integral I>
  I add(I* counter, I n) const {
    return std::atomic_ref<I>{*counter}.fetch_add(n, std::memory_order_relaxed);
  }
  void load_set(std::uint32_t const* words, int n, std::uint32_t* out) const {
    for (int i = 0; i < n; ++i) out[i] = load(words + i);
  }
  template <int Bytes, int K>
  void read(piece<Bytes> (&held)[K], std::byte const* const (&from)[K]) const {
    for (int k = 0; k < K; ++k) {
      if (from[k] != nullptr) std::memcpy(held[k].bytes, from[k], Bytes);
    }
  }
  template <int Bytes, int K>
  void write(std::byte* const (&to)[K], piece<Bytes> const (&held)[K]) const {
    for (int k = 0; k < K; ++k) {
      if (to[k] != nullptr) std::memcpy(to[k], held[k].bytes, Bytes);
    }
  }
  template <int Bytes>
  void copy(std::byte* to, std::byte const* from) const {
    std::memcpy(to, from, Bytes);
  }
  template <int Bytes, int K>
  void copy(std::byte* const (&to)[K], std::byte const* const (&from)[K]) const {
    for (int k = 0; k < K; ++k) {
      if (from[k] != nullptr) std::memcpy(to[k], from[k], Bytes);
    }
  }
  void add_all(std::uint64_t* counter, std::uint32_t n) const {
    if (n > 0) add(counter, std::uint64_t{n});
  }
};

/// One lane: the body as plain serial code.
struct serial_team : host_words {
  static constexpr int width = 1, blocks = 1, block_width = 1;
  int rank() const { return 0; }
  int block() const { return 0; }
  int block_rank() const { return 0; }
  void sync() const {}
  void sync_or_leave(bool) const {}
  void block_sync() const {}
  vote prefix(bool p) const { return {0, p}; }
  bool any(bool p) const { return p; }
};
static_assert(team<serial_team>);

struct no_shared {};
/// The type a body wants its team to share: `typename Body::shared`, or nothing.
template <class Body>
struct shared_of {
  using type = no_shared;
};
template <class Body>
  requires requires { typename Body::shared; }
struct shared_of<Body> {
  using type = typename Body::shared;
};

/// Runs `body` for item `item`; `shared` is uninitialised memory that the team's lanes have in common.
EBB_BODY
template <class Body, team T, class Shared>
EBB_FN void call(Body const& body, T const& t, int item, Shared& shared) {
  if constexpr (std::same_as<Shared, no_shared>) {
    body(t, item);
  } else {
    body(t, item, shared);
  }
}

}  // namespace ebb

#pragma once
/// Lanes that run one body together, and all they may do besides pure arithmetic.

#include <ebb/config.hpp>

#include <atomic>
#include <concepts>
#include <cstdint>
#include <cstring>

namespace ebb {

/// What `prefix` answers: lanes of lower rank that voted true, and all lanes that did.
struct vote {
  int before;
  int all;
};

/// Lanes that run one body together. Every lane of a team must reach every collective (`sync`, `prefix`, `any`); everything a lane wrote
/// before a collective is visible to every lane of the team after it.
///
/// | expression | returns | meaning |
/// |---|---|---|
/// | `T::width` | int | number of lanes, a constant |
/// | `t.rank()` | int | this lane, 0 … width − 1 |
/// | `t.sync()` | – | collective: barrier |
/// | `t.prefix(p)` | vote | collective: lanes before this one, and in all, with p true |
/// | `t.any(p)` | bool | collective: some lane has p true |
/// | `t.load(w)` | uint32 | relaxed atomic read of a word other lanes may change |
/// | `t.cas(w, old, now)` | bool | relaxed compare-and-swap, true if it took place |
/// | `t.add(c, n)` | value before | relaxed fetch-and-add on a 32- or 64-bit counter |
/// | `t.load_set(w, n, out)` | – | n words of a set, each as by `load` |
/// | `t.template copy<B>(to, from)` | – | B bytes (1, 2, 4, 8 or 16, both aligned to B), streaming where the space can |
/// | `t.template copy<B>(to[K], from[K])` | – | K such pieces in flight together, arrays of pointers; a null `from` is skipped |
template <class T>
concept team = requires(T const t, bool p, std::uint32_t* w, std::uint32_t v, std::uint64_t* c, std::byte* to,
                        std::byte const* from, std::byte* const (&several)[4], std::byte const* const (&sources)[4]) {
  { T::width } -> std::convertible_to<int>;
  { t.rank() } -> std::same_as<int>;
  { t.sync() } -> std::same_as<void>;
  { t.prefix(p) } -> std::same_as<vote>;
  { t.any(p) } -> std::same_as<bool>;
  { t.load(w) } -> std::same_as<std::uint32_t>;
  { t.cas(w, v, v) } -> std::same_as<bool>;
  { t.add(w, v) } -> std::same_as<std::uint32_t>;
  { t.add(c, std::uint64_t{1}) } -> std::same_as<std::uint64_t>;
  t.load_set(w, 4, w);
  t.template copy<16>(to, from);
  t.template copy<16>(several, sources);
};

/// The word operations of every host team: std::atomic_ref, so that the thread sanitizer sees what a device would do.
struct host_words {
  std::uint32_t load(std::uint32_t const* w) const {
    return std::atomic_ref<std::uint32_t>{*const_cast<std::uint32_t*>(w)}.load(std::memory_order_relaxed);
  }
  bool cas(std::uint32_t* w, std::uint32_t old, std::uint32_t now) const {
    return std::atomic_ref<std::uint32_t>{*w}.compare_exchange_strong(old, now, std::memory_order_relaxed);
  }
  template <std::unsigned_integral I>
  I add(I* counter, I n) const {
    return std::atomic_ref<I>{*counter}.fetch_add(n, std::memory_order_relaxed);
  }
  void load_set(std::uint32_t const* words, int n, std::uint32_t* out) const {
    for (int i = 0; i < n; ++i) out[i] = load(words + i);
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
};

/// One lane: the body as plain serial code.
struct serial_team : host_words {
  static constexpr int width = 1;
  int rank() const { return 0; }
  void sync() const {}
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

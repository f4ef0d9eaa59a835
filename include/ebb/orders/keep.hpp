#pragma once
/// Keep orders: which history stays on the GPU when not all of it can. One order, revoked from its bottom and refilled
/// from its top.

#include <ebb/config.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace ebb {

/// What a keep order sees of one request that could give (revoke) or get (refill) pages.
struct holder {
  std::int64_t admitted;  ///< ordinal of its admission: smaller is older
  int pages;              ///< pages of its history
  int limit;              ///< pages it could give, or get; with `wants_uses` no more than are wanted
  std::span<std::uint32_t const>
      uses;  ///< with `wants_uses`: uses of exactly those pages, in the order in which they would go or come
};

/// A keep order.
///
/// | expression | returns | meaning |
/// |---|---|---|
/// | `K::wants_uses` | bool | pages are ranked by how often they were selected, not by age; the resolver then counts |
/// | `K::revoke(holders, n, quota)` | – | quota[i] = how many pages holders[i] gives, n in all (or all there are), never above its limit |
/// | `K::refill(holders, n, quota)` | – | the same for pages handed back |
///
/// Within a request pages go oldest first and come back newest first; with `wants_uses` least used first and most used first, ties by age.
template <class K>
concept keep_order = requires(std::span<holder const> h, std::span<int> quota) {
  { K::wants_uses } -> std::convertible_to<bool>;
  K::revoke(h, 1, quota);
  K::refill(h, 1, quota);
};

/// Splits n in proportion to the limits, largest remainders first, ties to the older request. Never above a limit.
inline void share_in_proportion(std::span<holder const> h, int n, std::span<int> quota) {
  std::int64_t total = 0;
  for (auto const& one : h) total += one.limit;
  n = static_cast<int>(std::min<std::int64_t>(n, total));
  std::vector<std::size_t> by_remainder(h.size());
  int given = 0;
  for (std::size_t i = 0; i < h.size(); ++i) {
    quota[i] = total == 0 ? 0 : static_cast<int>(std::int64_t{n} * h[i].limit / total);
    given += quota[i];
    by_remainder[i] = i;
  }
  std::sort(by_remainder.begin(), by_remainder.end(), [&](std::size_t a, std::size_t b) {
    std::int64_t const ra = std::int64_t{n} * h[a].limit % total;
    std::int64_t const rb = std::int64_t{n} * h[b].limit % total;
    return ra != rb ? ra > rb : h[a].admitted < h[b].admitted;
  });
  for (std::size_t k = 0; given < n; ++k, ++given) ++quota[by_remainder[k]];
}

/// Keeps the newest history of everybody: the oldest pages go first, in proportion to holdings. The published order,
/// and the default: nobody loses more than others, and it needs no counts.
struct newest {
  static constexpr bool wants_uses = false;
  static void revoke(std::span<holder const> h, int n, std::span<int> quota) { share_in_proportion(h, n, quota); }
  static void refill(std::span<holder const> h, int n, std::span<int> quota) { share_in_proportion(h, n, quota); }
};
static_assert(keep_order<newest>);

/// Keeps the pages that were selected most, whoever holds them. Choose it for long histories at partial residency: on
/// recorded 32 K selections it fetched 23 to 60 % fewer rows than `newest` behind the same hot rows; at 8 K it makes no
/// difference. Costs a counter per page and a look at every candidate page when something moves.
struct most_selected {
  static constexpr bool wants_uses = true;
  static void revoke(std::span<holder const> h, int n, std::span<int> quota) {
    merge(h, n, quota, [](std::uint32_t a, std::uint32_t b) { return a < b; });
  }
  static void refill(std::span<holder const> h, int n, std::span<int> quota) {
    merge(h, n, quota, [](std::uint32_t a, std::uint32_t b) { return a > b; });
  }

 private:
  /// Takes n pages, always the best head of all requests' lists, ties to the older request.
  template <class Better>
  static void merge(std::span<holder const> h, int n, std::span<int> quota, Better better) {
    auto const head = [&](std::size_t i) { return h[i].uses[static_cast<std::size_t>(quota[i])]; };
    std::vector<std::size_t> heap;
    auto const later = [&](std::size_t a, std::size_t b) {
      return head(a) != head(b) ? better(head(b), head(a)) : h[a].admitted > h[b].admitted;
    };
    for (std::size_t i = 0; i < h.size(); ++i) {
      quota[i] = 0;
      if (h[i].limit > 0) heap.push_back(i);
    }
    std::make_heap(heap.begin(), heap.end(), later);
    for (; n > 0 && !heap.empty(); --n) {
      std::pop_heap(heap.begin(), heap.end(), later);
      std::size_t const i = heap.back();
      if (++quota[i] < h[i].limit) {
        std::push_heap(heap.begin(), heap.end(), later);
      } else {
        heap.pop_back();
      }
    }
  }
};
static_assert(keep_order<most_selected>);

/// Keeps whole requests: the youngest gives all its loans before the next one gives any, and the oldest is refilled
/// first. Choose it where few requests should run at full speed rather than all at half.
struct whole_requests {
  static constexpr bool wants_uses = false;
  static void revoke(std::span<holder const> h, int n, std::span<int> quota) {
    one_by_one(h, n, quota, [](holder const& a, holder const& b) { return a.admitted > b.admitted; });
  }
  static void refill(std::span<holder const> h, int n, std::span<int> quota) {
    one_by_one(h, n, quota, [](holder const& a, holder const& b) { return a.admitted < b.admitted; });
  }

 private:
  template <class First>
  static void one_by_one(std::span<holder const> h, int n, std::span<int> quota, First first) {
    std::vector<std::size_t> turn(h.size());
    std::iota(turn.begin(), turn.end(), std::size_t{0});
    std::sort(turn.begin(), turn.end(), [&](std::size_t a, std::size_t b) { return first(h[a], h[b]); });
    for (std::size_t i : turn) {
      quota[i] = std::min(n, h[i].limit);
      n -= quota[i];
    }
  }
};
static_assert(keep_order<whole_requests>);

}  // namespace ebb

#pragma once
// A keep order of one's own: short histories stay whole. The longest request gives up its loans before the next one
// gives any, and the shortest is refilled first. Interactive sessions keep full speed while one long document pays.

#include <ebb/orders/keep.hpp>

struct shortest_first {
  // True would have the resolver count which pages are selected, and rank them by that rather than by age.
  static constexpr bool wants_uses = false;

  // `holders` are the requests that have loans, `limit` of them each. quota[i]: how many pages holders[i] gives.
  static void revoke(std::span<ebb::holder const> holders, int n, std::span<int> quota) {
    in_turn(holders, n, quota, [](ebb::holder const& a, ebb::holder const& b) { return before(b, a); });
  }
  // The same order from its other end: were the two to disagree, a page would come back only to go again.
  static void refill(std::span<ebb::holder const> holders, int n, std::span<int> quota) {
    in_turn(holders, n, quota, before);
  }

 private:
  // Ties by admission: every rank of a tensor-parallel group must decide the same.
  static bool before(ebb::holder const& a, ebb::holder const& b) {
    return a.pages != b.pages ? a.pages < b.pages : a.admitted < b.admitted;
  }
  template <class Before>
  static void in_turn(std::span<ebb::holder const> holders, int n, std::span<int> quota, Before first) {
    std::vector<std::size_t> turn(holders.size());
    std::iota(turn.begin(), turn.end(), std::size_t{0});
    std::sort(turn.begin(), turn.end(), [&](std::size_t a, std::size_t b) { return first(holders[a], holders[b]); });
    for (std::size_t const i : turn) {
      quota[i] = std::min(n, holders[i].limit);
      n -= quota[i];
    }
  }
};
static_assert(ebb::keep_order<shortest_first>);

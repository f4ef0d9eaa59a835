#pragma once
/// Backup orders: when committed rows get their host copy.

#include <concepts>

namespace ebb {

/// Every page once it is full. The default: pages are written to the host once, and a page that leaves the tail has its
/// copy already.
struct sealed_pages {
  static constexpr bool after_each_step = false;
  static constexpr bool when_sealed = true;
};

/// The rows of each step at once. Choose it where a request may be preempted at any moment and must leave within a
/// step: more and smaller copies.
struct each_step {
  static constexpr bool after_each_step = true;
  static constexpr bool when_sealed = true;
};

/// Only when a page is about to lose its frame. Choose it where everything usually stays resident: no link traffic
/// until pages move, but revocation then waits for the copies.
struct on_revoke {
  static constexpr bool after_each_step = false;
  static constexpr bool when_sealed = false;
};

/// A backup order says what end_step copies: rows of every step, pages as they fill, or nothing.
template <class B>
concept backup_order = requires {
  { B::after_each_step } -> std::convertible_to<bool>;
  { B::when_sealed } -> std::convertible_to<bool>;
};

}  // namespace ebb

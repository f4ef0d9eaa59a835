#pragma once
/// The tier of loans: history pages in spare frames.

#include <ebb/tiers/tier_list.hpp>

namespace ebb {

/// Committed pages in frames that nobody requires. They are found by the one map load that also finds required pages,
/// so the tier has no `find` of its own; naming it lets the allocator lend. Leave it out for a fixed budget per
/// request.
struct lent_pages {
  static constexpr tier_kind kind = tier_kind::lent;
};

}  // namespace ebb

#pragma once
/// The backing tier: complete history in host memory.

#include <ebb/ids.hpp>
#include <ebb/tiers/tier_list.hpp>

namespace ebb {

/// A tier that rows are fetched from: `fetch(entry, offset, rows_per_page)` is the row's index in its store, or −1 for
/// "not here", asked in list order.
template <class T>
concept backing_tier = tier<T> && requires(map_entry entry) {
  { T::fetch(entry, 0, 64) } -> std::convertible_to<std::int64_t>;
};

/// Where a missing row may be fetched: its host page, if it has one.
struct host_pages {
  static constexpr tier_kind kind = tier_kind::backing;

  EBB_FN static std::int64_t fetch(map_entry entry, int offset, int rows_per_page) {
    return entry.host == host_page_id::none ? -1 : std::int64_t{index(entry.host)} * rows_per_page + offset;
  }
};
static_assert(backing_tier<host_pages>);

}  // namespace ebb

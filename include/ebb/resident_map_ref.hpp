#pragma once
/// The logical-to-physical map as bodies see it.

#include <ebb/ids.hpp>
#include <ebb/policy.hpp>

namespace ebb {

/// A view of the resident map: entry[slot][page]. One 8-byte load answers where a page is and where its host copy is.
/// Concurrency: written by begin_step's body only; read by everything that is ordered after it.
template <policy P>
struct resident_map_ref {
  map_entry* entries;
  int pages;  ///< pages per request

  EBB_FN map_entry const& at(int slot, std::int64_t page) const { return entries[std::int64_t{slot} * pages + page]; }
};

}  // namespace ebb

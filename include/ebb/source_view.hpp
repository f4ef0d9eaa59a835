#pragma once
/// One source's rows on the GPU and in the host store, as bodies see them.

#include <ebb/rows.hpp>

#include <cstddef>

namespace ebb {

/// Rows of one source. Address a is at `base + layout.in_row_offset(a)` and `base + layout.page_end_offset(a)`, staged
/// rows included.
struct source_view {
  std::byte* base;     ///< frame 0
  page_layout layout;  ///< of the arena; its stride may be the engine's
  std::byte* host;     ///< host page 0
  page_layout host_layout;
  std::int32_t first_staged;  ///< row addresses from here on are staging
  std::int32_t staging;       ///< row address of the first staging slot of this source's plane, a whole page
  std::int32_t ordinal;       ///< local number of the source

  EBB_FN bool is_staged(std::int32_t address) const { return address >= first_staged; }
};

}  // namespace ebb

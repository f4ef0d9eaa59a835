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

/// Copies one row's segments; lane `part` of `parts` takes chunks part, part + parts, …
EBB_BODY
template <int InRow, int AtPageEnd, int InRowWidth, int PageEndWidth, class T>
EBB_FN void copy_row(T const& t, std::byte* to, page_layout const& to_layout, std::int64_t to_row,
                     std::byte const* from, page_layout const& from_layout, std::int64_t from_row, int part,
                     int parts) {
  std::byte* const a = to + to_layout.in_row_offset(to_row);
  std::byte const* const b = from + from_layout.in_row_offset(from_row);
  for (int c = part; c < InRow / InRowWidth; c += parts)
    t.template copy<InRowWidth>(a + c * InRowWidth, b + c * InRowWidth);
  if constexpr (AtPageEnd > 0) {
    std::byte* const x = to + to_layout.page_end_offset(to_row);
    std::byte const* const y = from + from_layout.page_end_offset(from_row);
    for (int c = part; c < AtPageEnd / PageEndWidth; c += parts)
      t.template copy<PageEndWidth>(x + c * PageEndWidth, y + c * PageEndWidth);
  }
}

}  // namespace ebb

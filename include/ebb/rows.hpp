#pragma once
/// Where a row lies: segments, pages, strides, 64-bit offsets.

#include <ebb/config.hpp>

#include <cstdint>
#include <limits>

namespace ebb {

/// The bytes of one KV row: a segment stored row after row, and one stored for the whole page behind them (scales of
/// FP8 and FP4 rows).
struct row_segments {
  int in_row;
  int at_page_end = 0;
  EBB_FN constexpr int total() const { return in_row + at_page_end; }
};

/// The widest power of two up to 16 that divides all of `bytes`: what one lane copies at once.
constexpr int copy_width(std::int64_t bytes) {
  int width = 16;
  while (bytes % width != 0) width /= 2;
  return width;
}

/// One page of one source: `rows` in-row segments, then `rows` page-end segments, then padding up to a multiple of
/// `multiple`.
struct page_layout {
  int rows = 0;   ///< a power of two
  int shift = 0;  ///< its logarithm
  row_segments row{};
  std::int64_t stride = 0;  ///< bytes from one page to the next

  constexpr page_layout() = default;
  EBB_FN constexpr page_layout(row_segments segments, int rows_per_page, int multiple)
      : rows{rows_per_page},
        row{segments},
        stride{(std::int64_t{rows_per_page} * segments.total() + multiple - 1) / multiple * multiple} {
    while ((1 << shift) < rows) ++shift;
  }

  /// Byte offsets of the segments of a row address (frame · rows + offset) from the base of the pages.
  EBB_FN constexpr std::int64_t in_row_offset(std::int64_t address) const {
    return (address >> shift) * stride + (address & (rows - 1)) * row.in_row;
  }
  EBB_FN constexpr std::int64_t page_end_offset(std::int64_t address) const {
    return (address >> shift) * stride + std::int64_t{rows} * row.in_row + (address & (rows - 1)) * row.at_page_end;
  }
  /// Payload of a page without its padding.
  EBB_FN constexpr std::int64_t payload() const { return std::int64_t{rows} * row.total(); }
  /// Bytes that one lane may copy at once, for every row of every page.
  constexpr int width() const {
    int const segments =
        copy_width(row.in_row) < copy_width(row.at_page_end) ? copy_width(row.in_row) : copy_width(row.at_page_end);
    int const pages = copy_width(stride) < copy_width(std::int64_t{rows} * row.in_row)
                          ? copy_width(stride)
                          : copy_width(std::int64_t{rows} * row.in_row);
    return segments < pages ? segments : pages;
  }
};

/// Rows of a source with compression ratio `ratio` that `tokens` committed tokens complete.
EBB_FN constexpr std::int64_t complete_rows(std::int64_t tokens, int ratio) { return tokens / ratio; }

/// Pages that hold `tokens` tokens.
EBB_FN constexpr std::int64_t pages_for(std::int64_t tokens, int page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

static_assert(copy_width(656) == 16 && copy_width(584) == 8 && copy_width(890) == 2 && copy_width(0) == 16);
static_assert(page_layout{{576, 8}, 64, 576}.stride == 37'440);
static_assert(page_layout{{576, 8}, 64, 576}.width() == 8);
static_assert(page_layout{{256, 32}, 64, 1}.page_end_offset(65) == 18'432 + 16'384 + 32);
static_assert(page_layout{{656}, 64, 1}.in_row_offset(3'273'604) == 3'273'604LL * 656);

}  // namespace ebb

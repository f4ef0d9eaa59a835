#pragma once
/// Metadata of kernels that take 64-bit pointers to rows.

#include <ebb/metadata/plain_rows.hpp>

namespace ebb {

/// A pointer to the in-row segment of each selected row, in selection order, null where there is none: `[rows][top_k]`.
/// Choose it where row addresses of one source do not fit an index the kernel understands. Costs twice the bytes.
struct row_pointers {
  using entry = std::byte const*;
  struct ref {
    entry* rows;
  };
  static constexpr bool packed = false;
  static constexpr int width(int top_k) { return top_k; }
  EBB_FN static entry* entries(ref r) { return r.rows; }
  EBB_FN static entry make(source_view const& v, std::int32_t address) {
    return v.base + v.layout.in_row_offset(address);
  }
  EBB_FN static entry invalid() { return nullptr; }
  EBB_FN static entry translate(entry e, source_view const& from, source_view const& to) {
    if (e == nullptr) return e;
    std::int64_t const offset = e - from.base;
    if (offset < from.layout.in_row_offset(from.first_staged)) {
      std::int64_t const frame = offset / from.layout.stride;
      return to.base + frame * to.layout.stride + offset % from.layout.stride;
    }
    std::int64_t const staged = offset - from.layout.in_row_offset(from.staging);
    std::int64_t const page = staged / from.layout.stride;
    return to.base + to.layout.in_row_offset(to.staging) + page * to.layout.stride + staged % from.layout.stride;
  }
};
static_assert(metadata<row_pointers>);

}  // namespace ebb

#pragma once
/// Metadata of row-indexed attention kernels: one row address for each selected position.

#include <ebb/metadata/metadata.hpp>

namespace ebb {

/// Row addresses in selection order, −1 where there is none: `[rows][top_k]`. Choose it for kernels of your own.
struct plain_rows {
  using entry = std::int32_t;
  struct ref {
    entry* rows;
  };
  static constexpr bool packed = false;
  static constexpr int width(int top_k) { return top_k; }
  EBB_FN static entry* entries(ref r) { return r.rows; }
  EBB_FN static entry make(source_view const&, std::int32_t address) { return address; }
  EBB_FN static entry invalid() { return -1; }
  EBB_FN static entry translate(entry e, source_view const& from, source_view const& to) {
    return e >= 0 && from.is_staged(e) ? e - from.staging + to.staging : e;
  }
};
static_assert(metadata<plain_rows>);

}  // namespace ebb

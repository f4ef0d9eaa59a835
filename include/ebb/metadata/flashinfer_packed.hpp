#pragma once
/// Metadata of attention kernels that take a packed prefix and a length, as FlashInfer's do.

#include <ebb/metadata/plain_rows.hpp>

namespace ebb {

/// Valid row addresses first, in selection order; `lengths[row]` says how many, at least 1. The rest, and the one entry
/// of an empty row, name a legal row: the request's newest committed row where it is on the GPU, else a row of zeroes.
/// Choose it for kernels that follow lengths and must never meet a negative index.
struct flashinfer_packed {
  using entry = std::int32_t;
  struct ref {
    entry* indices;         ///< [rows][top_k]
    std::int32_t* lengths;  ///< [rows]
  };
  static constexpr bool packed = true;
  static constexpr int width(int top_k) { return top_k; }
  EBB_FN static entry* entries(ref r) { return r.indices; }
  EBB_FN static std::int32_t* lengths(ref r) { return r.lengths; }
  EBB_FN static entry make(source_view const&, std::int32_t address) { return address; }
  EBB_FN static entry invalid() { return -1; }
  EBB_FN static entry translate(entry e, source_view const& from, source_view const& to) {
    return plain_rows::translate(e, from, to);
  }
};
static_assert(metadata<flashinfer_packed>);

}  // namespace ebb

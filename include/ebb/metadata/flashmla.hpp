#pragma once
/// Metadata of FlashMLA's sparse decode kernels.

#include <ebb/metadata/plain_rows.hpp>

namespace ebb {

/// Row addresses in selection order, −1 in every unused entry, rows padded to a multiple of 64 entries:
/// `[rows][round_up(top_k, 64)]`. Choose it for FlashMLA and kernels with its index format.
struct flashmla {
  using entry = std::int32_t;
  struct ref {
    entry* indices;
  };
  static constexpr bool packed = false;
  static constexpr int width(int top_k) { return (top_k + 63) / 64 * 64; }
  EBB_FN static entry* entries(ref r) { return r.indices; }
  EBB_FN static entry make(source_view const&, std::int32_t address) { return address; }
  EBB_FN static entry invalid() { return -1; }
  EBB_FN static entry translate(entry e, source_view const& from, source_view const& to) {
    return plain_rows::translate(e, from, to);
  }
};
static_assert(metadata<flashmla>);

}  // namespace ebb

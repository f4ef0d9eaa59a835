#pragma once
/// Metadata for engines that keep the pages of all layers of a block together in one allocation.

#include <ebb/metadata/plain_rows.hpp>

namespace ebb {

/// Row indices from the base of one allocation `[block][layer][row]`: block · (layers · rows) + layer · rows + row, −1
/// where there is none. Choose it for engines with one block table for all layers. Needs borrowed arenas whose frame
/// stride is the page strides of all sources together, and one ratio.
struct interleaved {
  using entry = std::int32_t;
  struct ref {
    entry* rows;
  };
  static constexpr bool packed = false;
  static constexpr int width(int top_k) { return top_k; }
  /// Index of a row address of layer `layer`; also for the write addresses that an engine gets.
  EBB_FN static constexpr std::int32_t index_of(std::int32_t address, int layer, int layers, int rows) {
    return address / rows * (layers * rows) + layer * rows + address % rows;
  }
  EBB_FN static entry* entries(ref r) { return r.rows; }
  EBB_FN static entry make(source_view const& v, std::int32_t address) {
    return index_of(address, v.ordinal, static_cast<int>(v.layout.stride / v.host_layout.stride), v.layout.rows);
  }
  EBB_FN static entry invalid() { return -1; }
  EBB_FN static entry translate(entry e, source_view const& from, source_view const& to) {
    return e < 0 ? e : e + (to.ordinal - from.ordinal) * from.layout.rows;
  }
};
static_assert(metadata<interleaved>);
static_assert(interleaved::index_of(130, 2, 3, 64) == 2 * 192 + 128 + 2);

}  // namespace ebb

#pragma once
/// Metadata for engines that keep the pages of all layers of a block together in one allocation.

#include <ebb/error.hpp>
#include <ebb/metadata/plain_rows.hpp>

#include <limits>
#include <span>

namespace ebb {

/// Row indices from the base of one allocation `[block][layer][row]`: block · (layers · rows) + layer · rows + row, −1
/// where there is none. Choose it for engines with one block table for all layers. Needs borrowed arenas of one ratio,
/// page k of a block being source k's; a block may hold more layers than the rank's.
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
  /// Throws: std::invalid_argument where the sources' rows are not laid out like that, or where the index of a row address
  /// below `rows` exceeds int32.
  static void check(std::span<source_view const> views, std::int64_t rows) {
    source_view const& first = views.front();
    std::int64_t const page = first.host_layout.stride;
    std::int64_t const layers = first.layout.stride / page;
    for (source_view const& v : views) {
      require(v.layout.rows == first.layout.rows && v.layout.stride == layers * page &&
                  layers >= static_cast<std::int64_t>(views.size()) && v.base == first.base + v.ordinal * page,
              "metadata: interleaved, arena of source", v.ordinal,
              "borrowed, of one ratio, page k of a block being source k's: base ", page,
              " bytes behind the one before, ", "frame_stride a multiple of that");
    }
    require(rows * layers <= std::numeric_limits<std::int32_t>::max(), "metadata: interleaved, rows", rows,
            "few enough for int32 indices over ", layers, " layers");
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

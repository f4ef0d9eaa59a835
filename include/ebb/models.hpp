#pragma once
/// Presets of real models: row segments, page tokens, top-k, and which group and source every sparse layer reads.
///
/// `layers` has one entry for each layer that selects from the whole history, in model order; layers with a window or a
/// fixed state of their own have none. A policy derives from a preset and overrides what it wants otherwise.

#include <ebb/policy.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace ebb {

struct flashmla;

namespace models {

/// Bytes of one FP8 index key of the lightning indexer: 128 values and an FP32 scale.
inline constexpr int lightning_key_bytes = 128 + 4;

/// `Layers` layers with a source each. The first `alone` layers select for themselves, the others in groups of
/// `together`.
template <int Layers>
constexpr std::array<layer_binding, Layers> shared_selections(int alone, int together) {
  std::array<layer_binding, Layers> out{};
  for (int i = 0; i < Layers; ++i) out[i] = {i < alone ? i : alone + (i - alone) / together, i};
  return out;
}

/// The model layers from which DeepSeek-V4.1-Flash starts a new source, and a new group; layers 0 and 1 have a window
/// only.
inline constexpr std::array<int, 4> v41_source_starts{2, 8, 14, 20};
inline constexpr std::array<int, 8> v41_group_starts{2, 8, 14, 20, 24, 28, 32, 36};

/// Entry of `starts` that covers a layer.
template <std::size_t N>
constexpr int last_start(std::array<int, N> const& starts, int layer) {
  int out = 0;
  while (out + 1 < static_cast<int>(N) && starts[out + 1] <= layer) ++out;
  return out;
}

/// Layers 2 to 39 of DeepSeek-V4.1-Flash.
constexpr std::array<layer_binding, 38> v41_layers() {
  std::array<layer_binding, 38> out{};
  for (int i = 0; i < 38; ++i) out[i] = {last_start(v41_group_starts, i + 2), last_start(v41_source_starts, i + 2)};
  return out;
}

/// DeepSeek-V3.2: 61 layers, each with its own selection and KV.
/// Source: the model's public card; row format of FlashMLA's FP8 sparse decoding, 512 FP8 values, four FP32 scales, 64
/// BF16 values.
struct dsv32_fp8ds : policy_defaults {
  static constexpr row_segments row{512 + 4 * 4 + 64 * 2};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 2048;
  static constexpr int max_queries = 4;
  static constexpr int index_row_bytes = lightning_key_bytes;
  static constexpr auto layers = separate_layers<61>();
  static constexpr auto ratios = equal_ratios<61>();
  using metadata = flashmla;
};

/// GLM-5.3: 78 layers with a source each; layers 0 and 1 select alone, the others share one selection among four.
/// Source: the model's public card; row format as in `dsv32_fp8ds`.
struct glm53_fp8ds : policy_defaults {
  static constexpr row_segments row{512 + 4 * 4 + 64 * 2};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 2048;
  static constexpr int max_queries = 8;
  static constexpr int index_row_bytes = lightning_key_bytes;
  static constexpr auto layers = shared_selections<78>(2, 4);
  static constexpr auto ratios = equal_ratios<78>();
  using metadata = flashmla;
};

/// GLM-5.3 with 576 FP8 values a row and one scale per tensor. Name the metadata of the attention kernel in use:
/// FlashMLA's FP8 kernel reads rows of 656 bytes only. Source: the model's public card.
struct glm53_fp8 : glm53_fp8ds {
  static constexpr row_segments row{512 + 64};
  using metadata = plain_rows;
};

/// GLM-5.3 with 576 FP8 values a row and its MTP layer: a drafter that reads full history, once after verification and
/// once for each further draft. Source: as `glm53_fp8`.
struct glm53_fp8_mtp : glm53_fp8 {
  static constexpr auto layers = [] {
    std::array<layer_binding, 79> out{};
    std::copy(glm53_fp8::layers.begin(), glm53_fp8::layers.end(), out.begin());
    out[78] = {21, 78};
    return out;
  }();
  static constexpr auto ratios = equal_ratios<79>();
  static constexpr int drafter_group = 21;
  static constexpr int drafter_passes = max_queries;
};

/// GLM-5.1 in BF16: 78 layers, each with its own selection and KV.
/// Source: the model's public card; row format of FlashMLA's BF16 sparse attention, 576 BF16 values.
struct glm51_bf16 : policy_defaults {
  static constexpr row_segments row{(512 + 64) * 2};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 2048;
  static constexpr int max_queries = 4;
  static constexpr int index_row_bytes = lightning_key_bytes;
  static constexpr auto layers = separate_layers<78>();
  static constexpr auto ratios = equal_ratios<78>();
  using metadata = flashmla;
};

/// DeepSeek-V4-Flash: the 21 layers that compress four tokens into a row. The index key's bytes depend on the engine
/// and are not given. Source: the model's public card; row format of FlashMLA, 448 FP8 and 64 BF16 values in the row
/// and eight scale bytes at the page end, page strides padded to a multiple of 576 bytes.
struct dsv4_flash : policy_defaults {
  static constexpr row_segments row{448 + 64 * 2, 8};
  static constexpr int page_tokens = 256;
  static constexpr int page_multiple = 576;
  static constexpr int top_k = 512;
  static constexpr int max_queries = 6;
  static constexpr auto layers = separate_layers<21>();
  static constexpr auto ratios = equal_ratios<21>(4);
  using metadata = flashmla;
};

/// DeepSeek-V4.1-Flash with FP4 rows: layers 2 to 39 read four sources, three that compress two tokens into a row and,
/// from layer 20 on, one with a row a token. A candidate pool announced at layer 20 binds the groups that start at
/// layers 24 to 36. Source: the model's public card; 512 FP4 values in the row, 32 scale bytes at the page end; index
/// keys of 64 + 4 bytes.
struct dsv41_flash_fp4 : policy_defaults {
  static constexpr row_segments row{512 / 2, 32};
  static constexpr int page_tokens = 128;
  static constexpr int top_k = 512;
  static constexpr int max_queries = 6;
  static constexpr int candidate_pool = 16'384;
  static constexpr int index_row_bytes = 64 + 4;
  static constexpr auto layers = v41_layers();
  static constexpr std::array<int, 4> ratios{2, 2, 2, 1};
};

/// DeepSeek-V4.1-Flash with FP8 rows: 512 FP8 values in the row, 16 scale bytes at the page end.
/// Source: as `dsv41_flash_fp4`.
struct dsv41_flash_fp8 : dsv41_flash_fp4 {
  static constexpr row_segments row{512, 16};
};

/// A sparse model that stores one record of 2,048 bytes for four tokens in each of 12 layers (QSA): 1,024 BF16 values or
/// 2,048 FP8 values a record. The index key's bytes are not given. No public card is their source.
struct qsa_record : policy_defaults {
  static constexpr row_segments row{2048};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 512;
  static constexpr int max_queries = 6;
  static constexpr auto layers = separate_layers<12>();
  static constexpr auto ratios = equal_ratios<12>(4);
};

/// The numbers of a preset that its row in the table of presets names.
template <policy P>
constexpr bool has_numbers(int row_bytes, int page_tokens, int top_k, int max_queries, int layers, int groups,
                           int sources) {
  using g = geometry_of<P>;
  return P::row.total() == row_bytes && P::page_tokens == page_tokens && P::top_k == top_k &&
         P::max_queries == max_queries && g::layers == layers && g::groups == groups && g::sources == sources;
}
/// True where every source of a preset has one compression ratio.
template <policy P>
constexpr bool has_ratio(int ratio) {
  return geometry_of<P>::smallest_ratio == ratio && geometry_of<P>::largest_ratio == ratio;
}
/// Layers of a group.
template <policy P>
constexpr int layers_of_group(int group) {
  return static_cast<int>(
      std::count_if(P::layers.begin(), P::layers.end(), [=](layer_binding l) { return l.group == group; }));
}

static_assert(has_numbers<dsv32_fp8ds>(656, 64, 2048, 4, 61, 61, 61) && has_ratio<dsv32_fp8ds>(1));
static_assert(has_numbers<glm53_fp8ds>(656, 64, 2048, 8, 78, 21, 78) && has_ratio<glm53_fp8ds>(1));
static_assert(has_numbers<glm53_fp8>(576, 64, 2048, 8, 78, 21, 78) && has_ratio<glm53_fp8>(1));
static_assert(has_numbers<glm53_fp8_mtp>(576, 64, 2048, 8, 79, 22, 79) && has_ratio<glm53_fp8_mtp>(1));
static_assert(has_numbers<glm51_bf16>(1152, 64, 2048, 4, 78, 78, 78) && has_ratio<glm51_bf16>(1));
static_assert(has_numbers<dsv4_flash>(584, 256, 512, 6, 21, 21, 21) && has_ratio<dsv4_flash>(4));
static_assert(has_numbers<dsv41_flash_fp4>(288, 128, 512, 6, 38, 8, 4) && dsv41_flash_fp4::candidate_pool == 16'384);
static_assert(has_numbers<dsv41_flash_fp8>(528, 128, 512, 6, 38, 8, 4) && dsv41_flash_fp8::candidate_pool == 16'384);
static_assert(has_numbers<qsa_record>(2048, 64, 512, 6, 12, 12, 12) && has_ratio<qsa_record>(4));

static_assert(dsv4_flash::row.in_row == 576 && dsv4_flash::row.at_page_end == 8 &&
              geometry_of<dsv4_flash>::rows_per_page(0) == 64);
static_assert(geometry_of<dsv4_flash>::layout(0).stride == 37'440 && 37'440 % 576 == 0 &&
              geometry_of<dsv4_flash>::layout(0).width() == 8);
static_assert(geometry_of<dsv32_fp8ds>::layout(0).stride == 64 * 656 &&
              geometry_of<glm51_bf16>::layout(0).stride == 64 * 1152);
static_assert(geometry_of<qsa_record>::rows_per_page(0) == 16 && geometry_of<qsa_record>::layout(0).stride == 32'768);

// GLM's 21 groups: {0}, {1}, {2–5} … {74–77}.
static_assert(layers_of_group<glm53_fp8ds>(0) == 1 && layers_of_group<glm53_fp8ds>(1) == 1 &&
              layers_of_group<glm53_fp8ds>(2) == 4);
static_assert(glm53_fp8ds::layers[2].group == 2 && glm53_fp8ds::layers[5].group == 2 &&
              glm53_fp8ds::layers[6].group == 3);
static_assert(glm53_fp8ds::layers[73].group == 19 && glm53_fp8ds::layers[74].group == 20 &&
              glm53_fp8ds::layers[77].group == 20);

// V4.1: entry i is model layer i + 2; five groups read the source of layer 20.
static_assert(dsv41_flash_fp4::layers[17].source == 2 && dsv41_flash_fp4::layers[18].source == 3 &&
              dsv41_flash_fp4::layers[37].source == 3);
static_assert(dsv41_flash_fp4::layers[5].group == 0 && dsv41_flash_fp4::layers[6].group == 1 &&
              dsv41_flash_fp4::layers[12].group == 2 && dsv41_flash_fp4::layers[18].group == 3 &&
              dsv41_flash_fp4::layers[22].group == 4 && dsv41_flash_fp4::layers[37].group == 7);
static_assert(geometry_of<dsv41_flash_fp4>::rows_per_page(0) == 64 &&
              geometry_of<dsv41_flash_fp4>::rows_per_page(3) == 128);
static_assert(geometry_of<dsv41_flash_fp4>::layout(3).width() == 16 &&
              geometry_of<dsv41_flash_fp8>::layout(0).width() == 16);

/// Bytes that one page of tokens takes in every source, index keys included.
template <policy P>
constexpr std::int64_t page_bytes_with_index() {
  std::int64_t bytes = 0;
  for (int r : P::ratios) bytes += std::int64_t{P::page_tokens / r} * (P::row.total() + P::index_row_bytes);
  return bytes;
}
static_assert(page_bytes_with_index<dsv41_flash_fp4>() == 890 * 128, "(288 + 68) bytes × (3 × ½ + 1) rows a token");

}  // namespace models
}  // namespace ebb

#pragma once
/// The policies that the benchmark resolves with: one KV source, read by as many index groups as a graph has calls.

#include <ebb/ebb.hpp>

#include <array>

namespace bench {

/// Resolves in one graph at most. They are the groups of one step, so that one begin_step serves a whole graph.
inline constexpr int most_calls = 20;

/// The library's default order, with a step as long as one resolve: here every group stands for the next decode step of
/// the same layer.
struct lrfu_by_call : ebb::lrfu {
  EBB_FN static constexpr std::uint32_t key(ebb::word_format f, std::uint32_t word, int) {
    return ebb::lrfu::key(f, word, 1);
  }
};
static_assert(ebb::eviction_order<lrfu_by_call>);

constexpr std::array<ebb::layer_binding, most_calls> groups_of_one_source() {
  std::array<ebb::layer_binding, most_calls> out{};
  for (int i = 0; i < most_calls; ++i) out[static_cast<std::size_t>(i)] = {i, 0};
  return out;
}

/// Rows of `InRow` bytes and `PageEnd` at the page end, `TopK` positions a query, up to `Queries` queries a request;
/// everything else is the library's default.
template <int InRow, int PageEnd, int TopK, int Queries>
struct subject_policy : ebb::policy_defaults {
  static constexpr ebb::row_segments row{InRow, PageEnd};
  static constexpr int page_tokens = 64;
  static constexpr int page_multiple = PageEnd > 0 ? InRow : 1;
  static constexpr int top_k = TopK;
  static constexpr int max_queries = Queries;
  static constexpr auto layers = groups_of_one_source();
  static constexpr auto ratios = ebb::equal_ratios<1>();
  using tiers = ebb::tier_list<ebb::lent_pages, ebb::hot_rows<lrfu_by_call>, ebb::staging_rows, ebb::host_pages>;
};

}  // namespace bench

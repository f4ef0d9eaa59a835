#pragma once
/// The policies that the replay runs side by side.

#include <ebb/ebb.hpp>

#include <tuple>

namespace replay {

/// DeepSeek-V4.1-Flash with FP4 rows, cut to its source with a row a token and to one of the groups that read it, so
/// that real lengths fit an ordinary machine: 288 bytes a row, pages of 128 tokens, top-k 512.
struct cut_model : ebb::models::dsv41_flash_fp4 {
  static constexpr auto layers = ebb::separate_layers<1>();
  static constexpr auto ratios = ebb::equal_ratios<1>();
  static constexpr int candidate_pool = 0;
};
static_assert(cut_model::row.in_row % 8 == 0 && cut_model::row.at_page_end % 8 == 0,
              "the oracle works in words of 8 bytes");

/// Bytes of a page.
inline constexpr std::size_t page_bytes = static_cast<std::size_t>(ebb::geometry_of<cut_model>::layout(0).stride);
static_assert(page_bytes == 36'864);

using whole_model = ebb::geometry_of<ebb::models::dsv41_flash_fp4>;
/// Rows of all sources of the whole model for each row of the replayed one.
constexpr double whole_model_sources() {
  double sum = 0;
  for (int r : ebb::models::dsv41_flash_fp4::ratios) sum += 1.0 / r;
  return sum;
}
static_assert(whole_model::groups == 8 && whole_model_sources() == 2.5);

/// Every request is whole on the GPU or waits.
struct resident : cut_model {
  static constexpr char const* name = "resident";
  using tiers = ebb::tier_list<ebb::host_pages>;
};
/// Every long request gets the same hot rows and nothing else.
struct fixed : cut_model {
  static constexpr char const* name = "fixed";
  using tiers = ebb::tier_list<ebb::hot_rows<ebb::lrfu>, ebb::staging_rows, ebb::host_pages>;
};
/// Hot rows, and spare frames are lent. `keep` says to whom.
template <class Keep>
struct adaptive : cut_model {
  using tiers = ebb::tier_list<ebb::lent_pages, ebb::hot_rows<ebb::lrfu>, ebb::staging_rows, ebb::host_pages>;
  using keep = Keep;
};
struct adaptive_newest : adaptive<ebb::newest> {
  static constexpr char const* name = "adaptive-newest";
};
struct adaptive_most_selected : adaptive<ebb::most_selected> {
  static constexpr char const* name = "adaptive-most-selected";
};
struct adaptive_whole_requests : adaptive<ebb::whole_requests> {
  static constexpr char const* name = "adaptive-whole-requests";
};

using all_policies = std::tuple<resident, fixed, adaptive_newest, adaptive_most_selected, adaptive_whole_requests>;

}  // namespace replay

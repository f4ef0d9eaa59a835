// expect: source sets must be equal or disjoint
#include <ebb/policy.hpp>
#include <ebb/tiers/host_pages.hpp>
#include <ebb/tiers/hot_rows.hpp>
#include <ebb/tiers/lent_pages.hpp>
#include <ebb/tiers/staging_rows.hpp>

struct broken : ebb::policy_defaults {
  static constexpr ebb::row_segments row{576};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 512;
  static constexpr std::array<ebb::layer_binding, 3> layers{{{0, 0}, {0, 1}, {1, 1}}};
  static constexpr auto ratios = ebb::equal_ratios<2>();
};
static_assert(ebb::check_policy<broken>());

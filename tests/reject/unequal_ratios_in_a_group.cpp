// expect: differ in their ratio
#include <ebb/policy.hpp>
#include <ebb/tiers/host_pages.hpp>
#include <ebb/tiers/hot_rows.hpp>
#include <ebb/tiers/lent_pages.hpp>
#include <ebb/tiers/staging_rows.hpp>

struct broken : ebb::policy_defaults {
  static constexpr ebb::row_segments row{576};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 512;
  static constexpr std::array<ebb::layer_binding, 2> layers{{{0, 0}, {0, 1}}};
  static constexpr std::array<int, 2> ratios{1, 2};
};
static_assert(ebb::check_policy<broken>());

// expect: must name one or more backing tiers last
#include <ebb/policy.hpp>
#include <ebb/tiers/host_pages.hpp>
#include <ebb/tiers/hot_rows.hpp>
#include <ebb/tiers/lent_pages.hpp>
#include <ebb/tiers/staging_rows.hpp>

struct broken : ebb::policy_defaults {
  static constexpr ebb::row_segments row{576};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 512;
  static constexpr auto layers = ebb::separate_layers<2>();
  static constexpr auto ratios = ebb::equal_ratios<2>();
  using tiers = ebb::tier_list<ebb::lent_pages, ebb::hot_rows<ebb::lru>, ebb::staging_rows>;
};
static_assert(ebb::check_policy<broken>());

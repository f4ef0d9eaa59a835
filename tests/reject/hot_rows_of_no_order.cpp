// expect: ebb policy: the order of hot_rows is not an eviction order
#include <ebb/ebb.hpp>

struct oldest {
  static constexpr int exponent_bits = 0;
};
struct broken : ebb::policy_defaults {
  static constexpr ebb::row_segments row{576};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 512;
  static constexpr auto layers = ebb::separate_layers<2>();
  static constexpr auto ratios = ebb::equal_ratios<2>();
  using tiers = ebb::tier_list<ebb::lent_pages, ebb::hot_rows<oldest>, ebb::staging_rows, ebb::host_pages>;
};
static_assert(ebb::check_policy<broken>() && broken::tiers::cache::exponent_bits >= 0);

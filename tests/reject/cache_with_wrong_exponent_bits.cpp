// expect: ebb policy: `exponent_bits` of the row cache is out of range
#include <ebb/ebb.hpp>

struct forgetful_rows : ebb::hot_rows<ebb::lru> {
  static constexpr int exponent_bits = 40;
};
struct broken : ebb::policy_defaults {
  static constexpr ebb::row_segments row{576};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 512;
  static constexpr auto layers = ebb::separate_layers<2>();
  static constexpr auto ratios = ebb::equal_ratios<2>();
  using tiers = ebb::tier_list<ebb::lent_pages, forgetful_rows, ebb::staging_rows, ebb::host_pages>;
};
using tested = ebb::residency<broken, ebb::serial_space>;
static_assert(sizeof(tested) > 0);

// expect: ebb policy: the row cache of `tiers` is not a row place
#include <ebb/ebb.hpp>

struct wishful_rows {
  static constexpr ebb::tier_kind kind = ebb::tier_kind::cache;
  static constexpr int exponent_bits = 0;
};
struct broken : ebb::policy_defaults {
  static constexpr ebb::row_segments row{576};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 512;
  static constexpr auto layers = ebb::separate_layers<2>();
  static constexpr auto ratios = ebb::equal_ratios<2>();
  using tiers = ebb::tier_list<ebb::lent_pages, wishful_rows, ebb::staging_rows, ebb::host_pages>;
};
using tested = ebb::residency<broken, ebb::serial_space>;
static_assert(sizeof(tested) > 0);

// expect: ebb policy: `metadata` is not
#include <ebb/ebb.hpp>

struct numbers {
  using entry = int;
  struct ref {
    entry* rows;
  };
};
struct broken : ebb::policy_defaults {
  static constexpr ebb::row_segments row{576};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 512;
  static constexpr auto layers = ebb::separate_layers<2>();
  static constexpr auto ratios = ebb::equal_ratios<2>();
  using metadata = numbers;
};
using tested = ebb::residency<broken, ebb::serial_space>;
static_assert(sizeof(tested) > 0);

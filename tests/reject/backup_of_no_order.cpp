// expect: ebb policy: `backup` is not a backup order
#include <ebb/ebb.hpp>

struct now_and_then {
  static constexpr bool when_sealed = true;
};
struct broken : ebb::policy_defaults {
  static constexpr ebb::row_segments row{576};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 512;
  static constexpr auto layers = ebb::separate_layers<2>();
  static constexpr auto ratios = ebb::equal_ratios<2>();
  using backup = now_and_then;
};
using tested = ebb::residency<broken, ebb::serial_space>;
static_assert(sizeof(tested) > 0);

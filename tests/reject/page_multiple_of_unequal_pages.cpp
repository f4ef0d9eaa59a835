// expect: ebb policy: `page_multiple` pads sources of different ratio differently
#include <ebb/ebb.hpp>

struct broken : ebb::policy_defaults {
  static constexpr ebb::row_segments row{576};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 512;
  static constexpr auto layers = ebb::separate_layers<2>();
  static constexpr std::array<int, 2> ratios{1, 4};
  static constexpr int page_multiple = 2048;
};
template class ebb::arenas<broken, ebb::serial_space>;

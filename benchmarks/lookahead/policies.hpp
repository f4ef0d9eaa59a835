#pragma once
/// The policies with which looking ahead is measured, and the settings of a run.

#include <ebb/ebb.hpp>

#include <array>
#include <cstddef>
#include <vector>

namespace bench {

/// One set of five groups that read one source, as DeepSeek-V4.1-Flash from layer 20 on: the first announces a pool, the
/// others select inside it. Rows of 288 bytes.
struct pool_policy : ebb::policy_defaults {
  static constexpr ebb::row_segments row = ebb::models::dsv41_flash_fp4::row;
  static constexpr int page_tokens = 128;
  static constexpr int top_k = 512;
  static constexpr int max_queries = 6;
  static constexpr int candidate_pool = 16'384;
  static constexpr std::array<ebb::layer_binding, 5> layers{{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}}};
  static constexpr auto ratios = ebb::equal_ratios<1>();
};

/// One group of four layers with a source each, as GLM-5.3's. Rows of 576 bytes.
struct four_sources : ebb::policy_defaults {
  static constexpr ebb::row_segments row{576};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 2048;
  static constexpr auto layers = ebb::models::shared_selections<4>(0, 4);
  static constexpr auto ratios = ebb::equal_ratios<4>();
};

/// How large a run is. `tiny`: for a machine without a GPU.
struct ahead_grid {
  bool tiny = false;
  int requests() const { return tiny ? 2 : 32; }
  std::vector<int> batches() const { return tiny ? std::vector{2} : std::vector{8, 32}; }
  int share_requests() const { return tiny ? 2 : 8; }
  int steps(int queries) const { return tiny ? 3 : queries == 1 ? 64 : 24; }
  int warm() const { return tiny ? 1 : 8; }
  int pool() const { return tiny ? 1'024 : pool_policy::candidate_pool; }
  int history() const { return tiny ? 16'384 : 131'072; }
  int repeats() const { return tiny ? 1 : 5; }
  /// Microseconds of a layer. 300: a step of 23 ms of a model with 78 layers, batch 32.
  std::vector<double> layers() const { return tiny ? std::vector{50.0} : std::vector{50.0, 100.0, 300.0}; }
  std::size_t weights() const { return tiny ? std::size_t{1} << 20 : std::size_t{2} << 30; }
};

}  // namespace bench

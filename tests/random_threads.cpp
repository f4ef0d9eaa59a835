/// Random sequences against the reference model on thread_space: lanes are threads, so that ThreadSanitizer sees them race.
/// EBB_RANDOM_OPS: operations in all; EBB_RANDOM_SEED: other sequences.
#include <ebb/ebb.hpp>
#include <ebb/host/thread_space.hpp>

#include <doctest/doctest.h>

#include "random_run.hpp"

namespace {

using namespace ebb;

struct small : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 8;
  static constexpr int top_k = 32;
  static constexpr int max_queries = 3;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
  static constexpr std::int64_t largest_tokens = 1 << 20;
  static constexpr int borrows = 0;
};

struct shared_sources : small {
  static constexpr row_segments row{8, 4};
  static constexpr int top_k = 16;
  static constexpr std::array<layer_binding, 4> layers{{{0, 0}, {0, 1}, {1, 2}, {2, 2}}};
  static constexpr std::array<int, 3> ratios{1, 1, 2};
  static constexpr int candidate_pool = 24;
  static constexpr int borrows = 1;
  using tiers = tier_list<lent_pages, hot_rows<lru>, staging_rows, host_pages>;
  using keep = most_selected;
  using backup = each_step;
  using metadata = flashinfer_packed;
};

// A team of one block of four lanes, and one of two blocks of two, as a cluster of a GPU.
using blocks_1 = thread_space<4>;
using blocks_2 = thread_space<4, 2, 2>;

}  // namespace

#define EBB_RANDOM(P, S)                                                                                 \
  TEST_CASE("random sequences of " #P " on threads, " #S ", do what the reference model says") {         \
    CHECK(ebb::testing::run_policy<P, S>(                                                                \
        #P, std::min(20'000LL, ebb::testing::number_from("EBB_RANDOM_OPS", 20'000)) / 4, 1'000, false)); \
  }

EBB_RANDOM(small, blocks_1)
EBB_RANDOM(small, blocks_2)
EBB_RANDOM(shared_sources, blocks_1)
EBB_RANDOM(shared_sources, blocks_2)

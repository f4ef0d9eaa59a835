/// Random sequences of every call against the reference model, over several policies, on serial_space.
/// EBB_RANDOM_OPS: operations in all; EBB_RANDOM_SEED: other sequences; EBB_RANDOM_ONLY: one sequence again.
#include "random_run.hpp"

#include <ebb/ebb.hpp>
#include <ebb/host/serial_space.hpp>

#include <doctest/doctest.h>

namespace {

using namespace ebb;

struct small : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 8;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 3;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
  static constexpr std::int64_t largest_tokens = 1 << 20;
  static constexpr int borrows = 0;  ///< arenas of the engine's: 0 never, 1 at times, 2 always, all sources in one
};

}  // namespace

#define EBB_RANDOM(P) \
  TEST_CASE("random sequences of " #P " do what the reference model says") { CHECK(ebb::testing::run_policy<P, ebb::serial_space>(#P, share, each)); }

namespace {
int const policies = 1;
long long const share = ebb::testing::number_from("EBB_RANDOM_OPS", 1'000'000) / policies;
int const each = 4'000;
}  // namespace

EBB_RANDOM(small)

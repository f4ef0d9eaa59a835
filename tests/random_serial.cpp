/// Random sequences of every call against the reference model, over several policies, on serial_space.
/// EBB_RANDOM_OPS: operations in all; EBB_RANDOM_SEED: other sequences; EBB_RANDOM_ONLY: one sequence again, by the seed that was printed.
#include <ebb/ebb.hpp>
#include <ebb/host/serial_space.hpp>

#include <doctest/doctest.h>

#include "random_run.hpp"

namespace {

using namespace ebb;

/// What they have in common. `largest_tokens` leaves few bits for stamps, so that they are re-based often; `borrows`: arenas are the
/// engine's, 0 never, 1 at times, 2 always, all sources in one.
struct small : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 8;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 3;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
  static constexpr std::int64_t largest_tokens = 1 << 20;
  static constexpr int borrows = 0;
};

/// Ratios 1 and 2 side by side, rows with page-end segments, a backup after each step.
struct two_ratios : small {
  static constexpr row_segments row{16, 8};
  static constexpr int top_k = 4;
  static constexpr int max_queries = 2;
  static constexpr std::array<layer_binding, 3> layers{{{0, 0}, {1, 1}, {2, 1}}};
  static constexpr std::array<int, 2> ratios{1, 2};
  static constexpr std::int64_t largest_tokens = 1 << 15;
  using tiers = tier_list<lent_pages, hot_rows<lru>, staging_rows, host_pages>;
  using keep = most_selected;
  using backup = each_step;
  using metadata = flashmla;
};

/// One group over three sources, packed metadata, pages backed up when they go.
struct set_of_three : small {
  static constexpr row_segments row{8, 4};
  static constexpr int page_tokens = 16;
  static constexpr int max_queries = 4;
  static constexpr std::array<layer_binding, 3> layers{{{0, 0}, {0, 1}, {0, 2}}};
  static constexpr auto ratios = equal_ratios<3>();
  static constexpr std::int64_t largest_tokens = 1 << 22;
  static constexpr int borrows = 1;
  using keep = whole_requests;
  using backup = on_revoke;
  using metadata = flashinfer_packed;
};

/// Two groups on one source of ratio 4, rows addressed by pointers.
struct ratio_four : small {
  static constexpr row_segments row{24};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 4;
  static constexpr int max_queries = 6;
  static constexpr std::array<layer_binding, 2> layers{{{0, 0}, {1, 0}}};
  static constexpr auto ratios = equal_ratios<1>(4);
  static constexpr std::int64_t largest_tokens = 1 << 24;
  using backup = on_revoke;
  using metadata = row_pointers;
};

/// A fixed budget of hot rows: nothing is lent.
struct never_lent : small {
  static constexpr int max_queries = 2;
  using tiers = tier_list<hot_rows<lru>, staging_rows, host_pages>;
  using backup = each_step;
  using metadata = flashinfer_packed;
};

/// No row cache: requests are always whole.
struct always_whole : small {
  static constexpr int page_tokens = 4;
  static constexpr int max_queries = 5;
  using tiers = tier_list<lent_pages, host_pages>;
};

/// No staging: the hot rows hold every selection. Wide selections, pages of few tokens, many queries.
struct never_staged : small {
  static constexpr row_segments row{12};
  static constexpr int page_tokens = 4;
  static constexpr int top_k = 32;
  static constexpr int max_queries = 2;
  static constexpr std::array<layer_binding, 2> layers{{{0, 0}, {1, 0}}};
  static constexpr std::int64_t largest_tokens = 1 << 16;
  using tiers = tier_list<lent_pages, hot_rows<lrfu>, host_pages>;
  using keep = most_selected;
};

/// One allocation of the engine's for all layers.
struct all_in_one : small {
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 16;
  static constexpr std::array<layer_binding, 4> layers{{{0, 0}, {0, 1}, {1, 2}, {2, 2}}};
  static constexpr auto ratios = equal_ratios<3>();
  static constexpr int borrows = 2;
  static constexpr int candidate_pool = 24;
  static constexpr std::int64_t largest_tokens = 1 << 14;
  using keep = most_selected;
  using backup = on_revoke;
  using metadata = interleaved;
};

/// More queries than a page has tokens.
struct many_queries : small {
  static constexpr row_segments row{16, 2};
  static constexpr int page_tokens = 4;
  static constexpr int top_k = 5;
  static constexpr int max_queries = 16;
  static constexpr std::array<layer_binding, 3> layers{{{0, 0}, {1, 1}, {1, 2}}};
  static constexpr std::array<int, 3> ratios{1, 4, 4};
  static constexpr std::int64_t largest_tokens = 1 << 18;
  static constexpr int borrows = 1;
  using tiers = tier_list<lent_pages, hot_rows<lru>, staging_rows, host_pages>;
  using keep = whole_requests;
};

/// Candidates are announced: two groups on two sources, whose table they share, and one on a source of its own.
struct announced : small {
  static constexpr row_segments row{16, 4};
  static constexpr int top_k = 4;
  static constexpr int candidate_pool = 12;
  static constexpr std::array<layer_binding, 5> layers{{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 2}}};
  static constexpr std::array<int, 3> ratios{1, 1, 2};
  static constexpr std::int64_t largest_tokens = 1 << 16;
  using backup = each_step;
};

constexpr int policies = 10;

}  // namespace

#define EBB_RANDOM(P)                                                            \
  TEST_CASE("random sequences of " #P " do what the reference model says") {     \
    CHECK(ebb::testing::run_policy<P, ebb::serial_space>(                        \
        #P, ebb::testing::number_from("EBB_RANDOM_OPS", 1'000'000) / policies)); \
  }

EBB_RANDOM(small)
EBB_RANDOM(two_ratios)
EBB_RANDOM(set_of_three)
EBB_RANDOM(ratio_four)
EBB_RANDOM(never_lent)
EBB_RANDOM(always_whole)
EBB_RANDOM(never_staged)
EBB_RANDOM(all_in_one)
EBB_RANDOM(many_queries)
EBB_RANDOM(announced)

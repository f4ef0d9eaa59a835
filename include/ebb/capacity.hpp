#pragma once
/// Capacity arithmetic that the allocator and the planner share: what is predicted is what is allocated.

#include <ebb/ids.hpp>
#include <ebb/orders/eviction.hpp>
#include <ebb/rows.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace ebb {

/// Ways of one set of the row cache: one 64-byte read answers a look.
inline constexpr int set_ways = 16;
/// Bytes of one way, and of one staging slot's word.
inline constexpr int word_bytes = 4;

/// The largest sizes that constructor and planner take.
inline constexpr std::int64_t most_tokens = 1 << 30;
inline constexpr int most_rows = 1 << 24;  ///< hot rows, and staging rows, of a request
inline constexpr int most_requests = 1 << 20;
inline constexpr int most_steps = 64;  ///< in flight

/// Pages at the end of a request that are never lent: ⌈(1 + lag) · max_queries / page_tokens⌉ that steps in flight may
/// write, with lag = steps_in_flight − 1, and two: one that is partly committed, one that waits for its backup. A drafter
/// that reads full history may write as many tokens ahead, and may be as many behind: `drafts`.
constexpr int tail_pages(int page_tokens, int max_queries, int steps_in_flight, bool drafts = false) {
  return 2 + static_cast<int>(pages_for(std::int64_t{steps_in_flight + (drafts ? 2 : 0)} * max_queries, page_tokens));
}

/// Frames that hold the hot rows of one request; `hot_rows` counts rows at r = 1.
constexpr int hot_frames(int hot_rows, int page_tokens) { return static_cast<int>(pages_for(hot_rows, page_tokens)); }

/// Frames that a request of up to `tokens_max` tokens cannot run without: the smaller of its whole history and tail +
/// hot rows. Without a row cache in the tiers a request is always whole (`caches` false).
constexpr int required_frames(std::int64_t tokens_max, int page_tokens, int tail, int hot, bool caches = true) {
  std::int64_t const whole = pages_for(tokens_max, page_tokens);
  return static_cast<int>(caches ? std::min<std::int64_t>(whole, std::int64_t{tail} + hot) : whole);
}

/// Ways of the hot-row table of one source set: its frames' rows, in whole sets of 16 ways; fewer than 16 make a single
/// set of their own.
constexpr int table_ways(int hot_frames, int rows_per_page) {
  int const rows = hot_frames * rows_per_page;
  return rows < set_ways ? rows : rows / set_ways * set_ways;
}

/// The fewest hot rows whose table has at least `ways` ways.
constexpr int least_hot_rows(int ways, int rows_per_page, int page_tokens) {
  int const rows = ways < set_ways ? ways : (ways + set_ways - 1) / set_ways * set_ways;
  return (static_cast<int>(pages_for(rows, rows_per_page)) - 1) * page_tokens + 1;
}

/// Staging slots that let every claim of one resolve succeed beside the smallest table: what max_queries · top_k rows
/// need beyond it.
constexpr int default_staging_rows(int max_queries, int top_k, int smallest_ways) {
  return std::max(0, max_queries * top_k - smallest_ways);
}

/// Row slots that a request's plane of staging really has: whole pages of `rows_per_page`, so that rows with page-end
/// segments keep their page layout there. Give the largest rows per page of the local sources.
constexpr int staging_slots(int staging_rows, int rows_per_page) {
  return static_cast<int>(pages_for(staging_rows, rows_per_page)) * rows_per_page;
}

/// Bytes of one request's plane of staging; `widest` is the layout with the most rows per page.
constexpr std::int64_t staging_plane_bytes(page_layout widest, int staging_rows) {
  return pages_for(staging_rows, widest.rows) * widest.stride;
}

/// Planes of staging per request, alternating by source: one is copied into while the layer before attends to the
/// other.
constexpr int staging_planes(int largest_set) { return std::min(largest_set, 2); }

/// Bits that hold every position of a history of `max_tokens` tokens at the smallest ratio: 8 at least, so that stamps
/// stay small enough to be ranked together with their place.
constexpr int position_bits(std::int64_t max_tokens, int smallest_ratio) {
  std::int64_t const rows = complete_rows(max_tokens, smallest_ratio);
  return std::max(8, rows < 2 ? 1 : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(rows - 1))));
}

/// The longest history whose positions, at ratio `ratio`, leave a table word of `exponent_bits` stamps for four steps of
/// `groups` resolves.
constexpr std::int64_t longest_history(int exponent_bits, int groups, int ratio) {
  int stamps = 4;
  while (((1 << stamps) - 1) / 2 <= groups) ++stamps;
  std::int64_t const rows = std::int64_t{1} << (32 - exponent_bits - stamps);
  return std::min(most_tokens, (rows + 1) * ratio - 1);
}

/// Bytes of one request's row in the resident map.
constexpr std::int64_t map_bytes(std::int64_t max_tokens, int page_tokens) {
  return pages_for(max_tokens, page_tokens) * static_cast<std::int64_t>(sizeof(map_entry));
}

static_assert(tail_pages(64, 1, 1) == 3 && tail_pages(64, 8, 2) == 3 && tail_pages(16, 16, 3) == 5 &&
              tail_pages(16, 5, 4) == 4);
static_assert(hot_frames(4096, 64) == 64 && hot_frames(4097, 64) == 65 && hot_frames(0, 64) == 0);
static_assert(required_frames(500'000, 64, 3, 64) == 67 && required_frames(128, 64, 3, 64) == 2 &&
              required_frames(500'000, 64, 3, 0, false) == 7813);
static_assert(table_ways(64, 64) == 4096 && table_ways(1, 8) == 8 && table_ways(3, 8) == 16 && table_ways(0, 64) == 0);
static_assert(least_hot_rows(2048, 64, 64) == 1985 && table_ways(hot_frames(1985, 64), 64) == 2048 &&
              table_ways(hot_frames(1984, 64), 64) == 1984);
static_assert(least_hot_rows(100, 8, 16) == 209 && table_ways(hot_frames(209, 16), 8) == 112 &&
              table_ways(hot_frames(208, 16), 8) == 96);
static_assert(default_staging_rows(8, 2048, 4096) == 12'288 && default_staging_rows(1, 2048, 4096) == 0);
static_assert(staging_slots(12'288, 64) == 12'288 && staging_slots(1, 64) == 64 && staging_slots(0, 64) == 0);
static_assert(staging_plane_bytes({{576, 8}, 64, 576}, 65) == 2 * 37'440);
static_assert(position_bits(1 << 20, 1) == 20 && position_bits(1 << 20, 4) == 18 &&
              position_bits((1 << 20) + 1, 1) == 21 && position_bits(1, 1) == 8);
static_assert(map_bytes(1 << 20, 64) == 131'072);

}  // namespace ebb

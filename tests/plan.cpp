#include <ebb/arenas.hpp>
#include <ebb/host/serial_space.hpp>
#include <ebb/metadata/flashinfer_packed.hpp>
#include <ebb/models.hpp>
#include <ebb/plan.hpp>

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>

namespace {

using namespace ebb;

constexpr std::int64_t gib = 1LL << 30;

/// Three dense sources at ratio 2 and a row a token, side by side, the row's scales at the page end.
template <int R>
struct mixed : policy_defaults {
  static constexpr row_segments row{96, 8};
  static constexpr int page_tokens = 32;
  static constexpr int top_k = 40;
  static constexpr int max_queries = 2;
  static constexpr std::array<layer_binding, 4> layers{{{0, 0}, {0, 1}, {0, 2}, {1, 3}}};
  static constexpr std::array<int, 4> ratios{R, R, R, 1};
};
struct packed_and_counted : mixed<4> {
  using keep = most_selected;
  using metadata = flashinfer_packed;
};
struct without_cache : mixed<2> {
  using tiers = tier_list<lent_pages, host_pages>;
};
struct without_loans : mixed<2> {
  using tiers = tier_list<hot_rows<lru>, staging_rows, host_pages>;
};
struct without_staging : mixed<2> {
  using tiers = tier_list<hot_rows<lru>, host_pages>;
};
struct with_keys : mixed<2> {
  static constexpr int index_row_bytes = 10;
};

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (std::invalid_argument const& e) {
    return e.what();
  }
  return "nothing thrown";
}

/// GPU bytes of `n` requests, added up piece by piece, with room for the alignment of arenas to the widest page.
template <class P>
std::int64_t bytes_of(plan_inputs const& in, std::int64_t n, std::int64_t frames) {
  auto const plan = plan_for<P>(in);
  std::int64_t bytes = 3 * (32 * 104 - 32 / P::ratios[0] * 104) + frames * plan.frame_bytes;
  for (std::int64_t slot = 0; slot < std::max(n, in.requests); ++slot) bytes += plan.slot_bytes + plan.step_bytes;
  for (std::int64_t i = 0; i < n; ++i) bytes += in.engine_bytes + plan.index_bytes;
  return bytes;
}

struct drafted : models::glm53_fp8 {
  static constexpr draft_window draft{2048, 6, 4096};
};
struct one_query : models::glm53_fp8 {
  static constexpr int max_queries = 1;
};

TEST_CASE("a GLM-5.3 session needs the frames, words and staging worked out by hand") {
  constexpr auto plan = plan_for<models::glm53_fp8>({.gpu_bytes = 64 * gib,
                                                     .host_bytes = 500 * gib,
                                                     .history = 500'000,
                                                     .growth = 10,
                                                     .max_tokens = 1 << 20,
                                                     .hot_rows = 4096,
                                                     .steps_in_flight = 2});
  CHECK(plan.frame_bytes == 2'875'392);  // 78 × 64 × 576
  CHECK(plan.tail_pages == 3);           // 16 tokens may be written
  CHECK(plan.hot_frames == 64);
  CHECK(plan.required_frames == 67);
  CHECK(plan.whole_pages == 7813);                             // 500,010 tokens
  CHECK(plan.staging_rows == 12'288);                          // 8 × 2048 − 4096
  CHECK(plan.slot_bytes == 131'072 + 4 * 64 + 4 * 21 * 4096);  // map, numbers of hot frames, words of the tables
  // two planes, their words, a wanted row of 16 bytes for each selected one (shared memory holds 1,024 of the list), and
  // the plan for a group's other sources
  CHECK(plan.step_bytes == 2LL * 12'288 * 576 + 4 * 12'288 + 16 * (8 * 2048 - 1024) + 16 * 8 * 2048);
  CHECK(plan.draft_bytes == 0);
  CHECK(plan.index_bytes == 500'010LL * 21 * 132);  // one key for each group that selects
}

TEST_CASE("two planes of a GLM-5.3 session and a draft ring stay below the published 0.061 GiB") {
  plan_inputs const in{.gpu_bytes = 64 * gib,
                       .host_bytes = 5000 * gib,
                       .history = 500'000,
                       .growth = 10,
                       .max_tokens = 1 << 20,
                       .hot_rows = 4096};
  auto const with = plan_for<drafted>(in);
  auto const without = plan_for<one_query>(in);
  CHECK(with.draft_bytes == 2064LL * 6 * 4096);
  CHECK(without.draft_bytes == 0);
  std::int64_t const added = with.draft_bytes + with.step_bytes - without.step_bytes;
  CHECK(with.slot_bytes == without.slot_bytes);
  CHECK(with.required_frames == without.required_frames);
  CHECK(added * 1000 <= 61 * gib);
  CHECK(with.adaptive.requests < without.adaptive.requests);
}

TEST_CASE("a drafter that reads full history is one more source and group, with room to write ahead") {
  plan_inputs const in{.gpu_bytes = 64 * gib,
                       .host_bytes = 500 * gib,
                       .history = 500'000,
                       .max_tokens = 1 << 19,
                       .hot_rows = 4096,
                       .steps_in_flight = 6};
  auto const with = plan_for<models::glm53_fp8_mtp>(in);
  auto const without = plan_for<models::glm53_fp8>(in);
  CHECK(with.frame_bytes == without.frame_bytes / 78 * 79);
  CHECK(with.slot_bytes == without.slot_bytes + 4 * 4096);
  CHECK(without.tail_pages == 3);  // 6 × 8 tokens
  CHECK(with.tail_pages == 3);     // 8 × 8
  CHECK(tail_pages(64, 8, 7, true) == 4);
}

TEST_CASE("V4.1 takes 890 bytes a token with its index keys") {
  constexpr auto plan = plan_for<models::dsv41_flash_fp4>(
      {.gpu_bytes = gib, .host_bytes = gib, .history = 1280, .max_tokens = 1280, .hot_rows = 16'384});
  CHECK(plan.frame_bytes * plan.whole_pages + plan.index_bytes == 890 * 1280);
  CHECK(plan.hot_frames == 128);
  CHECK(plan.staging_rows == 0);  // 6 × 512 rows find room in the smallest table of 8192 ways
  CHECK(plan.slot_bytes == 8 * 10 + 4 * 128 + 4 * (3 * 8192 + 16'384));
  // the list, less what shared memory holds, and the candidates of a prefetch
  CHECK(plan.step_bytes == 16 * (6 * 512 - 1024) + 16 * 16'384);
}

TEST_CASE_TEMPLATE("predicted bytes are the sum of every page, slot and word", P, mixed<1>, mixed<2>, mixed<4>) {
  geometry<P> const g;
  constexpr int r = P::ratios[0];
  pool_sizes const sizes{
      .frames = 37, .host_pages = 91, .requests = 5, .max_batch = 4, .max_tokens = 1000, .hot_rows = 170};
  auto const bytes = footprint_of(g, sizes);
  std::int64_t frames = 0;
  std::int64_t pages = 0;
  for (int source = 0; source < 4; ++source) {
    std::int64_t page = 0;
    for (int token = 0; token < 32; token += source == 3 ? 1 : r) page += 104;
    for (int i = 0; i < 91; ++i) pages += page;
    for (int i = 0; i < 37; ++i) frames += page;
    while (frames % (32 * 104) != 0) ++frames;  // the next arena starts at a whole page of 32 rows
  }
  CHECK(bytes.arenas == frames);
  CHECK(bytes.host == pages);
  CHECK(bytes.map == 5 * (32 * 8 + 6 * 4));  // 1000 tokens are 32 pages; six hot frames
  int const first_table = 6 * 32 / r;        // all three are multiples of 16
  int const staging = std::max(0, 2 * 40 - first_table);
  int const slots = (staging + 31) / 32 * 32;
  CHECK(bytes.words == 5LL * 4 * (first_table + 6 * 32) + 4LL * 4 * slots);
  CHECK(bytes.staging == 4LL * 2 * slots * 104);
  CHECK(bytes.lists == 4 * 16 * 2 * 40);  // the plan for later sources; shared memory holds the lists
  CHECK(bytes.device() == bytes.arenas + bytes.staging + bytes.words + bytes.map + bytes.lists);

  arenas<P, serial_space> const owned{
      serial_space{}, g, {.frames = 37, .host_pages = 91, .staging_slots = slots, .max_batch = 4}};
  CHECK(owned.gpu_bytes() == bytes.arenas + bytes.staging);
  CHECK(owned.host_bytes() == bytes.host);
}

TEST_CASE("packed metadata takes one more frame, and use counts a word a page") {
  geometry<mixed<4>> const plain;
  geometry<packed_and_counted> const g;
  pool_sizes const sizes{.frames = 8, .requests = 3, .max_tokens = 320, .hot_rows = 96};
  CHECK(footprint_of(g, sizes).arenas == footprint_of(plain, sizes).arenas + 3 * 8 * 104 + 3 * 24 * 104 + 32 * 104);
  CHECK(footprint_of(g, sizes).map == footprint_of(plain, sizes).map + 3 * 10 * 4);
}

TEST_CASE("borrowed arenas cost a staging plane for every source") {
  geometry<mixed<2>> const g;
  pool_sizes sizes{.requests = 2, .max_batch = 1, .max_tokens = 32, .hot_rows = 96, .staging_rows = 64};
  CHECK(footprint_of(g, sizes).staging == 2 * 64 * 104);
  sizes.borrowed = true;
  CHECK(footprint_of(g, sizes).staging == 4 * 64 * 104);
}

TEST_CASE_TEMPLATE("as many requests fit as predicted, and not one more", P, mixed<1>, mixed<2>, mixed<4>, with_keys,
                   without_loans) {
  for (std::int64_t gpu : {1LL << 20, 7'654'321LL, 1LL << 26}) {
    for (std::int64_t slots : {0, 3, 25}) {
      for (std::int64_t history : {5, 300, 4000}) {
        plan_inputs const in{.gpu_bytes = gpu,
                             .host_bytes = gib,
                             .history = history,
                             .growth = 20,
                             .max_tokens = 5000,
                             .requests = slots,
                             .hot_rows = 170,
                             .engine_bytes = 1111};
        auto const plan = plan_for<P>(in);
        auto const n = plan.fixed.requests;
        INFO("gpu " << gpu << " slots " << slots << " history " << history);
        bool const limited = slots > 0 && n == slots;
        CHECK((n == 0 || bytes_of<P>(in, n, n * plan.required_frames) <= gpu));
        if (plan.fixed.limit == pool::frames) CHECK(bytes_of<P>(in, n + 1, (n + 1) * plan.required_frames) > gpu);
        CHECK((plan.fixed.limit == pool::requests) == limited);
        CHECK(plan.adaptive.requests >= plan.fixed.requests);
        CHECK(plan.loans >= 0);
        CHECK(plan.loans <= n * (plan.whole_pages - plan.required_frames));
        if (n > 0) {
          CHECK(plan.frames >= n * plan.required_frames + plan.loans);
          CHECK(bytes_of<P>(in, n, plan.frames) <= gpu);
          CHECK(bytes_of<P>(in, n, plan.frames + 1) > gpu);
        }
        CHECK(plan.whole_requests <= n);
      }
    }
  }
}

TEST_CASE("the pool that runs out first is named") {
  plan_inputs in{.gpu_bytes = gib, .host_bytes = gib, .history = 3200, .max_tokens = 6400, .hot_rows = 170};
  std::int64_t const page = 3LL * 16 * 104 + 32 * 104;
  in.host_bytes = 700 * page - 1;  // 699 pages, 100 a request
  auto plan = plan_for<mixed<2>>(in);
  CHECK(plan.fixed.requests == 6);
  CHECK(plan.fixed.limit == pool::host_pages);
  CHECK(plan.resident.limit == pool::frames);
  in.requests = 4;
  plan = plan_for<mixed<2>>(in);
  CHECK(plan.fixed.requests == 4);
  CHECK(plan.fixed.limit == pool::requests);
  CHECK(plan.resident.limit == pool::requests);
  in.history = 6401;
  plan = plan_for<mixed<2>>(in);
  CHECK(plan.fixed.requests == 0);
  CHECK(plan.fixed.limit == pool::tokens);
  CHECK(plan.adaptive.limit == pool::tokens);
}

TEST_CASE("a batch smaller than the slots needs less staging") {
  plan_inputs in{
      .gpu_bytes = 1 << 23, .host_bytes = gib, .history = 4000, .max_tokens = 5000, .requests = 40, .hot_rows = 170};
  auto const all = plan_for<mixed<4>>(in);
  in.max_batch = 10;
  auto const ten = plan_for<mixed<4>>(in);
  std::int64_t const spared = 30 * (2 * 32 * 104 + 4 * 32 + 16 * 80);  // 80 rows less 48 ways; a plan of 80
  CHECK(ten.fixed.requests >= all.fixed.requests);
  std::int64_t const more = ten.frames - all.frames;
  CHECK(more * ten.frame_bytes < spared + ten.frame_bytes);
  CHECK((more + 1) * ten.frame_bytes > spared);
  in.max_batch = 41;
  CHECK(message_of([&] { static_cast<void>(plan_for<mixed<4>>(in)); }) ==
        "max_batch is 41; legal: 0 to 40, 0 for all requests");
}

TEST_CASE("slots that never run are paid for") {
  plan_inputs in{.gpu_bytes = 1 << 26, .host_bytes = gib, .history = 4000, .max_tokens = 5000, .hot_rows = 170};
  auto const free = plan_for<mixed<1>>(in).fixed.requests;
  in.requests = 10 * free;
  CHECK(plan_for<mixed<1>>(in).fixed.requests < free);
}

TEST_CASE("what is spare is lent: few requests are whole, and none is where nothing is lent") {
  plan_inputs const in{
      .gpu_bytes = 10'000'000, .host_bytes = gib, .history = 6400, .max_tokens = 6400, .requests = 16, .hot_rows = 96};
  auto const plan = plan_for<mixed<2>>(in);
  REQUIRE(plan.fixed.requests == 16);
  CHECK(plan.required_frames == 6);
  CHECK(plan.whole_pages == 200);
  CHECK(plan.loans == plan.frames - 16 * 6);
  CHECK(plan.whole_requests == plan.frames / 200);
  CHECK(plan_for<without_loans>(in).loans == 0);
  CHECK(plan_for<without_loans>(in).whole_requests == 0);
}

TEST_CASE("a short request is simply whole") {
  auto const plan =
      plan_for<mixed<2>>({.gpu_bytes = gib, .host_bytes = gib, .history = 64, .max_tokens = 6400, .hot_rows = 96});
  CHECK(plan.required_frames == 2);
  CHECK(plan.loans == 0);
}

TEST_CASE("without a row cache every request is whole and has no tables") {
  auto const plan = plan_for<without_cache>({.gpu_bytes = gib, .host_bytes = gib, .history = 6400, .max_tokens = 6400});
  CHECK(plan.required_frames == 200);
  CHECK(plan.slot_bytes == 200 * 8);  // the map
  CHECK(plan.step_bytes == 0);        // the lists are in shared memory
  CHECK(plan.resident.requests - plan.fixed.requests <= 1);
}

TEST_CASE("bad numbers are refused with parameter, value and range, and the nearest legal one is accepted") {
  plan_inputs in{.gpu_bytes = gib, .host_bytes = gib, .history = 100, .max_tokens = 6400, .hot_rows = 96};
  auto const refusal = [&] { return message_of([&] { static_cast<void>(plan_for<mixed<2>>(in)); }); };
  CHECK(refusal() == "nothing thrown");
  in.hot_rows = 64;  // two frames: 32 ways at ratio 2, fewer than 40
  CHECK(refusal() == "hot_rows is 64; legal: 65 to 16777216, for top_k rows in every table");
  in.hot_rows = 65;
  CHECK(refusal() == "nothing thrown");
  in.staging_rows = 31;
  CHECK(refusal() == "staging_rows is 31; legal: 32 to 16777216, for max_queries * top_k rows with the hot rows");
  in.staging_rows = 32;
  CHECK(refusal() == "nothing thrown");
  in.history = 0;
  CHECK(refusal() == "history is 0; legal: 1 to 1073741824");
  in.history = 1;
  in.gpu_bytes = 0;
  CHECK(refusal() == "gpu_bytes is 0; legal: 1 to 1125899906842624");
  in.gpu_bytes = 1;
  CHECK(refusal() == "nothing thrown");
  in.steps_in_flight = 0;
  CHECK(refusal() == "steps_in_flight is 0; legal: 1 to 64");
  in.steps_in_flight = 1;
  in.layers = {4, 1};
  CHECK(refusal() == "layers.first is 4; legal: 0 to 3");
}

TEST_CASE("without staging the hot rows must hold what all queries select") {
  plan_inputs in{.gpu_bytes = gib, .host_bytes = gib, .history = 100, .max_tokens = 6400, .hot_rows = 160};
  CHECK(plan_for<without_staging>(in).staging_rows == 0);  // five frames: 80 ways at ratio 2
  in.hot_rows = 128;
  CHECK_THROWS_AS(static_cast<void>(plan_for<without_staging>(in)), std::invalid_argument);
}

TEST_CASE("a pipeline rank plans for its own layers") {
  plan_inputs in{
      .gpu_bytes = gib, .host_bytes = gib, .history = 6400, .max_tokens = 6400, .hot_rows = 96, .layers = {3, 1}};
  auto const plan = plan_for<mixed<2>>(in);
  CHECK(plan.frame_bytes == 32 * 104);
  CHECK(plan.slot_bytes == 8 * 200 + 4 * 3 + 4 * 96);  // 96 ways hold 2 × 40 rows
  CHECK(plan.step_bytes == 0);
}

}  // namespace

// What is captured and what is written: graphs and their padding, every entry of the metadata, launches, counters.
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "engine.hpp"

namespace graphs_test {

using namespace ebb;
using namespace ebb::testing;

/// Two layers that share a selection and a third of ratio 2, two segments, hot rows for a few selections.
struct captured : policy_defaults {
  static constexpr row_segments row{20, 4};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 3;
  static constexpr std::array<layer_binding, 3> layers{{{0, 0}, {0, 1}, {1, 2}}};
  static constexpr std::array<int, 3> ratios{1, 1, 2};
};
struct captured_flashmla : captured {
  using metadata = flashmla;
};
struct captured_packed : captured {
  using metadata = flashinfer_packed;
  using keep = most_selected;
};

// Batches of 8, 16 and 32 of 40 requests, some whole and some not. The host moves 16 MiB of unrelated memory instead of 2 GiB; on a GPU
// the pieces are of 32 MiB.
TEST_CASE_TEMPLATE("O25: captured steps allocate nothing and are exact, whatever is allocated between", S, EBB_SPACES) {
  using W = watched_space<S>;
  W const space{make_space<S>()};
  engine<captured, W> e{
      space,
      {.frames = 260, .host_pages = 1000, .requests = 40, .max_batch = 32, .max_tokens = 400, .hot_rows = 16},
      std::size_t{64} << 20};
  std::vector<session> all;
  for (int i = 0; i < 40; ++i) all.push_back(e.start(400, i % 4 == 0 ? 20 : 210));
  random_rows select{25};
  std::vector<session*> who;
  for (session& s : all) who.push_back(&s);
  struct plan {
    int batch;
    typename engine<captured, W>::buffers buffers;
    decltype(space.end_capture(e.main)) graph;
  };
  std::vector<plan> plans;
  for (int batch : {8, 16, 32}) {
    std::vector<session*> const some(who.begin(), who.begin() + batch);
    auto const b = e.make_buffers(batch, 2);
    e.keep_buffers();
    step const s = e.begin(some, 2, batch);
    e.fill(b, select);
    space.begin_capture(e.main);
    e.enqueue(s, b);
    plans.push_back({batch, b, space.end_capture(e.main)});
    space.launch(e.main, plans.back().graph);
    e.end(s, std::vector<int>(some.size(), 1));
    e.settle();
  }
  std::vector<std::shared_ptr<std::byte>> pieces;
#if defined(__CUDACC__)
  std::uint32_t const piece = 32u << 20;
#else
  std::uint32_t const piece = 512u << 10;
#endif
  for (int i = 0; i < times<S>(1000, 60); ++i) {
    for (int k = 0; k < 3; ++k) {
      if (pieces.size() < 32) pieces.push_back(space.S::device_memory(select.next() % piece + 1));
      if (select.next() % 2 == 0) {
        std::swap(pieces[select.next() % pieces.size()], pieces.back());
        pieces.pop_back();
      }
    }
    plan& p = plans[static_cast<std::size_t>(select.next() % 3)];
    std::vector<session*> some;
    for (std::size_t at = select.next() % 40; static_cast<int>(some.size()) < p.batch; at = (at + 1) % 40)
      some.push_back(who[at]);
    for (session* s : some) {
      if (s->tokens > 380) e.truncate(*s, s->tokens % 3 == 0 ? 18 : 150);
    }
    long long const before = space.allocations();
    step const s = e.begin(some, 2, p.batch);
    e.fill(p.buffers, select);
    space.launch(e.main, p.graph);
    e.end(s, std::vector<int>(some.size(), static_cast<int>(select.next() % 3)));
    e.settle();
    CHECK(space.allocations() == before);
    REQUIRE(out_of_balance(e.kv) == "");
  }
  counters const c = e.kv.counts();
  CHECK(c.lost == 0);
  CHECK(c.misses > 0);
  CHECK(c.hot_hits > 0);
  CHECK(c.lent_hits > 0);
  CHECK(space.dead_canaries() == 0);
}

template <class P, class S>
void padding(S const& of) {
  using W = watched_space<S>;
  W const space{of};
  // Sizes that no other array has, so that tables are known by them: 13 slots of 32 ways, of 16 in the set of ratio 2, where some of the 24
  // rows of a resolve go to staging; 13 maps of 25 pages.
  engine<P, W> e{space,
                 {.frames = 90, .host_pages = 250, .requests = 13, .max_batch = 8, .max_tokens = 400, .hot_rows = 32}};
  auto const of_size = [&](std::size_t bytes) {
    std::vector<typename W::block> found;
    for (auto const& b : space.seen->device) {
      if (b.bytes == bytes) found.push_back(b);
    }
    REQUIRE(found.size() == 1);
    return found.front();
  };
  auto const wide = of_size(13 * 32 * 4);
  auto const narrow = of_size(13 * 16 * 4);
  auto const map = of_size(13 * 25 * 8);
  // 16 words of staging for each row of the batch, and where pages are ranked by use, a count for each of the map.
  auto const staging = of_size(8 * 16 * 4);
  auto const uses = of_size(P::keep::wants_uses ? 13 * 25 * 4 : 13 * 25 * 8);
  std::vector<session> all;
  for (int i = 0; i < 8; ++i) all.push_back(e.start(400, 180));
  random_rows select{26};
  std::vector<session*> who;
  for (session& s : all) who.push_back(&s);

  auto const b = e.make_buffers(8, 3);
  e.keep_buffers();
  step s = e.begin(who, 3, 8);
  e.fill(b, select);
  space.begin_capture(e.main);
  e.enqueue(s, b);
  auto const graph = space.end_capture(e.main);
  space.launch(e.main, graph);
  e.end(s, std::vector<int>(8, 1));
  e.settle();
  for (int i = 0; i < 5; ++i) {
    s = e.begin(who, 3, 8);
    e.fill(b, select);
    space.launch(e.main, graph);
    e.end(s, std::vector<int>(8, 1));
    e.settle();
  }
  // Three finish; others take their slots and pages, and have rows of their own in the tables.
  std::vector<session> newcomers;
  for (int i = 5; i < 8; ++i) e.kv.finish(all[static_cast<std::size_t>(i)].id);
  who.resize(5);
  for (int i = 0; i < 3; ++i) newcomers.push_back(e.start(400, 200));
  for (int i = 0; i < 2; ++i) e.run_step({&newcomers[0], &newcomers[1], &newcomers[2]}, 3, 1, select);
  e.settle();
  CHECK(newcomers[0].id.slot == 5);
  auto const written = [](std::vector<std::byte> const& bytes) {
    return std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; });
  };
  CHECK(written(space.look(staging)));
  CHECK(written(space.look(uses)));

  // Replayed for the five: tables, map and frames of everybody else stay as they are.
  auto const others = [](std::vector<std::byte> all, int slots, int batch) {
    std::size_t const each = all.size() / static_cast<std::size_t>(slots);
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(each * static_cast<std::size_t>(batch)));
    return all;
  };
  auto const frames_of_newcomers = [&] {
    std::vector<std::byte> bytes;
    for (int source = 0; source < e.kv.local().sources(); ++source) {
      source_view const& v = e.kv.view(e.kv.local().id_of_source(source));
      for (session const& n : newcomers) {
        auto const& r = e.record(n);
        std::vector<frame_id> frames = r.hot;
        for (page_record const& p : r.pages) frames.push_back(p.at.frame);
        for (frame_id f : frames) {
          if (f == frame_id::none) continue;
          std::vector<std::byte> page(static_cast<std::size_t>(v.layout.stride));
          space.peek(page.data(), v.base + index(f) * v.layout.stride, page.size());
          bytes.insert(bytes.end(), page.begin(), page.end());
        }
      }
    }
    return bytes;
  };
  for (int batch : {5, 0}) {
    CAPTURE(batch);
    who.resize(static_cast<std::size_t>(batch));
    s = e.begin(who, 3, 8);
    e.fill(b, select);
    finish(space, e.main);
    auto const wide_before = others(space.look(wide), 13, batch);
    auto const narrow_before = others(space.look(narrow), 13, batch);
    auto const map_before = space.look(map);
    auto const staging_before = others(space.look(staging), 8, batch);
    auto const uses_before = others(space.look(uses), 13, batch);
    auto const frames_before = frames_of_newcomers();
    counters const before = e.kv.counts();
    space.launch(e.main, graph);
    finish(space, e.main);
    counters const after = e.kv.counts();
    CHECK(others(space.look(wide), 13, batch) == wide_before);
    CHECK(others(space.look(narrow), 13, batch) == narrow_before);
    CHECK(space.look(map) == map_before);
    CHECK(others(space.look(staging), 8, batch) == staging_before);
    CHECK(others(space.look(uses), 13, batch) == uses_before);
    CHECK(frames_of_newcomers() == frames_before);
    auto const seen = [](counters const& c) {
      return c.tail_hits + c.lent_hits + c.hot_hits + c.misses + c.invalid + c.rejected;
    };
    CHECK(seen(after) - seen(before) == static_cast<std::uint64_t>(batch * 3 * 2 * 8));  // queries · groups · top-k
    if (batch == 0) CHECK(after.fetched_rows == before.fetched_rows);
    e.end(s, std::vector<int>(who.size(), 1));
    e.settle();  // fillers of padded rows, bytes of the others
  }
  CHECK(space.dead_canaries() == 0);
}

// "Invalid marker" is the metadata's own filler: −1, or a row of zeroes with length 1 where it is packed. Padded rows hold stale positions.
TEST_CASE_TEMPLATE("O26: padded requests of a captured step leave a filler and touch nothing", S, EBB_SPACES) {
  SUBCASE("plain rows") { padding<captured>(make_space<S>()); }
  if constexpr (all_variants<S>) {
    SUBCASE("FlashMLA") { padding<captured_flashmla>(make_space<S>()); }
  }
  SUBCASE("packed") { padding<captured_packed>(make_space<S>()); }
}

/// S = 32 hot rows and K = 16.
template <class M>
struct listed : policy_defaults {
  static constexpr row_segments row{32};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 16;
  static constexpr std::array<layer_binding, 1> layers{{{0, 0}}};
  static constexpr std::array<int, 1> ratios{1};
  using metadata = M;
};

template <class P, class S>
void every_entry(S const& of) {
  using W = watched_space<S>;
  W const space{of};
  engine<P, W> e{space,
                 {.frames = 26, .host_pages = 160, .requests = 5, .max_batch = 5, .max_tokens = 512, .hot_rows = 32}};
  std::vector<session> all;
  for (int length : {0, 3, 31, 37, 500}) all.push_back(e.start(512, length));
  std::vector<session*> who;
  for (session& s : all) who.push_back(&s);
  CHECK_FALSE(e.kv.whole(all.back().id));
  std::vector<std::uint64_t> asked(4);  // valid, −1, beyond the bound
  auto const shape = [&](int form, int c, std::int64_t rows, std::int64_t valid) -> std::int64_t {
    std::int64_t position = valid;
    if (form == 0 && c < 5) position = -1;
    if (form == 1 && c >= 5 && c < 9) position = -1;
    if (form == 2) position = -1;
    if (form == 3) position = c % 2 == 0 ? rows + c : c == 3 ? 2'000'000'000 : c == 5 ? -7 : position;
    ++asked[position == -1 ? 1 : position < 0 || position >= rows ? 2 : 0];
    return position;
  };
  for (int form = 0; form < 5; ++form) {
    CAPTURE(form);
    step const s = e.begin(who);
    auto const b = e.make_buffers(5, 1);  // every entry 123456
    std::uint32_t turn = static_cast<std::uint32_t>(form);
    e.fill(b, [&](session const& one, int, int, int c, std::int64_t rows) {
      return shape(&one == &all[0] && form < 3 ? 2 : form, c, rows,
                   static_cast<std::int64_t>((turn = turn * 69'069u + 1u) >> 8) % rows);
    });
    long long const runs = space.seen->runs;
    e.kv.addresses(e.main, s);
    space.run(e.main, 5,
              write_rows_body{e.kv.view(source_id{0}), e.kv.write_addresses(source_id{0}), b.writes[0], e.wrong()});
    CHECK(space.seen->runs == runs + 2);
    e.kv.resolve(e.main, s, group_id{0}, b.selections[0], b.out[0][0]);
    CHECK(space.seen->runs == runs + 3);  // one launch, no separate fill
    space.run(e.main, 5,
              check_rows_body<P>{e.kv.view(source_id{0}), b.out[0][0], b.rows[0][0], b.lengths[0], e.wrong()});
    e.end(s, std::vector<int>(5, form % 2));
    e.settle();
  }
  counters const c = e.kv.counts();
  CHECK(c.tail_hits + c.lent_hits + c.hot_hits + c.misses == asked[0]);
  CHECK(c.misses > 0);
  CHECK(c.invalid == asked[1]);
  CHECK(c.rejected == asked[2]);
  CHECK(c.lost == 0);
}

/// Two layers that share a selection and a third with one of its own, in blocks of four layers of which the rank has three.
struct side_by_side : listed<interleaved> {
  static constexpr std::array<layer_binding, 3> layers{{{0, 0}, {0, 1}, {1, 2}}};
  static constexpr std::array<int, 3> ratios{1, 1, 1};
};

template <class P, class S>
void every_block(S const& of) {
  constexpr std::int64_t page = 16 * 32, block = 4 * page;
  sizes given{.frames = 26, .host_pages = 160, .requests = 5, .max_batch = 5, .max_tokens = 512, .hot_rows = 32};
  shared_array<std::byte> memory{of, static_cast<std::size_t>(26 * block)};
  std::fill(memory.begin(), memory.end(), std::byte{0xC7});
  std::vector<arena_view> arenas;
  for (int layer = 0; layer < 3; ++layer)
    arenas.push_back({memory.data() + layer * page, block, arena_bytes<P>(given, source_id{layer}, block)});
  given.arenas = arenas;
  engine<P, S> e{of, given};
  std::vector<session> all;
  for (int length : {0, 3, 31, 37, 500}) all.push_back(e.start(512, length));
  std::vector<session*> who;
  for (session& s : all) who.push_back(&s);
  random_rows select{27, 160};
  for (int i = 0; i < 8; ++i) e.run_step(who, 1, i % 2, select);
  e.settle();
  CHECK(e.kv.counts().misses > 0);
  CHECK(e.kv.counts().hot_hits > 0);
  CHECK(e.kv.counts().lost == 0);
  for (std::int64_t i = 0; i < 26 * block; ++i)
    if (i % block >= 3 * page) REQUIRE(memory[static_cast<std::size_t>(i)] == std::byte{0xC7});
}

// The scenario's numbers, and a fifth request of 500 rows: the first four lie in their tails, where S plays no part. −1 stands for each
// metadata's own filler.
TEST_CASE_TEMPLATE("O27: every entry is written, also of an empty row", S, EBB_SPACES) {
  SUBCASE("plain rows") { every_entry<listed<plain_rows>>(make_space<S>()); }
  SUBCASE("packed") { every_entry<listed<flashinfer_packed>>(make_space<S>()); }
  if constexpr (all_variants<S>) {
    SUBCASE("FlashMLA") { every_entry<listed<flashmla>>(make_space<S>()); }
    SUBCASE("pointers") { every_entry<listed<row_pointers>>(make_space<S>()); }
    SUBCASE("interleaved") { every_block<side_by_side>(make_space<S>()); }
  }
}

template <int Bytes>
struct wide : policy_defaults {
  static constexpr row_segments row{Bytes};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 16'384;
  static constexpr std::array<layer_binding, 1> layers{{{0, 0}}};
  static constexpr std::array<int, 1> ratios{1};
  using tiers = tier_list<hot_rows<lru>, staging_rows, host_pages>;
};

template <class P, class S>
void launches(S const& of) {
  using W = watched_space<S>;
  W const space{of};
  engine<P, W> e{
      space,
      {.frames = 300, .host_pages = 600, .requests = 1, .max_batch = 1, .max_tokens = 36'000, .hot_rows = 16'384},
      std::size_t{128} << 20};
  long long runs = space.seen->runs;
  session a = e.start(36'000, 35'000);
  CHECK(space.seen->runs - runs <= 3);  // import of 547 pages
  long long of_a_step = -1;
  std::uint64_t fetched = 0;
  // n scattered rows, or 512 rows in runs of `together`.
  auto const ask = [&](int n, int together) {
    CAPTURE(n);
    CAPTURE(together);
    e.truncate(a, 35'000 - 1);  // empties the tables
    e.run_step({&a}, 1, 1, [](session const&, int, int, int, std::int64_t) { return std::int64_t{-1}; });
    runs = space.seen->runs;
    e.run_step({&a}, 1, 0, [&](session const&, int, int, int c, std::int64_t) -> std::int64_t {
      if (c >= n) return -1;
      int const group = c / together;
      return together == 1 ? c * 2 : group * (together + 3) + c % together;
    });
    if (of_a_step < 0) of_a_step = space.seen->runs - runs;
    CHECK(space.seen->runs - runs == of_a_step);
    e.settle();
    std::uint64_t const now = e.kv.counts().fetched_rows;
    CHECK(now - fetched == static_cast<std::uint64_t>(n));
    CHECK(e.kv.counts().fetched_bytes == now * static_cast<std::uint64_t>(P::row.total()));
    fetched = now;
  };
  for (int n : {1, 16, 512, 16'384}) ask(n, 1);
  for (int together = 2; together <= 64; together *= 2) ask(512, together);
}

// Rates are the H200's to measure (benchmarks); here launches are counted, which must not depend on the number of rows or pages.
TEST_CASE_TEMPLATE("O48: one launch moves any number of rows of any size", S, EBB_SPACES) {
  SUBCASE("890 bytes") { launches<wide<890>>(make_space<S>()); }
  if constexpr (all_variants<S>) {
    SUBCASE("576 bytes") { launches<wide<576>>(make_space<S>()); }
    SUBCASE("1152 bytes") { launches<wide<1152>>(make_space<S>()); }
  }
}

/// 59 columns, so that three queries ask for 177 positions: 100 + 40 + 20 + 12 + 5.
struct scripted : policy_defaults {
  static constexpr row_segments row{24, 8};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 59;
  static constexpr int max_queries = 3;
  static constexpr std::array<layer_binding, 1> layers{{{0, 0}}};
  static constexpr std::array<int, 1> ratios{1};
};

// Without prefetch. Invalid entries: 2 of −1, 3 beyond the bound. 20 rows that were fetched before are hit 5 times each.
TEST_CASE_TEMPLATE("O50: every counter of a scripted step is exact", S, EBB_SPACES) {
  constexpr std::uint64_t bytes = 32;
  S const space = make_space<S>();
  engine<scripted, S> e{
      space, {.frames = 12, .host_pages = 40, .requests = 2, .max_batch = 2, .max_tokens = 600, .hot_rows = 64}};
  session a = e.start(600, 318);  // 20 pages: 17 to 19 are the tail, 4 frames are hot rows, 5 pages lent
  REQUIRE(e.record(a).hot.size() == 4);
  REQUIRE(e.record(a).lent == 5);
  REQUIRE(e.page(a, 12).at.frame != frame_id::none);
  CHECK(e.kv.counts().imported_bytes == 318 * bytes);
  auto const nothing = [](session const&, int, int, int, std::int64_t) { return std::int64_t{-1}; };
  e.run_step({&a}, 1, 0,
             [](session const&, int, int, int c, std::int64_t) -> std::int64_t { return c < 20 ? c * 3 : -1; });
  e.settle();
  counters const before = e.kv.counts();
  CHECK(before.fetched_rows == 20);
  e.run_step({&a}, 3, 2, [](session const&, int, int j, int c, std::int64_t rows) -> std::int64_t {
    int const i = j * 59 + c;
    if (i < 100) return i % 20 * 3;        // hot
    if (i < 140) return 12 * 16 + i % 80;  // lent
    if (i < 160) return 17 * 16 + i % 40;  // tail
    if (i < 172) return 100 + i % 7;       // 7 rows, 12 times
    if (i < 174) return -1;
    return rows + i;
  });
  e.settle();
  counters const after = e.kv.counts();
  auto const grew = [&](auto counters::* which) { return after.*which - before.*which; };
  CHECK(grew(&counters::hot_hits) == 100);
  CHECK(grew(&counters::lent_hits) == 40);
  CHECK(grew(&counters::tail_hits) == 20);
  CHECK(grew(&counters::misses) == 12);
  CHECK(grew(&counters::fetched_rows) == 7);
  CHECK(grew(&counters::fetched_bytes) == 7 * bytes);
  CHECK(grew(&counters::invalid) == 2);
  CHECK(grew(&counters::rejected) == 3);
  CHECK(grew(&counters::lost) == 0);
  CHECK(grew(&counters::staged_rows) == 0);
  CHECK(grew(&counters::steps) == 1);
  // 318 + 2 tokens seal a page: it goes to the host.
  e.kv.wait(e.kv.allocator().book().last);
  e.run_step({&a}, 1, 0, nothing);
  e.settle();
  CHECK(e.kv.counts().backed_up_bytes - before.backed_up_bytes == 16 * bytes);
  CHECK(e.kv.counts().pages.backed_up - before.pages.backed_up == 1);
  // The oldest loan leaves for the engine, and comes back: the other direction.
  std::uint64_t const revoked = e.kv.counts().pages.revoked;
  CHECK(revoked == 1);  // for the page that the two tokens began
  take_id const id = or_throw(e.kv.take(1));
  e.run_step({&a}, 1, 0, nothing);
  auto const frames = e.kv.collect(id);
  REQUIRE(frames);
  e.kv.give(e.main, *frames);
  for (int i = 0; i < 14; ++i) {
    e.kv.wait(e.kv.allocator().book().last);
    e.run_step({&a}, 1, 0, nothing);
  }
  e.settle();
  counters const end = e.kv.counts();
  CHECK(end.pages.revoked == revoked + 1);
  CHECK(end.pages.refilled == 1);
  CHECK(end.refilled_bytes == 16 * bytes);
  // Preempted and resumed with 318 tokens: hot rows for the history, and the 14 rows of the partial page come back.
  e.truncate(a, 318);
  e.kv.wait(e.kv.allocator().book().last);
  e.kv.preempt(a.id);
  e.kv.wait(e.kv.allocator().book().last);
  e.end(e.begin({}), {});
  CHECK(e.kv.counts().restored_bytes == 0);
  REQUIRE(e.kv.resume(a.id));
  e.run_step({&a}, 1, 0, nothing);
  e.kv.wait(e.kv.allocator().book().last);
  e.run_step({&a}, 1, 0, [](session const&, int, int, int c, std::int64_t) { return std::int64_t{304 + c % 14}; });
  e.settle();
  CHECK(e.kv.counts().restored_bytes == 14 * bytes);
  CHECK(e.kv.counts().pages.restored == 1);
  CHECK(e.kv.counts().pages.resumed == 1);
  std::string const text = to_prometheus(end, e.kv.pools());
  CHECK(text.find("\nebb_hot_hits_total 100\n") != std::string::npos);
  CHECK(text.find("\nebb_lent_hits_total 40\n") != std::string::npos);
  CHECK(text.find("\nebb_fetched_rows_total 27\n") != std::string::npos);
  std::string const json = to_json(end, e.kv.pools());
  CHECK(json.find("\"backed_up_bytes\": 512") != std::string::npos);
  CHECK(json.find("\"refilled_bytes\": 512") != std::string::npos);
}

}  // namespace graphs_test

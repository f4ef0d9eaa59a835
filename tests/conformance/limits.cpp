// What fits and what is refused: eviction, host memory, predicted bytes, settings.
#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <sys/syscall.h>
#include <type_traits>
#include <unistd.h>
#include <vector>

#include "engine.hpp"

namespace limits_test {

using namespace ebb;
using namespace ebb::testing;

/// Eight rows a page, so that 8 hot rows are a table of their own, of a single set.
struct eight_ways : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 8;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 4;
  static constexpr std::array<layer_binding, 1> layers{{{0, 0}}};
  static constexpr std::array<int, 1> ratios{1};
  using tiers = tier_list<hot_rows<lru>, staging_rows, host_pages>;
};
struct eight_ways_lrfu : eight_ways {
  using tiers = tier_list<hot_rows<lrfu>, staging_rows, host_pages>;
};
struct lazy : eight_ways {
  static constexpr int page_tokens = 16;
  using tiers = policy_defaults::tiers;
  using backup = on_revoke;
};

// S = 8 takes pages of 8 tokens. The documented tie rule: the least place in the probe list, here the least way and so the least address.
TEST_CASE_TEMPLATE("O39: the victims are the rows not used since, ties by place", S, EBB_SPACES) {
  engine<eight_ways, S> e{
      make_space<S>(),
      {.frames = 8, .host_pages = 16, .requests = 1, .max_batch = 1, .max_tokens = 128, .hot_rows = 8}};
  session a = e.start(128, 100);
  std::vector<std::int32_t> address(10, -1);
  auto const select = [&](std::vector<int> const& rows) {
    step const s = e.begin({&a}, 1);
    auto const b = e.make_buffers(1, 1);
    e.fill(b, [&](session const&, int, int, int c, std::int64_t) -> std::int64_t {
      return c < static_cast<int>(rows.size()) ? rows[static_cast<std::size_t>(c)] : -1;
    });
    e.enqueue(s, b);
    finish(e.space, e.main);
    for (std::size_t c = 0; c < rows.size(); ++c) address[static_cast<std::size_t>(rows[c])] = b.out[0][0].rows[c];
    e.end(s, {0});
    e.settle();
  };
  select({0, 1, 2, 3, 4, 5, 6, 7});
  std::vector<std::int32_t> const first(address.begin(), address.begin() + 8);
  CHECK(std::set<std::int32_t>(first.begin(), first.end()).size() == 8);
  select({0, 1});
  CHECK(e.kv.counts().hot_hits == 2);
  CHECK(std::equal(first.begin(), first.end(), address.begin()));
  select({8, 9});
  std::vector<std::int32_t> unused(first.begin() + 2, first.end());
  std::sort(unused.begin(), unused.end());
  CHECK(std::set<std::int32_t>{address[8], address[9]} == std::set<std::int32_t>{unused[0], unused[1]});
  CHECK(e.kv.counts().fetched_rows == 10);
  CHECK(e.kv.counts().staged_rows == 0);
  select({0, 1, 8, 9});
  CHECK(e.kv.counts().fetched_rows == 10);
}

// The words of the table are the same after each step, whether one query chose the row or four did.
TEST_CASE_TEMPLATE("O39: four queries of a step are one use", S, EBB_SPACES) {
  auto const tables = [](int choosing) {
    watched_space<S> const space{make_space<S>()};
    engine<eight_ways_lrfu, watched_space<S>> e{
        space, {.frames = 60, .host_pages = 300, .requests = 13, .max_batch = 1, .max_tokens = 128, .hot_rows = 8}};
    session a = e.start(128, 100);
    std::vector<typename watched_space<S>::block> table;
    for (auto const& b : space.seen->device) {
      if (b.bytes == 13 * 16 * 4) table.push_back(b);  // a set of 8 ways has room for 16
    }
    REQUIRE(table.size() == 1);
    std::vector<std::vector<std::uint32_t>> out;
    for (int i = 0; i < 12; ++i) {
      e.run_step({&a}, 4, 0, [&](session const&, int, int j, int c, std::int64_t) -> std::int64_t {
        return j < choosing && c != i % 8 ? 20 + c : -1;
      });
      e.settle();
      std::vector<std::byte> const bytes = space.look(table.front());
      auto& words = out.emplace_back(bytes.size() / 4);
      std::memcpy(words.data(), bytes.data(), bytes.size());
      std::sort(words.begin(), words.end());  // lanes race for the ways
    }
    CHECK(out.back() != out.front());
    return out;
  };
  CHECK(tables(1) == tables(4));
}

#if !defined(__CUDACC__)

// Copies of one instance end in the order of their tickets (one side stream), so "in reverse order" is made by refusing those of the older
// pages at first.
TEST_CASE_TEMPLATE("O39: who is revoked does not depend on when copies end", S, EBB_SPACES) {
  auto const left = [](bool reverse) {
    S const space = make_deferred_space<S>(39);
    engine<lazy, S> e{
        space, {.frames = 10, .host_pages = 40, .requests = 2, .max_batch = 1, .max_tokens = 512, .hot_rows = 16}};
    session a = e.start(512);
    e.adopt(a, *e.kv.collect(or_throw(e.kv.take(6))), 6 * 16);
    e.adopt(a, *e.kv.collect(or_throw(e.kv.take(3))), 9 * 16);
    e.run_step({&a}, 1, 0, random_rows{39});
    e.settle();
    REQUIRE(e.record(a).lent == 6);
    int allowed = reverse ? 3 : 0;
    space.refuse_copies([&](copy_kind kind, int, int page) {
      return kind == copy_kind::backup && reverse && page != 0 && page < allowed;
    });
    take_id const id = or_throw(e.kv.take(3));
    std::vector<int> order;
    std::optional<std::vector<frame_id>> got;
    for (int i = 0; i < 20 && !got; ++i) {
      e.kv.wait(e.kv.allocator().book().last);
      if (i % 4 == 3 && allowed > 1) --allowed;
      e.run_step({&a}, 1, 0, random_rows{static_cast<std::uint32_t>(i)});
      e.settle();
      for (int p = 1; p < 7; ++p) {
        bool const gone = e.page(a, p).at.frame == frame_id::none;
        if (gone && std::find(order.begin(), order.end(), p) == order.end()) order.push_back(p);
      }
      got = e.kv.collect(id);
    }
    REQUIRE(got);
    CHECK(e.kv.counts().pages.revoked == 3);
    CHECK(out_of_balance(e.kv) == "");
    if (reverse) CHECK(order == std::vector<int>{3, 2, 1});
    std::sort(order.begin(), order.end());
    return order;
  };
  CHECK(left(false) == std::vector<int>{1, 2, 3});
  CHECK(left(true) == std::vector<int>{1, 2, 3});
}
TEST_CASE("O39: a ticket counts as done when all before it are") {
  serial_space const space;
  auto const first = space.make_stream(), second = space.make_stream();
  ticket_log<serial_space, int> log{space};
  auto gate = space.close_gate(first);
  log.add(ticket{1}, space.record(first), 10);
  log.add(ticket{2}, space.record(second), 20);
  CHECK(!log.reached(ticket{2}));
  CHECK(log.done() == ticket::none);
  gate.open();
  CHECK(log.reached(ticket{2}));
  CHECK(log.done() == ticket{2});
  std::vector<int> order;
  log.take_until(ticket{2}, [&](int n) { order.push_back(n); });
  CHECK(order == std::vector<int>{10, 20});
}

// A stub: what a driver or memlock would refuse is a limit of the space. That pinning itself is refused, and by which limit, only a GPU
// shows (history.cuh, which also names how to raise memlock).
TEST_CASE_TEMPLATE("O40: host memory that is refused is refused with bytes asked and limit, and replaced by nothing", S,
                   EBB_SPACES) {
  std::int64_t const wanted = 64 * 16 * 16;
  sizes const given{.frames = 16,
                    .host_pages = 64,
                    .requests = 2,
                    .max_batch = 2,
                    .max_tokens = 256,
                    .hot_rows = 16,
                    .host = host_kind::pinned};
  for (char const* reason : {"single blocks above 4 GiB", "memlock limit 65536; raise it with ulimit -l unlimited"}) {
    watched_space<S> const space{make_space<S>()};
    space.limit_history(static_cast<std::size_t>(wanted - 1), reason);
    try {
      residency<lazy, watched_space<S>> const kv{space, given};
      FAIL("was not refused");
    } catch (std::runtime_error const& e) {
      std::string const message = e.what();
      CHECK(message.find(reason) != std::string::npos);
      CHECK(message.find(std::to_string(wanted - 1)) != std::string::npos);
      CHECK(message.find(" bytes wanted") != std::string::npos);
    }
    CHECK(space.seen->kinds == std::vector<host_kind>{host_kind::pinned});  // asked for once, never as another kind
    CHECK(space.seen->history.empty());
  }
  // Exactly the configured bytes, once; a drafter's instance asks for its own, and is refused where only one fits.
  S const space = make_space<S>();
  space.limit_history(static_cast<std::size_t>(wanted), "test");
  {
    residency<lazy, S> const target{space, given};
    CHECK(target.pools().host_bytes == wanted);
    CHECK_THROWS_WITH_AS((residency<lazy, S>{space, given}), doctest::Contains("0 available"), std::runtime_error);
  }
  space.limit_history(static_cast<std::size_t>(2 * wanted), "test");
  residency<lazy, S> const target{space, given};
  residency<lazy, S> const drafter{space, given};
  CHECK_THROWS_AS(space.history_memory(1, host_kind::pinned), std::runtime_error);
}

#endif  // host spaces

TEST_CASE_TEMPLATE("O40: an instance asks for its host memory once, as configured", S, EBB_SPACES) {
  for (host_kind kind : {host_kind::managed, host_kind::pinned}) {
    watched_space<S> const space{make_space<S>()};
    engine<lazy, watched_space<S>> target{space,
                                          {.frames = 16,
                                           .host_pages = 64,
                                           .requests = 2,
                                           .max_batch = 2,
                                           .max_tokens = 256,
                                           .hot_rows = 16,
                                           .host = kind}};
    engine<lazy, watched_space<S>> drafter{space,
                                           {.frames = 16,
                                            .host_pages = 32,
                                            .requests = 2,
                                            .max_batch = 2,
                                            .max_tokens = 256,
                                            .hot_rows = 16,
                                            .host = kind}};
    REQUIRE(space.seen->history.size() == 2);
    CHECK(space.seen->history[0].bytes == 64 * 16 * 16);
    CHECK(space.seen->history[1].bytes == 32 * 16 * 16);
    CHECK(space.seen->kinds == std::vector<host_kind>(2, kind));
    session a = target.start(256, 200);
    session b = drafter.start(256, 100);
    for (int i = 0; i < 4; ++i) {
      target.run_step({&a}, 4, 2, random_rows{40});
      drafter.run_step({&b}, 4, 2, random_rows{41});
    }
    target.settle();
    drafter.settle();
    CHECK(space.dead_canaries() == 0);
  }
}

template <int Ratio>
struct of_ratio : policy_defaults {
  static constexpr row_segments row{24, 8};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 2;
  static constexpr std::array<layer_binding, 2> layers{{{0, 0}, {0, 1}}};
  static constexpr std::array<int, 2> ratios{Ratio, Ratio};
};
struct packed_ratio_2 : of_ratio<2> {
  using metadata = flashinfer_packed;
  using keep = most_selected;
};
/// Three layers of ratio 2, then 57 of ratio 1, each with a selection of its own.
struct sixty_layers : policy_defaults {
  static constexpr row_segments row{24, 8};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr auto layers = separate_layers<60>();
  static constexpr auto ratios = [] {
    auto out = equal_ratios<60>();
    out[0] = out[1] = out[2] = 2;
    return out;
  }();
};

/// Arrays that a footprint does not count: they grow with neither top_k nor history nor hot rows.
template <class P>
std::int64_t small_arrays(geometry<P> const& g, int requests, int batch, int hot_rows) {
  std::int64_t const rows = std::int64_t{batch} * P::max_queries;
  int const widest = P::page_tokens / g.smallest_ratio();
  std::int64_t const slots = staging_slots(staging_rows_for(g, hot_rows, -1), widest);
  std::int64_t bytes = g.sources() * static_cast<std::int64_t>(sizeof(source_view));
  bytes += (3 + g.sets()) * 4;                                     // header
  bytes += batch * static_cast<std::int64_t>(sizeof(row_record));  // requests of the step
  bytes += std::int64_t{requests} * 4;                             // committed lengths
  bytes += rows * 4 * (1 + ratio_count<P>);                        // bounds, write addresses
  bytes += (std::int64_t{batch} + 1) * 4;                          // where each request's rows begin
  if (P::tiers::caches && g.largest_set() > 1) bytes += std::int64_t{batch} * 4;  // rows planned for each request
  bytes += std::int64_t{batch} * device_counts * 8;
  bytes += batch * (std::max<std::int64_t>(slots, set_ways) - slots) * 4;  // a look reads a whole set
  return bytes;
}

template <class P, class S>
void predicted(S const& of) {
  using W = watched_space<S>;
  auto const device_bytes = [](W const& space) {
    std::int64_t bytes = 0;
    for (auto const& b : space.seen->device) bytes += static_cast<std::int64_t>(b.bytes);
    return bytes;
  };
  geometry<P> const g;
  {
    // A window of 62 pages on the GPU (992 rows at ratio 1), 625 in the host store (10,000): 5,000 tokens are welcome.
    W const space{of};
    engine<P, W> e{
        space,
        {.frames = 62, .host_pages = 625, .requests = 3, .max_batch = 2, .max_tokens = 9000, .hot_rows = 128},
        std::size_t{64} << 20};
    footprint const p = footprint_of(
        g, {.frames = 62, .host_pages = 625, .requests = 3, .max_batch = 2, .max_tokens = 9000, .hot_rows = 128});
    CHECK(e.kv.pools().gpu_bytes == p.arenas + p.staging);
    CHECK(e.kv.pools().host_bytes == p.host);
    REQUIRE(space.seen->history.size() == 1);
    CHECK(static_cast<std::int64_t>(space.seen->history[0].bytes) == p.host);
    CHECK(device_bytes(space) == p.device() + small_arrays(g, 3, 2, 128));
    session a = e.start(5100, 5000);
    for (int i = 0; i < 2; ++i) e.run_step({&a}, P::max_queries, 1, random_rows{static_cast<std::uint32_t>(i)});
    e.settle();
    CHECK(e.kv.counts().misses > 0);
  }
  // An instance sized by the planner takes what it was given, no more, and serves as many requests.
  plan_inputs const in{.gpu_bytes = g.page_bytes() * 150 + (1 << 20),
                       .host_bytes = g.page_bytes() * 1000 + 7,
                       .history = 900,
                       .growth = 100,
                       .max_tokens = 1000,
                       .hot_rows = 128};
  capacity_plan const plan = plan_for<P>(in);
  REQUIRE(plan.adaptive.requests > 0);
  CHECK(plan.frame_bytes == g.page_bytes());
  W const space{of};
  int const n = static_cast<int>(plan.adaptive.requests);
  residency<P, W> kv{space,
                     {.frames = static_cast<int>(plan.frames),
                      .host_pages = static_cast<int>(plan.host_pages),
                      .requests = n,
                      .max_batch = n,
                      .max_tokens = 1000,
                      .hot_rows = 128}};
  footprint const p = footprint_of(g, {.frames = plan.frames,
                                       .host_pages = plan.host_pages,
                                       .requests = n,
                                       .max_batch = n,
                                       .max_tokens = 1000,
                                       .hot_rows = 128});
  CHECK(kv.pools().gpu_bytes == p.arenas + p.staging);
  CHECK(kv.pools().host_bytes == plan.host_pages * plan.frame_bytes);
  CHECK(kv.pools().host_bytes <= in.host_bytes);
  CHECK(p.device() + n * plan.index_bytes <= in.gpu_bytes);
  CHECK(device_bytes(space) == p.device() + small_arrays(g, n, n, 128));
  for (int i = 0; i < n; ++i) CHECK(kv.admit(1000));
  CHECK_FALSE(kv.admit(1000));
}
TEST_CASE_TEMPLATE("O44: predicted bytes are allocated bytes, and the window limits no request", S, EBB_SPACES) {
  SUBCASE("ratio 1") { predicted<of_ratio<1>>(make_space<S>()); }
  SUBCASE("ratio 2") { predicted<of_ratio<2>>(make_space<S>()); }
  SUBCASE("ratio 4") { predicted<of_ratio<4>>(make_space<S>()); }
  SUBCASE("ratio 2, packed, with use counts") { predicted<packed_ratio_2>(make_space<S>()); }
  SUBCASE("3 layers of ratio 2 and 57 of ratio 1") { predicted<sixty_layers>(make_space<S>()); }
}

/// The share of pages of memory that are on the node, and how many there are; −1 where the system does not say.
inline double share_on_node(std::byte const* memory, std::size_t bytes, int node) {
  std::size_t const page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<void*> pages;
  for (std::size_t at = 0; at < bytes; at += page) pages.push_back(const_cast<std::byte*>(memory) + at);
  std::vector<int> nodes(pages.size(), -1);
  if (syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0) return -1;
  return static_cast<double>(std::count(nodes.begin(), nodes.end(), node)) / static_cast<double>(nodes.size());
}

// A host space has no node to prefer, and a machine of one node no choice: there the report is that all pages are on node 0. On a GPU of a
// machine with several, at least 99 % must be on its own node. Denied binding, a full node: only such a machine can show them.
TEST_CASE_TEMPLATE("O47: host pages are placed once and keep their place", S, EBB_SPACES) {
  for (host_kind kind : {host_kind::managed, host_kind::pinned}) {
    watched_space<S> const space{make_space<S>()};
    engine<lazy, watched_space<S>> e{space,
                                     {.frames = 16,
                                      .host_pages = 4096,
                                      .requests = 4,
                                      .max_batch = 2,
                                      .max_tokens = 512,
                                      .hot_rows = 16,
                                      .host = kind}};
    REQUIRE(space.seen->history.size() == 1);
    auto const store = space.seen->history.front();
    CHECK(e.kv.view(source_id{0}).host == store.memory);
    CHECK(static_cast<std::int64_t>(store.bytes) == e.kv.pools().host_bytes);
    int node = 0;
    bool one_node = access("/sys/devices/system/node/node1", F_OK) != 0;
#if defined(__CUDACC__)
    if (!one_node) node = nearest_node(space.device());
    bool const known = node >= 0;
#else
    bool const known = one_node;
#endif
    double const before = known ? share_on_node(store.memory, store.bytes, node) : -1;
    if (before >= 0) {
      CHECK(before >= 0.99);
    } else {
      MESSAGE("the system does not say where pages are");
    }
    std::set<int> used;
    for (int i = 0; i < 60; ++i) {
      session a = e.start(512, 200 + i);
      for (int p = 0; p < static_cast<int>(e.record(a).pages.size()); ++p) used.insert(index(e.page(a, p).at.host));
      e.run_step({&a}, 2, 1, random_rows{static_cast<std::uint32_t>(i)});
      e.settle();
      e.kv.finish(a.id);
    }
    CHECK(used.size() < 60 * 13);  // pages were reused
    CHECK(space.seen->history.size() == 1);
    if (before >= 0) CHECK(share_on_node(store.memory, store.bytes, node) >= 0.99);
  }
}

/// 40 columns in tables of 16 and of 8 rows a page: hot rows come in whole pages and whole sets of 16 ways.
struct set_sizes : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 40;
  static constexpr int max_queries = 3;
  static constexpr std::array<layer_binding, 2> layers{{{0, 0}, {1, 1}}};
  static constexpr std::array<int, 2> ratios{1, 2};
};
struct set_sizes_lru : set_sizes {
  using tiers = tier_list<lent_pages, hot_rows<lru>, staging_rows, host_pages>;
};
struct no_staging : set_sizes {
  using tiers = tier_list<lent_pages, hot_rows<lru>, host_pages>;
};
struct no_cache : set_sizes {
  using tiers = tier_list<lent_pages, host_pages>;
};

/// What the constructor says; nothing where it accepts.
template <class P>
std::string refusal(sizes const& s) {
  try {
    residency<P, serial_space> const kv{serial_space{}, s};
    return "";
  } catch (std::invalid_argument const& e) {
    return e.what();
  }
}
struct bad_setting {
  char const* why;
  sizes bad;
  std::string message;
  sizes nearest;
};

/// What the planner says of the same sizes.
template <class P>
std::string planned(sizes const& s) {
  try {
    static_cast<void>(plan_for<P>({.gpu_bytes = 1 << 30,
                                   .host_bytes = 1 << 30,
                                   .history = 1,
                                   .max_tokens = s.max_tokens,
                                   .requests = s.requests,
                                   .max_batch = s.max_batch,
                                   .hot_rows = s.hot_rows,
                                   .staging_rows = s.staging_rows,
                                   .steps_in_flight = s.steps_in_flight}));
    return "";
  } catch (std::invalid_argument const& e) {
    return e.what();
  }
}
/// Constructor and planner accept these sizes, and refuse them with `which` moved by `by`.
template <class P>
void last_legal(sizes const& s, auto sizes::* which, int by) {
  CHECK(refusal<P>(s) == "");
  CHECK(planned<P>(s) == "");
  sizes beyond = s;
  beyond.*which += by;
  CHECK(refusal<P>(beyond) != "");
  CHECK(planned<P>(beyond) != "");
}

// The numbers are worked out by hand: 32 bits less position bits and two of use leave 4 for stamps, since two groups make two in a step.
TEST_CASE("O51: planner and constructor have the same limits") {
  sizes s{.frames = 60, .host_pages = 80, .requests = 1, .max_batch = 1, .max_tokens = 1 << 26, .hot_rows = 96};
  last_legal<set_sizes>(s, &sizes::max_tokens, 1);
  s.max_tokens = 1 << 28;
  last_legal<set_sizes_lru>(s, &sizes::max_tokens, 1);
  s.hot_rows = 241;
  last_legal<no_staging>(s, &sizes::max_tokens, 1);
  s.max_tokens = 512;
  last_legal<no_staging>(s, &sizes::hot_rows, -1);
  s.hot_rows = 81;
  last_legal<set_sizes>(s, &sizes::hot_rows, -1);
  last_legal<set_sizes_lru>(s, &sizes::hot_rows, -1);
  s.staging_rows = 72;
  last_legal<set_sizes>(s, &sizes::staging_rows, -1);
  s.steps_in_flight = 64;
  last_legal<set_sizes>(s, &sizes::steps_in_flight, 1);
  s.max_batch = 1;
  last_legal<set_sizes>(s, &sizes::max_batch, 1);
  s.requests = 1 << 20;
  CHECK(planned<set_sizes>(s) == "");  // slots of so many would take gigabytes
  ++s.requests;
  CHECK(planned<set_sizes>(s) == "requests is 1048577; legal: 0 to 1048576, 0 for as many as fit");
}

// Compile-time settings (P = 0, B = 0, G not dividing P, no K, more than 16 queries) are refused in tests/reject. A window comes with the
// draft ring. A store smaller than one request is refused at admission, as a length above the maximum is.
TEST_CASE("O51: a bad setting is refused with parameter, value and range, and the nearest legal one is accepted") {
  sizes const good{.frames = 40, .host_pages = 80, .requests = 4, .max_batch = 2, .max_tokens = 512, .hot_rows = 96};
  CHECK(refusal<set_sizes>(good) == "");
  auto const with = [&](auto sizes::* which, auto value) {
    sizes s = good;
    s.*which = static_cast<std::remove_reference_t<decltype(s.*which)>>(value);
    return s;
  };
  auto const check = [](std::string const& said, std::string const& message) {
    CAPTURE(said);
    CHECK(said.substr(0, message.size()) == message);
  };
  std::vector<bad_setting> const table{
      {"no frames", with(&sizes::frames, 0), "frames is 0; legal: 1 or more", with(&sizes::frames, 1)},
      {"negative frames", with(&sizes::frames, -3), "frames is -3; legal: 1 or more", with(&sizes::frames, 1)},
      {"no host pages", with(&sizes::host_pages, 0), "host_pages is 0; legal: 1 or more", with(&sizes::host_pages, 1)},
      {"no requests", with(&sizes::requests, 0), "requests is 0; legal: 1 or more", with(&sizes::requests, 2)},
      {"no batch", with(&sizes::max_batch, 0), "max_batch is 0; legal: 1 or more", with(&sizes::max_batch, 1)},
      {"batch above requests", with(&sizes::max_batch, 5), "max_batch is 5; legal: up to requests, 4",
       with(&sizes::max_batch, 4)},
      {"no tokens", with(&sizes::max_tokens, 0), "max_tokens is 0; legal: 1 or more", with(&sizes::max_tokens, 1)},
      {"tokens beyond int32 positions", with(&sizes::max_tokens, (1LL << 30) + 1),
       "max_tokens is 1073741825; legal: up to 67108864", good},
      {"no step in flight", with(&sizes::steps_in_flight, 0), "steps_in_flight is 0; legal: 1 to 64",
       with(&sizes::steps_in_flight, 1)},
      {"negative budget", with(&sizes::refill_bytes, -1), "refill_bytes is -1; legal: 0 or more",
       with(&sizes::refill_bytes, 0)},
      {"negative hot rows", with(&sizes::hot_rows, -1), "hot_rows is -1; legal: 0 to 16777216", good},
      // S < K: 40 ways need 48, in sets of 16; at 8 rows a page that is 6 pages, the sixth begun by row 81.
      {"hot rows below top-k", with(&sizes::hot_rows, 80), "hot_rows is 80; legal: at least 81",
       with(&sizes::hot_rows, 81)},
      {"no hot rows", with(&sizes::hot_rows, 0), "hot_rows is 0; legal: at least 81", with(&sizes::hot_rows, 81)},
      // Q x K = 120, the smaller table has 48 ways.
      {"queries x top-k beyond both", with(&sizes::staging_rows, 71), "staging_rows is 71; legal: at least 72",
       with(&sizes::staging_rows, 72)},
      {"no staging", with(&sizes::staging_rows, 0), "staging_rows is 0; legal: at least 72",
       with(&sizes::staging_rows, 72)},
      {"endless hot rows", with(&sizes::hot_rows, std::numeric_limits<int>::max()),
       "hot_rows is 2147483647; legal: 0 to 16777216", good},
      {"endless staging", with(&sizes::staging_rows, std::numeric_limits<int>::max()),
       "staging_rows is 2147483647; legal: 0 to 16777216", with(&sizes::staging_rows, 72)},
      {"endless steps", with(&sizes::steps_in_flight, std::numeric_limits<int>::max()),
       "steps_in_flight is 2147483647; legal: 1 to 64", with(&sizes::steps_in_flight, 64)},
      {"100 million requests", with(&sizes::requests, 100'000'000), "requests is 100000000; legal: up to 1048576",
       good},
      {"endless requests", with(&sizes::requests, std::numeric_limits<int>::max()),
       "requests is 2147483647; legal: up to 1048576", good},
      {"endless tokens", with(&sizes::max_tokens, std::numeric_limits<std::int64_t>::max()),
       "max_tokens is 9223372036854775807; legal: up to 67108864", good},
      {"staging of -2", with(&sizes::staging_rows, -2), "staging_rows is -2; legal: 0 to 16777216, or -1",
       with(&sizes::staging_rows, -1)},
      {"first layer", with(&sizes::layers, layer_range{2, 1}), "layers.first is 2; legal: 0 to 1",
       with(&sizes::layers, layer_range{1, 1})},
      {"layer count", with(&sizes::layers, layer_range{1, 2}), "layers.count is 2; legal: 1 to 1",
       with(&sizes::layers, layer_range{1, 1})},
  };
  for (bad_setting const& t : table) {
    CAPTURE(t.why);
    check(refusal<set_sizes>(t.bad), t.message);
    CHECK(refusal<set_sizes>(t.nearest) == "");
  }
  // Words of 32 bits: position, two bits of use, at least four of stamp; positions of the smallest ratio.
  sizes many = with(&sizes::max_tokens, (1LL << 26) + 1);
  many.requests = many.max_batch = 1;
  check(refusal<set_sizes>(many), "max_tokens is 67108865; legal: up to 67108864");
  many.max_tokens = 1 << 26;
  CHECK(refusal<set_sizes>(many) == "");
  many.max_tokens = (1LL << 28) + 1;
  check(refusal<set_sizes_lru>(many), "max_tokens is 268435457; legal: up to 268435456");

  // Without staging the hot rows hold all queries, without a cache there are neither.
  check(refusal<no_staging>(good), "hot_rows is 96; legal: at least 241");
  CHECK(refusal<no_staging>(with(&sizes::hot_rows, 241)) == "");
  sizes three = with(&sizes::hot_rows, 241);
  three.staging_rows = 1;
  check(refusal<no_staging>(three), "staging_rows is 1; legal: 0, where the tiers have no staging_rows");
  check(refusal<no_cache>(good), "hot_rows is 96; legal: 0, where the tiers have no row cache");
  CHECK(refusal<no_cache>(with(&sizes::hot_rows, 0)) == "");

  // Row addresses are int32.
  check(refusal<set_sizes>(with(&sizes::frames, 1 << 27)), "frames is 134217728; legal: ");

  // Borrowed memory: one arena a source, aligned, no page stride below a page's bytes.
  alignas(16) static std::byte memory[2][600 * 256];
  sizes lent = good;
  std::vector<arena_view> arenas{{memory[0], 256, sizeof memory[0]}};
  lent.arenas = arenas;
  check(refusal<set_sizes>(lent), "arenas is 1; legal: one for each local source: 2");
  arenas = {{memory[0], 256, sizeof memory[0]}, {memory[1], 256, sizeof memory[1]}};
  lent.arenas = arenas;
  CHECK(refusal<set_sizes>(lent) == "");
  arenas[0].frame_stride = 240;
  check(refusal<set_sizes>(lent), "arenas: frame_stride is 240; legal: at least 256 and a multiple of 16");
  arenas[0] = {memory[0] + 8, 256, sizeof memory[0] - 8};
  check(refusal<set_sizes>(lent), "arenas: base alignment is 8; legal: a multiple of 16 bytes");
  sizes store = good;
  store.host_memory = {memory[0] + 4, sizeof memory[0] - 4};
  check(refusal<set_sizes>(store), "host_memory: alignment is 4; legal: a multiple of 16 bytes");
  store.host_memory = memory[0];
  CHECK(refusal<set_sizes>(store) == "");

  // At admission: longer than the maximum, and more than the host store has.
  residency<set_sizes, serial_space> kv{serial_space{}, with(&sizes::host_pages, 31)};
  auto const longer = kv.admit(513);
  REQUIRE(!longer);
  CHECK(longer.error().message() == "not enough tokens: wanted 513, free 512, revocable 0 (can never fit)");
  auto const larger = kv.admit(512);
  REQUIRE(!larger);
  CHECK(larger.error().message() == "not enough host pages: wanted 32, free 31, revocable 0 (can never fit)");
  CHECK_THROWS_WITH_AS((void)kv.admit(0), "admit: tokens_max is 0; legal: 1 to max_tokens", std::invalid_argument);
  CHECK(kv.admit(496));
}

}  // namespace limits_test

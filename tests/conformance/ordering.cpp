// O05 to O10: nothing is read before it is written, nor handed out again before everybody is done with it.
#include <algorithm>
#include <stdexcept>

#include "scenario.hpp"

namespace ordering_test {

using namespace ebb;
using namespace ebb::testing;

/// 16 rows a page; tail 3 frames, one frame of hot rows.
struct one_layer : policy_defaults {
  static constexpr row_segments row{64};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 16;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
};
struct one_query : one_layer {
  static constexpr int max_queries = 1;
};
/// Four tokens a row, 16 rows a page.
struct compressed : policy_defaults {
  static constexpr row_segments row{64, 8};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 16;
  static constexpr int max_queries = 4;
  static constexpr auto layers = separate_layers<2>();
  static constexpr auto ratios = equal_ratios<2>(4);
};
struct backed_each_step : compressed {
  using backup = each_step;
};
struct backed_on_revoke : compressed {
  using backup = on_revoke;
};
struct fixed_budget : compressed {
  using tiers = tier_list<hot_rows<lru>, staging_rows, host_pages>;
};
struct always_whole : compressed {
  using tiers = tier_list<lent_pages, host_pages>;
};

template <class P, class S>
using engine_of = engine<P, gated_space<S>>;

/// Whether a page of the host store holds what a session wrote into its page p, every source.
template <class Engine>
bool host_page_holds(Engine const& e, session const& s, int p, host_page_id at) {
  for (int source = 0; source < e.kv.local().sources(); ++source) {
    source_view const& v = e.kv.view(e.kv.local().id_of_source(source));
    int const bytes = v.layout.row.in_row;
    for (int row = 0; row < v.layout.rows; ++row) {
      row_pattern const want = e.pattern(s, source, std::int64_t{p} * v.layout.rows + row);
      std::byte const* const found = v.host + index(at) * v.host_layout.stride + row * bytes;
      for (int i = 0; i < bytes; ++i) {
        if (found[i] != std::byte{byte_of(want, i)}) return false;
      }
    }
  }
  return true;
}
template <class Engine>
std::byte* host_page(Engine const& e, host_page_id at) {
  source_view const& v = e.kv.view(source_id{0});
  return v.host + index(at) * v.host_layout.stride;
}

/// Frames of a request's pages and hot rows.
template <class Engine>
std::vector<frame_id> frames_held(Engine const& e, session const& s) {
  std::vector<frame_id> frames = e.record(s).hot;
  for (page_record const& p : e.record(s).pages) {
    if (p.at.frame != frame_id::none) frames.push_back(p.at.frame);
  }
  return frames;
}
/// The first source's bytes of some frames as they are now.
template <class Engine>
std::vector<std::byte> bytes_of_frames(Engine const& e, std::vector<frame_id> const& frames) {
  source_view const& v = e.kv.view(source_id{0});
  std::size_t const page = static_cast<std::size_t>(v.layout.payload());
  std::vector<std::byte> bytes(frames.size() * page);
  for (std::size_t i = 0; i < frames.size(); ++i)
    e.space.peek(bytes.data() + i * page, v.base + index(frames[i]) * v.layout.stride, page);
  return bytes;
}

// Scratch growth has no path of its own here: a page for scratch is a page of the tail. Paths: admission, growth of the tail, refill,
// import, and the engine's own take. The pool has no frame but A's when they are asked.
enum class path { admission, take, growth, import, refill };

TEST_CASE_TEMPLATE("O05: a page whose backup is under way is handed to nobody, whichever way it is asked for", S,
                   EBB_SPACES) {
  for (path const asks : {path::admission, path::take, path::growth, path::import, path::refill}) {
    CAPTURE(static_cast<int>(asks));
    auto const space = gated_space<S>{make_space<S>()};
    shared_array<std::byte> store{space, 64 * 16 * 64};
    int const frames = asks == path::refill ? 6 : 4;
    engine_of<one_query, S> e{space,
                              {.frames = frames,
                               .host_pages = 64,
                               .requests = 4,
                               .max_batch = 2,
                               .max_tokens = 256,
                               .hot_rows = 16,
                               .steps_in_flight = 4,
                               .host_memory = store}};
    random_rows select{5};
    // B has two pages and may grow to a third, or has six of which a frame could bring one back. A fills a page, X.
    session b{};
    if (asks == path::growth || asks == path::import) b = e.start(48, 32);
    if (asks == path::refill) b = e.start(160, 96);
    session a = asks == path::refill ? start_waiting(e, 16, 15) : e.start(16, 15);
    if (asks == path::refill) {
      poison(e, take_spare(e));
      e.run_step({&b}, 1, 1, select);
      idle(e, defaults::refill_pause + 2);
      REQUIRE(e.record(b).hot.size() == 1);
    }
    auto side = space.close_gate(space.side(), "copies");
    e.run_step({&a}, 1, 1, select);
    REQUIRE(frames_of(e, a).size() == 1);
    frame_id const x = e.page(a, 0).at.frame;
    host_page_id const host_of_x = e.page(a, 0).at.host;
    REQUIRE(e.page(a, 0).backed == 0);
    REQUIRE(e.page(a, 0).backing == 16);
    session const written = a;
    e.kv.finish(a.id);
    // No frame but X is to be had.
    std::vector<frame_id> rest;
    if (int const free = e.kv.pools().frames_free; free > 0) {
      auto const taken = e.kv.collect(or_throw(e.kv.take(free)));
      REQUIRE(taken.has_value());
      rest = *taken;
    }
    REQUIRE(e.kv.pools().frames_free == 0);
    auto const waits = [&] { return e.kv.allocator().book().frames[x].state == frame_state::revoking; };
    CHECK(waits());
    CHECK(out_of_balance(e.kv) == "");

    session c{};
    take_id own = take_id::none;
    ticket room = ticket::none;
    auto const before = e.kv.counts().pages;
    if (asks == path::admission) {
      c = e.name(or_throw(e.kv.admit(16, 16)), 16);
      CHECK_FALSE(e.kv.ready(c.id));
      CHECK_THROWS_AS(e.kv.begin_step(e.main, {std::vector<request_id>{c.id}}), std::invalid_argument);
    } else if (asks == path::take) {
      own = or_throw(e.kv.take(1));
      CHECK_FALSE(e.kv.collect(own).has_value());
    } else if (asks == path::import) {
      room = e.kv.reserve_import(b.id, 47);
      for (import_page const& page : e.kv.import_pages(b.id, source_id{0})) CHECK(page.frame == nullptr);
      e.import_source(b, 0, 47);
      e.kv.publish(b.id, 47);
      b.tokens = 47;
    } else if (asks == path::growth) {
      e.run_step({&b}, 1, 1, select);  // takes X, and waits for the copy on the stream
      CHECK(e.kv.counts().pages.forced_waits == before.forced_waits + 1);
      CHECK(e.page(b, 2).at.frame == x);
    }
    if (asks != path::growth) {
      for (int i = 0; i < 2; ++i) {
        step const s = e.begin({});
        e.end(s, {});
        CHECK(waits());
      }
      CHECK(e.kv.counts().pages.refilled == before.refilled);
      if (asks == path::admission) CHECK_FALSE(e.kv.ready(c.id));
      if (asks == path::take) CHECK_FALSE(e.kv.collect(own).has_value());
    }
    CHECK_FALSE(host_page_holds(e, written, 0, host_of_x));
    CHECK(out_of_balance(e.kv) == "");
    if (asks ==
        path::
            import) {  // A's host page is B's already: B is told that nobody may write to it yet, and writes behind the copy
      REQUIRE(e.page(b, 2).at.host == host_of_x);
      CHECK_FALSE(e.kv.reached(room));
    }

    side.open();
    finish(space, space.side());
    if (asks != path::import) CHECK(host_page_holds(e, written, 0, host_of_x));
    idle(e, 2);
    CHECK(out_of_balance(e.kv) == "");
    if (asks == path::admission) {
      REQUIRE(e.kv.ready(c.id));
      e.import(c, 15);
      CHECK(e.page(c, 0).at.frame == x);
      e.run_step({&c}, 1, 1, select);
    } else if (asks == path::take) {
      auto const frames = e.kv.collect(own);
      REQUIRE(frames.has_value());
      CHECK(*frames == std::vector<frame_id>{x});
    } else if (asks == path::import) {
      CHECK(e.kv.reached(room));
      e.run_step({&b}, 1, 1, select);
      CHECK(e.page(b, 2).at.frame == x);
    } else if (asks == path::refill) {
      auto const frames = frames_of(e, b);
      CHECK(std::count(frames.begin(), frames.end(), index(x)) == 1);
    }
    if (b.tokens < b.tokens_max) e.run_step({&b}, 1, 1, select);
    e.settle();
    CHECK(e.kv.counts().lost == 0);
    CHECK(out_of_balance(e.kv) == "");
    if (!rest.empty()) e.kv.give(e.main, rest);
  }
}

// 16 rows in one step. The host destination is poisoned between begin_step, which chooses it, and the commit.
TEST_CASE_TEMPLATE("O06: a backup copies what the step wrote, also when the host is far ahead of it", S, EBB_SPACES) {
  for (bool const busy : {false, true}) {
    CAPTURE(busy);
    auto const space = gated_space<S>{make_space<S>()};
    shared_array<std::byte> store{space, 200 * 16 * 64};
    engine_of<one_layer, S> e{space,
                              {.frames = 12,
                               .host_pages = 200,
                               .requests = 2,
                               .max_batch = 1,
                               .max_tokens = 2048,
                               .hot_rows = 16,
                               .host_memory = store}};
    random_rows select{6};
    session s = e.start(2048, 64);
    idle(e);
    int exact = 0, early = 0;
    for (int i = 0; i < 100; ++i) {
      auto main = space.close_gate(e.main, "main");
      auto side = busy ? std::optional{space.close_gate(space.side(), "side")} : std::nullopt;
      step const now = e.begin({&s}, 16);
      auto const b = e.make_buffers(1, 16);
      e.fill(b, select);
      e.enqueue(now, b);
      int const p = static_cast<int>(s.tokens / 16);
      host_page_id const at = e.page(s, p).at.host;
      std::byte* const bytes = host_page(e, at);
      std::fill_n(bytes, 16 * 64, std::byte{0xA5});
      e.end(now, {16});
      REQUIRE(e.page(s, p).backing == 16);
      // Nobody hurries: the copy is queued and the rows are not written yet.
      if (side && i % 2 == 0) side->open();
      early += !std::all_of(bytes, bytes + 16 * 64, [](std::byte v) { return v == std::byte{0xA5}; });
      early += e.page(s, p).backed != 0;
      main.open();
      if (side) side->open();
      finish(space, space.side());
      exact += host_page_holds(e, s, p, at);
      e.settle();
    }
    CHECK(early == 0);
    CHECK(exact == 100);
  }
}

#if !defined(__CUDACC__)
TEST_CASE_TEMPLATE("O06: a backup copies what the step wrote in whatever order the streams advance", S, EBB_SPACES) {
  int const seeds = lanes_are_threads<S> ? 20 : 100;
  for (int seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    auto const space = gated_space<S>{make_deferred_space<S>(static_cast<std::uint64_t>(seed))};
    engine_of<one_layer, S> e{space,
                              {.frames = 12,
                               .host_pages = 40,
                               .requests = 2,
                               .max_batch = 1,
                               .max_tokens = 512,
                               .hot_rows = 16,
                               .steps_in_flight = 3}};
    random_rows select{static_cast<std::uint32_t>(seed)};
    session s = e.start(512, 64);
    for (int i = 0; i < 6; ++i) {
      e.run_step({&s}, 16, 16, select);
      for (int k = 0; k < seed % 7; ++k) space.advance();
    }
    space.drain();
    idle(e);
    int exact = 0;
    for (int p = 0; p < 10; ++p) exact += e.page(s, p).backed == 16 && host_page_holds(e, s, p, e.page(s, p).at.host);
    CHECK(exact == 10);
    e.settle();
  }
}
#endif

TEST_CASE_TEMPLATE("O07: each step gathers by its own metadata, also when three are in flight", S, EBB_SPACES) {
  for (int round = 0; round < 10; ++round) {
    CAPTURE(round);
    auto const space = gated_space<S>{make_deferred_space<S>(static_cast<std::uint64_t>(round))};
    engine_of<one_layer, S> e{space,
                              {.frames = 60,
                               .host_pages = 80,
                               .requests = 5,
                               .max_batch = 4,
                               .max_tokens = 256,
                               .hot_rows = 16,
                               .steps_in_flight = 3}};
    random_rows select{static_cast<std::uint32_t>(7 + round)};
    session a = e.start(160, 64), b = e.start(160, 64), c = e.start(160, 64), d = e.start(160, 64);
    idle(e);
    e.settle();
    auto main = space.close_gate(e.main, "main");
    e.run_step({&a, &b, &c, &d}, 16, std::vector<int>{16, 3, 0, 9}, select);
    // A request finishes and its slot is bound again, its history imported behind the gate.
    request_id const gone = b.id;
    e.kv.finish(b.id);
    session f = e.start(160, 50);
    CHECK(f.id.slot == gone.slot);
    e.run_step({&d, &f, &a}, 2, std::vector<int>{2, 1, 0}, select);
    auto const map_before = frames_of(e, c);
    take_id const taken = or_throw(e.kv.take(30));  // and another map
    e.run_step({&f, &c, &d, &a}, 5, std::vector<int>{5, 4, 3, 2}, select);
    CHECK(out_of_balance(e.kv) == "");
#if !defined(__CUDACC__)
    // A fourth step would overwrite what the first has not read: it waits, and here it is told for what.
    CHECK_THROWS_WITH_AS(e.kv.begin_step(e.main, {std::vector<request_id>{a.id}}),
                         doctest::Contains("closed gate 'main'"), std::runtime_error);
#endif
    main.open();
    e.settle();
    e.run_step({&c, &a, &f, &d}, 1, 1, select);
    e.settle();
    static_cast<void>(e.kv.collect(taken));
    CHECK(e.kv.counts().lost == 0);
    CHECK(out_of_balance(e.kv) == "");
  }
}

/// Copies arguments to where the test looks at them.
struct read_body {
  std::uint32_t const* from;
  std::uint32_t* to;
  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    if (t.rank() == 0) to[item] = from[item];
  }
};

TEST_CASE_TEMPLATE("O07: arguments in the upload ring are kept until they were read", S, EBB_SPACES) {
  auto const space = make_space<S>();
  upload_ring<S> ring{space, 4096};
  auto const stream = space.make_stream();
  shared_array<std::uint32_t> seen{space, 64 * 16};
  auto const put = [&](std::uint32_t value) {
    std::vector<std::uint32_t> const words(16, value);
    auto const* at = ring.put(std::span<std::uint32_t const>{words});
    space.run(stream, 16, read_body{at, seen.data() + 16 * (value % 64)});
    ring.close(space.record(stream));
  };
  auto gate = space.close_gate(stream, "readers");
  for (std::uint32_t value = 0; value < 64; ++value) put(value);  // 64 bytes each: the ring is full
#if !defined(__CUDACC__)
  CHECK_THROWS_WITH_AS(put(64), doctest::Contains("closed gate 'readers'"), std::runtime_error);
#endif
  gate.open();
  finish(space, stream);
  for (std::uint32_t i = 0; i < 64 * 16; ++i) REQUIRE(seen[i] == i / 16);
  for (std::uint32_t value = 0; value < 1000; ++value) put(value);
  finish(space, stream);
  for (std::uint32_t i = 0; i < 64 * 16; ++i) REQUIRE(seen[i] == (i / 16 < 40 ? 960 + i / 16 : 896 + i / 16));
}

// Tail 3 and hot rows 1 are required of a request longer than 4 pages; A may grow to 5, and holds 4 of the pool's 6. Prefetch is not there yet.
enum class during { import, fetch, backup, refill, commit };

TEST_CASE_TEMPLATE("O08: an aborted request's pages are given to another one only when nobody fills them any more", S,
                   EBB_SPACES) {
  for (during const what : {during::import, during::fetch, during::backup, during::refill, during::commit}) {
    CAPTURE(static_cast<int>(what));
    auto const space = gated_space<S>{make_space<S>()};
    engine_of<one_query, S> e{space,
                              {.frames = 6,
                               .host_pages = 40,
                               .requests = 2,
                               .max_batch = 1,
                               .max_tokens = 160,
                               .hot_rows = 16,
                               .steps_in_flight = 3}};
    random_rows select{8};
    auto const free_at_start = e.kv.pools();
    session a = e.start(80, what == during::import   ? 0
                            : what == during::backup ? 63
                            : what == during::refill ? 79
                                                     : 64);
    std::optional<decltype(space.close_gate(e.main, ""))> gate;
    bool open = false;
    ticket last = ticket::none;
    step now{};
    if (what == during::import) {
      session warm = e.start(16, 16);  // so that the side stream is known
      e.kv.finish(warm.id);
      idle(e, 2);
      gate = space.close_gate(space.side(), "population");
      e.import(a, 64);
    } else {
      idle(e);
    }
    if (what == during::refill) {  // A goes on with hot rows and lacks pages; they come back behind the gate
      auto const taken = take_spare(e);
      e.run_step({&a}, 1, 0, select);
      REQUIRE(e.record(a).missing > 0);
      e.kv.give(e.main, taken);
      idle(e, defaults::refill_pause - 2);
      auto const before = e.kv.pools().frames_filling;
      REQUIRE(before == 0);
      gate = space.close_gate(space.side(), "refill");
      for (int i = 0; i < 6 && e.kv.pools().frames_filling == 0; ++i) {
        step const s = e.begin({});
        e.end(s, {});
      }
      REQUIRE(e.kv.pools().frames_filling > 0);
    }
    if (what == during::fetch || what == during::commit) {
      if (what == during::fetch) poison(e, take_spare(e));  // nothing but tail and hot rows: the step fetches
      gate = space.close_gate(e.main, "step");
      now = e.begin({&a});
      auto const b = e.make_buffers(1, 1);
      e.fill(b, select);
      e.enqueue(now, b);
      open = true;
    }
    if (what == during::backup) {
      gate = space.close_gate(space.side(), "backup");
      e.run_step({&a}, 1, 1, select);
    }
    // Frames that work outside the main stream still fills or reads.
    std::vector<frame_id> busy;
    for (page_record const& p : e.record(a).pages) {
      if (p.at.frame != frame_id::none && !e.kv.reached(p.busy)) busy.push_back(p.at.frame);
    }
    CHECK(busy.size() == (what == during::import ? 4 : what == during::backup ? 1 : what == during::refill ? 2 : 0));
    if (open && what == during::fetch) e.kv.abort(a.id);
    std::vector<frame_id> const held = frames_held(e, a);
    if (open) last = e.end(now, {1});
    if (!open || what == during::commit) e.kv.abort(a.id);
    auto const untouched = bytes_of_frames(e, held);
    CHECK_THROWS_AS(e.kv.abort(a.id), std::invalid_argument);
    CHECK(out_of_balance(e.kv) == "");
    CHECK(e.kv.pools().running == 0);

    // B comes while the gate is closed.
    auto const admitted = e.kv.admit(64, 64);
    bool imported = false;
    session b{};
    if (admitted) {
      b = e.name(*admitted, 64);
      if (e.kv.ready(b.id)) {
        ticket const room = e.import(b, 63);  // ordered behind whatever still uses the frames
        if (open) CHECK(room >= last);
        if (open) CHECK_FALSE(e.kv.reached(room));
        imported = true;
      }
      for (frame_id f : busy) CHECK(e.kv.allocator().book().frames[f].state == frame_state::revoking);
      if (what == during::import) CHECK_FALSE(imported);
    }
    CHECK(out_of_balance(e.kv) == "");
    if (open) {  // hot rows and tail: B may have the frames already, its rows come behind the step
      CHECK(held.size() == (what == during::fetch ? 4 : 5));
      CHECK(imported);
      CHECK(bytes_of_frames(e, held) == untouched);
      for (frame_id f : held) {
        frame_record const& frame = e.kv.allocator().book().frames[f];
        CHECK(frame.state != frame_state::free);
        CHECK_FALSE(e.kv.reached(frame.after));
      }
    }
    gate->open();
    idle(e, 2);
    if (!admitted) b = e.name(or_throw(e.kv.admit(64, 64)), 64);
    for (int i = 0; i < 5 && !e.kv.ready(b.id); ++i) idle(e);
    if (!imported) e.import(b, 63);
    e.run_step({&b}, 1, 1, select);
    e.settle();
    CHECK(e.kv.counts().lost == 0);
    e.kv.finish(b.id);
    idle(e, 2);
    gauges const end = e.kv.pools();
    CHECK(end.frames_free + end.frames_taken == free_at_start.frames_free);
    CHECK(end.host_pages_free == free_at_start.host_pages_free);
    CHECK(end.frames_revoking == 0);
  }
}

// Directed at single waits: each of these holds where one line of the ledger is as it is.

// The import still writes a page whose frame becomes hot rows, and the request ends: the frame has a job of its own then.
TEST_CASE_TEMPLATE("O08: a frame is nobody's while an import into an earlier page of it is under way", S, EBB_SPACES) {
  auto const space = gated_space<S>{make_space<S>()};
  engine_of<one_query, S> e{space,
                            {.frames = 6,
                             .host_pages = 40,
                             .requests = 2,
                             .max_batch = 1,
                             .max_tokens = 160,
                             .hot_rows = 16,
                             .steps_in_flight = 4}};
  session warm = e.start(16, 16);
  e.kv.finish(warm.id);
  idle(e, 2);
  session a = e.start(128);
  auto side = space.close_gate(space.side(), "population");
  e.import(a, 96);
  take_id const one = or_throw(e.kv.take(1));
  REQUIRE(e.record(a).hot.size() == 1);
  frame_id const hot = e.record(a).hot.front();
  REQUIRE_FALSE(e.kv.reached(e.kv.allocator().book().frames[hot].copies));
  e.kv.finish(a.id);
  take_id const rest = or_throw(e.kv.take(5));
  for (int i = 0; i < 3; ++i) {
    CHECK_FALSE(e.kv.collect(one));
    CHECK_FALSE(e.kv.collect(rest));
    CHECK(e.kv.allocator().book().frames[hot].state == frame_state::revoking);
    e.end(e.begin({}), {});
  }
  side.open();
  idle(e, 2);
  CHECK(e.kv.collect(one));
  CHECK(e.kv.collect(rest));
  CHECK(out_of_balance(e.kv) == "");
}

// A's backup reads its frame and writes the host page; B holds the page after A and never uses it; C is told to wait for A's backup.
TEST_CASE_TEMPLATE("O08: a host page keeps what an earlier holder still does, whoever held it since", S, EBB_SPACES) {
  auto const space = gated_space<S>{make_space<S>()};
  engine_of<one_query, S> e{
      space, {.frames = 6, .host_pages = 8, .requests = 2, .max_batch = 1, .max_tokens = 64, .hot_rows = 16}};
  random_rows select{8};
  session a = e.start(16, 15);
  auto side = space.close_gate(space.side(), "backup");
  e.run_step({&a}, 1, 1, select);
  host_page_id const at = e.page(a, 0).at.host;
  ticket const backup = e.page(a, 0).busy;
  REQUIRE_FALSE(e.kv.reached(backup));
  e.kv.finish(a.id);
  for (int i = 0; i < 3; ++i) {
    session c = e.start(16);
    ticket const ready = e.kv.reserve_import(c.id, 16);
    REQUIRE(e.page(c, 0).at.host == at);
    CHECK(ready >= backup);
    CHECK_FALSE(e.kv.reached(ready));
    e.kv.abort(c.id);
  }
  side.open();
  idle(e, 2);
  CHECK(e.kv.reached(backup));
}

// Three pages come back behind the gate and are loans the moment the request is not required whole; the first of them makes way for the
// page that the step writes.
TEST_CASE_TEMPLATE("O08: a page that still comes back makes way only for what waits for it", S, EBB_SPACES) {
  auto const space = gated_space<S>{make_space<S>()};
  engine_of<one_query, S> e{space,
                            {.frames = 9,
                             .host_pages = 40,
                             .requests = 2,
                             .max_batch = 1,
                             .max_tokens = 160,
                             .hot_rows = 16,
                             .steps_in_flight = 1,
                             .refill_bytes = 0}};
  random_rows select{9};
  session a = e.start(128, 95);
  auto const taken = take_spare(e);
  e.run_step({&a}, 1, 1, select);
  REQUIRE(e.record(a).hot.size() == 1);
  e.kv.give(e.main, taken);
  idle(e, 2);
  auto side = space.close_gate(space.side(), "restore");
  REQUIRE(e.kv.require_whole(a.id));
  REQUIRE(e.kv.ready(a.id));
  REQUIRE_FALSE(e.page(a, 0).mapped);
  frame_id const coming = e.page(a, 0).at.frame;
  REQUIRE(coming != frame_id::none);
  ticket const restore = e.page(a, 0).busy;
  e.kv.release_whole(a.id);
  auto const rest = e.kv.collect(or_throw(e.kv.take(e.kv.pools().frames_free)));
  REQUIRE(rest);
  e.run_step({&a}, 1, 1, select);
  REQUIRE(e.page(a, 6).at.frame == coming);
  CHECK_FALSE(e.kv.reached(restore));
  CHECK_FALSE(space.reached(space.record(e.main)));
  side.open();
  space.finish_side();
  auto const newest = [](session const&, int, int, int column, std::int64_t rows) { return rows - 1 - column; };
  e.run_step({&a}, 1, 1, newest);
  e.settle();
  CHECK(e.kv.counts().lost == 0);
}

// The only page of a resumed request is on its way back when the engine writes the rows behind it.
TEST_CASE_TEMPLATE("O06: published history is read behind the copy that brings its page back", S, EBB_SPACES) {
  auto const space = gated_space<S>{make_space<S>()};
  engine_of<one_query, S> e{space,
                            {.frames = 8,
                             .host_pages = 40,
                             .requests = 2,
                             .max_batch = 1,
                             .max_tokens = 160,
                             .hot_rows = 16,
                             .steps_in_flight = 2}};
  session a = e.start(64, 8);
  idle(e);
  e.kv.preempt(a.id);
  idle(e, 2);
  poison(e, frames_in(e, frame_state::free));
  auto side = space.close_gate(space.side(), "restore");
  REQUIRE(e.kv.resume(a.id));
  REQUIRE(e.kv.ready(a.id));
  ticket const restore = e.page(a, 0).busy;
  REQUIRE_FALSE(e.kv.reached(restore));
  ticket const ready = e.kv.reserve_import(a.id, 16);
  CHECK_FALSE(e.kv.reached(ready));
  REQUIRE(e.kv.import_pages(a.id, source_id{0}).size() == 1);
  e.kv.publish(a.id, 9);  // of which the test selects nothing
  a.versions.resize(9);
  a.tokens = 9;
  auto const old_rows = [](session const&, int, int, int column, std::int64_t) { return column; };
  e.run_step({&a}, 1, 0, old_rows);
  CHECK_FALSE(space.reached(space.record(e.main)));
  side.open();
  e.settle();
}

// X leaves its frames while a step reads them; they are C's at once, and its host pages are fresh.
TEST_CASE_TEMPLATE("O08: the engine is told to write behind the step that reads a frame's earlier page", S,
                   EBB_SPACES) {
  auto const space = gated_space<S>{make_space<S>()};
  engine_of<one_query, S> e{space,
                            {.frames = 4,
                             .host_pages = 40,
                             .requests = 2,
                             .max_batch = 1,
                             .max_tokens = 64,
                             .hot_rows = 16,
                             .steps_in_flight = 2}};
  random_rows select{10};
  session x = e.start(64, 48);
  idle(e);
  auto main = space.close_gate(e.main, "step");
  ticket const end = e.run_step({&x}, 1, 0, select);
  std::vector<int> const old = frames_of(e, x);
  e.kv.preempt(x.id);
  session c = e.name(or_throw(e.kv.admit(64, 64)), 64);
  REQUIRE(e.kv.ready(c.id));
  ticket const ready = e.kv.reserve_import(c.id, 64);
  std::vector<int> const now = frames_of(e, c);
  REQUIRE(std::is_permutation(now.begin(), now.end(), old.begin(), old.end()));
  CHECK(ready == end);
  CHECK_FALSE(e.kv.reached(ready));
  main.open();
  e.kv.wait(ready);
  auto const own = space.make_stream();
  for (import_page const& page : e.kv.import_pages(c.id, source_id{0}))
    space.run(own, 1, fill_body{page.frame, 16 * 64, std::byte{0xA5}});
  finish(space, own);
  e.settle();
}

/// Retracts the newest of six requests that fill the required pool, lets others use its frames for ten steps, and brings it back.
template <class P, class S>
void retract_and_resume(int frames, int hot_rows) {
  CAPTURE(frames);
  auto const space = gated_space<S>{make_space<S>()};
  engine_of<P, S> e{space,
                    {.frames = frames,
                     .host_pages = 64,
                     .requests = 7,
                     .max_batch = 7,
                     .max_tokens = 512,
                     .hot_rows = hot_rows,
                     .steps_in_flight = 2}};
  random_rows select{9};
  std::vector<session> six;
  for (int i = 0; i < 6; ++i) six.push_back(start_waiting(e, 448, i < 5 ? 300 : 338));
  CHECK(e.kv.pools().frames_promised == frames);
  CHECK_FALSE(e.kv.admit(448).has_value());
  session& newest = six.back();
  std::vector<session*> who, others;
  for (session& s : six) who.push_back(&s);
  others.assign(who.begin(), who.end() - 1);
  e.run_step(who, 4, 4, select);
  idle(e);

  // 342 tokens have their copies asked for; 20 more wait behind the gate: 90 rows and 2 tokens, 5 rows not backed up, and a verify in flight.
  auto side = space.close_gate(space.side(), "copies");
  for (int i = 0; i < 5; ++i) e.run_step(who, 4, 4, select);
  auto main = space.close_gate(e.main, "main");
  step const now = e.begin(who, 4);
  auto const b = e.make_buffers(now.padded, 4);
  e.fill(b, select);
  e.enqueue(now, b);
  e.kv.preempt(newest.id);
  e.end(now, {1, 2, 3, 4, 0, 0});
  CHECK(newest.tokens == 362);
  CHECK(e.kv.tokens(newest.id) == 362);
  CHECK(out_of_balance(e.kv) == "");
  // A page without its complete host copy stays in its frame, in nobody else's.
  int const last = static_cast<int>(e.record(newest).pages.size()) - 1;
  CHECK(e.page(newest, last).backed < 42);
  CHECK(e.page(newest, last).at.frame != frame_id::none);
  CHECK_THROWS_AS(e.kv.begin_step(e.main, {std::vector<request_id>{newest.id}}), std::invalid_argument);
  main.open();
  side.open();
  idle(e, 2);
  for (page_record const& p : e.record(newest).pages) CHECK(p.at.frame == frame_id::none);
  poison(e, frames_in(e, frame_state::free));

  session seventh = start_waiting(e, 448, 200);
  others.push_back(&seventh);
  for (int i = 0; i < 10; ++i) {
    e.run_step(others, 4, 3, select);
    CHECK(out_of_balance(e.kv) == "");
    e.settle();
    space.finish_side();
    poison(e, frames_in(e, frame_state::free));
    if (i == 7) {
      e.kv.finish(seventh.id);
      others.pop_back();
    }
  }
  REQUIRE(e.kv.resume(newest.id).has_value());
  for (int i = 0; i < 5 && !e.kv.ready(newest.id); ++i) e.run_step(others, 1, 1, select);
  REQUIRE(e.kv.ready(newest.id));
  CHECK(e.kv.tokens(newest.id) == 362);
  auto const all_rows = [](session const&, int, int query, int column, std::int64_t) { return 16 * query + column; };
  for (int i = 0; i < 2; ++i) e.run_step(who, 4, 4, all_rows);
  for (int i = 0; i < 4; ++i) e.run_step(who, 4, 3, select);
  e.settle();
  CHECK(e.kv.counts().lost == 0);
  CHECK(e.kv.take_failures().empty());
  for (session& s : six) e.kv.finish(s.id);
  idle(e, 2);
  CHECK(e.kv.pools().frames_free == frames);
  CHECK(e.kv.pools().host_pages_free == 64);
}

// 16 rows a page are 64 tokens at G = 4, so 90 rows and 2 tokens are 362 tokens. That exactly 5 rows lack their copy holds for `each_step`;
// the other orders lack the whole last page, or everything. What is not committed is dropped.
TEST_CASE_TEMPLATE("O09: a retracted request comes back with every committed row, whatever the configuration", S,
                   EBB_SPACES) {
  retract_and_resume<backed_each_step, S>(24, 64);
  retract_and_resume<compressed, S>(24, 64);
  retract_and_resume<backed_on_revoke, S>(24, 64);
  retract_and_resume<fixed_budget, S>(24, 64);
  retract_and_resume<always_whole, S>(42, 0);
}

#if !defined(__CUDACC__)
struct lazy : one_query {
  using backup = on_revoke;
};

// Host pages are promised at admission, so a backup never lacks one: copies are refused instead, all of them, then all but two.
TEST_CASE_TEMPLATE("O10: a page whose backup is refused stays where it is, and the others go", S, EBB_SPACES) {
  auto const space = gated_space<S>{make_space<S>()};
  engine_of<lazy, S> e{
      space, {.frames = 12, .host_pages = 40, .requests = 2, .max_batch = 1, .max_tokens = 256, .hot_rows = 16}};
  random_rows select{10};
  session a = e.start(256, 96);
  auto taken = take_spare(e);
  for (int i = 0; i < 16; ++i) e.run_step({&a}, 1, 1, select);
  REQUIRE(e.record(a).hot.size() == 1);
  auto const give = [&] {
    e.kv.give(e.main, std::span{taken}.first(1));
    taken.erase(taken.begin());
  };
  give();
  idle(e, defaults::refill_pause + 3);
  int const y = 3, x = 4;  // y came back and has its copy; x leaves the tail now, and has none
  REQUIRE(e.page(a, y).at.frame != frame_id::none);
  give();
  e.run_step({&a}, 1, 1, select);
  REQUIRE(e.page(a, y).backed == 16);
  REQUIRE(e.page(a, x).backed == 0);
  REQUIRE(lent_pages_of(e, a) == 2);
  frame_id const frame_of_x = e.page(a, x).at.frame;
  e.settle();

  space.refuse_copies([](copy_kind kind, int, int) { return kind == copy_kind::backup; });
  take_id const two = or_throw(e.kv.take(2));
  auto const rows_of_x = [](session const&, int, int, int column, std::int64_t) { return 16 * x + 2 * column; };
  for (int i = 0; i < 5; ++i) {
    counters const before = e.kv.counts();
    e.run_step({&a}, 1, 1, rows_of_x);
    e.settle();
    CHECK(e.kv.counts().misses == before.misses);
    CHECK(e.kv.counts().lent_hits == before.lent_hits + 8);
    CHECK(e.page(a, y).at.frame == frame_id::none);
    CHECK(e.page(a, x).at.frame == frame_of_x);
    CHECK_FALSE(e.kv.collect(two).has_value());
    CHECK(e.kv.pools().frames_wanted == 1);
    CHECK(out_of_balance(e.kv) == "");
  }
  auto const failures = e.kv.take_failures();
  REQUIRE(!failures.empty());
  for (copy_failure const& f : failures) {
    CHECK(f.kind == copy_kind::backup);
    CHECK(f.request == a.id);
    CHECK(f.page == page_index{x});
  }
  CHECK(e.kv.counts().pages.copy_failures == failures.size());
  space.refuse_copies({});
  idle(e, 2);
  REQUIRE(e.kv.collect(two).has_value());
  CHECK(e.page(a, x).at.frame == frame_id::none);
  e.run_step({&a}, 1, 1, rows_of_x);
  e.settle();
}

TEST_CASE_TEMPLATE("O10: as many pages go as can be backed up, once their copies are complete", S, EBB_SPACES) {
  auto const space = gated_space<S>{make_space<S>()};
  engine_of<lazy, S> e{space,
                       {.frames = 12,
                        .host_pages = 40,
                        .requests = 2,
                        .max_batch = 1,
                        .max_tokens = 256,
                        .hot_rows = 16,
                        .steps_in_flight = 4,
                        .refill_bytes = 0}};
  random_rows select{11};
  session a = e.start(256, 96);
  auto taken = take_spare(e);
  e.run_step({&a}, 1, 0, select);
  e.kv.give(e.main, std::span{taken}.first(4));
  for (int i = 0; i < 66; ++i) e.run_step({&a}, 1, 1, select);
  e.settle();
  int const first = 4;
  REQUIRE(lent_pages_of(e, a) == 4);
  for (int p = first; p < first + 4; ++p) REQUIRE(e.page(a, p).backed == 0);

  space.refuse_copies([](copy_kind kind, int, int page) { return kind == copy_kind::backup && page % 2 == 0; });
  auto side = space.close_gate(space.side(), "copies");
  take_id const four = or_throw(e.kv.take(4));
  for (int i = 0; i < 3; ++i) {
    e.run_step({&a}, 1, 1, select);
    CHECK(lent_pages_of(e, a) == 4);  // asked for, not copied
    CHECK_FALSE(e.kv.collect(four).has_value());
  }
  side.open();
  idle(e, 3);
  CHECK(lent_pages_of(e, a) == 2);
  for (int p = first; p < first + 4; ++p) {
    CAPTURE(p);
    CHECK((e.page(a, p).at.frame == frame_id::none) == (p % 2 == 1));
    CHECK(e.page(a, p).backed == (p % 2 == 1 ? 16 : 0));
  }
  CHECK(e.kv.pools().frames_wanted == 2);
  CHECK_FALSE(e.kv.collect(four).has_value());
  auto const all_four = [](session const&, int, int, int column, std::int64_t) { return 16 * first + 8 * column; };
  for (int i = 0; i < 3; ++i) e.run_step({&a}, 1, 1, all_four);
  e.settle();
  CHECK(out_of_balance(e.kv) == "");
  CHECK(e.kv.counts().lost == 0);
}

TEST_CASE_TEMPLATE("O10: a request that grows gets its frame past a page whose backup is refused for good", S,
                   EBB_SPACES) {
  auto const space = gated_space<S>{make_space<S>()};
  engine_of<lazy, S> e{
      space, {.frames = 12, .host_pages = 40, .requests = 2, .max_batch = 2, .max_tokens = 256, .hot_rows = 16}};
  random_rows select{12};
  session b = e.start(48, 32), a = e.start(256, 16);
  for (int i = 0; i < 144; ++i) e.run_step({&a}, 1, 1, select);  // A borrows the frame that B has not used yet
  REQUIRE(e.kv.pools().frames_free == 0);
  space.refuse_copies([](copy_kind kind, int, int page) { return kind == copy_kind::backup && page == 1; });
  take_id const one = or_throw(e.kv.take(1));
  for (int i = 0; i < 16; ++i) {
    e.run_step({&b, &a}, 1, 1, select);
    CHECK(out_of_balance(e.kv) == "");
    CHECK(e.page(a, 1).at.frame != frame_id::none);
  }
  e.settle();
  CHECK(e.record(b).pages.size() == 3);
  CHECK(e.kv.counts().lost == 0);
  static_cast<void>(e.kv.collect(one));
}
#endif

}  // namespace ordering_test

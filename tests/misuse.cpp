// What is refused and what stays usable then: wrong arguments, calls out of order, launches that fail, memory that is too small.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "conformance/scenario.hpp"

namespace misuse_test {

using namespace ebb;
using namespace ebb::testing;

/// Two layers that share a selection beside one of ratio 4; hot rows of 2 frames, a tail of 3, staging of 8.
struct small : policy_defaults {
  static constexpr row_segments row{16, 8};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 2;
  static constexpr std::array<layer_binding, 3> layers{{{0, 0}, {0, 1}, {1, 2}}};
  static constexpr std::array<int, 3> ratios{1, 1, 4};
  using keep = most_selected;
  using metadata = flashinfer_packed;
};

/// A space where a launch fails as for want of resources: nothing was enqueued, and the device is well.
class stub : public serial_space {
 public:
  using serial_space::serial_space;

  template <class Body>
  void run(stream on, int items, Body const& body) const {
    if (*left_ > 0 && --*left_ == 0) throw std::runtime_error{"too many resources requested for launch"};
    serial_space::run(on, items, body);
  }
  void finish_side() const {}
  /// The n-th launch from now on fails.
  void fail(int n) const { *left_ = n; }
  bool failed() const { return *left_ == 0; }

 private:
  std::shared_ptr<int> left_ = std::make_shared<int>(0);
};

using small_engine = engine<small, stub>;

sizes const given{.frames = 10,
                  .host_pages = 40,
                  .requests = 4,
                  .max_batch = 3,
                  .max_tokens = 320,
                  .hot_rows = 32,
                  .steps_in_flight = 2};
constexpr source_id first{0}, second{1}, third{2};
constexpr group_id both{0}, alone{1};

/// A request of `pages` pages, an even number, that the engine wrote: nothing of them is in the host store.
session adopted(small_engine& e, int pages) {
  session s = e.start(160);
  for (int at = 0; at < pages; at += 2) e.adopt(s, *e.kv.collect(or_throw(e.kv.take(2))), 16 * (at + 2));
  return s;
}
/// Everything that an instance reports.
std::string report(small_engine const& e) { return to_json(e.kv.counts(), e.kv.pools()); }

template <class F>
std::string refusal(F f) {
  try {
    f();
    return "";
  } catch (std::invalid_argument const& e) {
    return e.what();
  }
}
/// Every call that would change something says that the instance is out of use.
void check_out_of_use(small_engine& e, session const& s, step const& now) {
  auto const says = [&](auto call) {
    CHECK_THROWS_WITH_AS(call(), doctest::Contains("out of use after an error: too many resources"),
                         std::runtime_error);
  };
  says([&] { (void)e.kv.begin_step(e.main, {}); });
  says([&] { e.kv.addresses(e.main, now); });
  says([&] { e.kv.end_step(e.main, now, {}); });
  says([&] { (void)e.kv.admit(16); });
  says([&] { (void)e.kv.take(1); });
  says([&] { e.kv.finish(s.id); });
  says([&] { e.kv.preempt(s.id); });
  says([&] { e.kv.truncate(s.id, 0); });
  says([&] { (void)e.kv.reserve_import(s.id, 160); });
}

// ---- launches that fail

TEST_CASE("a launch that fails inside begin_step leaves no half-begun step") {
  for (int n = 1;; ++n) {  // the copies of pages that make way, waits apart, then tables, then the map
    CAPTURE(n);
    stub const space;
    small_engine e{space, given};
    session a = adopted(e, 8);
    take_id const id = or_throw(e.kv.take(2));
    CHECK(e.kv.collect(id));
    e.settle();
    space.fail(n);
    if (n > 1) {
      try {
        step const s = e.begin({&a});
        if (!space.failed()) break;
        FAIL("the launch failed and nobody says so, step ", s.number);
      } catch (std::runtime_error const&) {
      }
    } else {
      CHECK_THROWS_WITH_AS((void)e.begin({&a}), doctest::Contains("too many resources"), std::runtime_error);
    }
    CHECK_FALSE(space.broken());
    CHECK(e.kv.tokens(a.id) == 128);
    check_out_of_use(e, a, {1, 1, 1, 1});
  }
}

TEST_CASE("a launch that fails inside end_step commits nothing, or all of it, and the instance is out of use") {
  for (int n = 1;; ++n) {  // lengths, then the backups
    CAPTURE(n);
    stub const space;
    small_engine e{space, given};
    session a = adopted(e, 6);
    step const s = e.begin({&a}, 2);
    auto const b = e.make_buffers(1, 2);
    e.fill(b, random_rows{1});
    e.enqueue(s, b);
    space.fail(n);
    try {
      e.end(s, {2});
      REQUIRE(n > 2);
      space.fail(0);
      break;
    } catch (std::runtime_error const& said) {
      CHECK(std::string{said.what()}.find("too many resources") != std::string::npos);
    }
    CHECK(e.kv.tokens(a.id) == (n == 1 ? 96 : 98));
    check_out_of_use(e, a, s);
  }
}

TEST_CASE("a launch that fails inside admit puts the instance out of use") {
  stub const space;
  small_engine e{space, given};
  session a = adopted(e, 8);
  e.settle();
  space.fail(1);  // the backup of loans that make way
  CHECK_THROWS_WITH_AS((void)e.kv.admit(160, 80), doctest::Contains("too many resources"), std::runtime_error);
  CHECK_FALSE(space.broken());
  CHECK(e.kv.counts().pages.backed_up == 0);
  check_out_of_use(e, a, {});
}

TEST_CASE("a launch that fails inside addresses, resolve or replay is repeated") {
  stub const space;
  small_engine e{space, given};
  session a = adopted(e, 6);
  random_rows select{3};
  e.run_step({&a}, 1, 1, select);
  step const s = e.begin({&a}, 2);
  auto const b = e.make_buffers(1, 2);
  e.fill(b, select);
  auto const twice = [&](auto call) {
    space.fail(1);
    CHECK_THROWS_WITH_AS(call(), doctest::Contains("too many resources"), std::runtime_error);
    call();
  };
  // What only looks ahead is made again where it is needed.
  auto const later = [&](int n, auto call) {
    space.fail(n);
    call();
    CHECK(space.failed());
  };
  twice([&] { e.kv.addresses(e.main, s); });
  for (source_id source : {first, second, third}) {
    std::size_t const at = static_cast<std::size_t>(index(source));
    space.run(e.main, 2, write_rows_body{e.kv.view(source), e.kv.write_addresses(source), b.writes[at], e.wrong()});
  }
  auto const check = [&](source_id source, std::size_t g, std::size_t k) {
    space.run(e.main, 2, check_rows_body<small>{e.kv.view(source), b.out[g][k], b.rows[g][k], b.lengths[g], e.wrong()});
  };
  space.fail(1);
  CHECK_THROWS(e.kv.resolve(e.main, s, both, b.selections[0], b.out[0][0]));
  later(2, [&] { e.kv.resolve(e.main, s, both, b.selections[0], b.out[0][0]); });
  twice([&] { e.kv.replay(e.main, s, both, second, b.out[0][1]); });
  check(first, 0, 0);
  check(second, 0, 1);
  twice([&] { e.kv.resolve(e.main, s, alone, b.selections[1], b.out[1][0]); });
  check(third, 1, 0);
  e.end(s, {2});
  for (int i = 0; i < 3; ++i) e.run_step({&a}, 2, 1, select);
  e.settle();
}

TEST_CASE("an instance that goes with an open step waits for what the step enqueued") {
  for (int done : {0, 1, 2}) {
    CAPTURE(done);
    stub const space{host::deferred{static_cast<std::uint64_t>(done)}};
    {
      small_engine e{space, given};
      session a = adopted(e, 8);
      take_id const id = or_throw(e.kv.take(2));
      (void)e.kv.collect(id);
      e.run_step({&a}, 1, 0, random_rows{1});
      step const s = e.begin({&a}, 2);
      auto const b = e.make_buffers(1, 2);
      e.fill(b, random_rows{2});
      if (done > 0) e.kv.addresses(e.main, s);
      if (done > 1) e.kv.resolve(e.main, s, both, b.selections[0], b.out[0][0]);
      CHECK(space.pending() > 0);
    }
    CHECK(space.pending() == 0);
  }
}

// ---- lists

/// Pages of one row, so that 1,024 hot rows are as many frames.
struct one_row : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 1;
  static constexpr int top_k = 8;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
};

// 520 lists of 1,025 words are more than the quarter of 8 MiB that one piece of a ring of that size may have.
TEST_CASE("hundreds of requests may get their hot rows in one step") {
  constexpr int requests = 520, hot = 1024, tail = 3, pages = hot + tail + 2;
  engine<one_row, serial_space> e{serial_space{},
                                  {.frames = requests * (hot + tail),
                                   .host_pages = requests * (pages + 1),
                                   .requests = requests,
                                   .max_batch = 2,
                                   .max_tokens = pages + 1,
                                   .hot_rows = hot}};
  std::vector<session> all;
  for (int i = 0; i < requests; ++i) all.push_back(e.name(or_throw(e.kv.admit(pages + 1, pages)), pages + 1));
  for (session& s : all) {
    e.import(s, pages);
    REQUIRE(e.record(s).hot.size() == hot);
  }
  random_rows select{520};
  for (int i = 0; i < 2; ++i) e.run_step({&all.front(), &all.back()}, 1, 0, select);
  e.settle();
  CHECK(e.kv.counts().fetched_rows > 0);
  CHECK(e.kv.counts().lost == 0);
}

// ---- use counts

// D's loans have all of the frames but what B's import got. Inside the open step, C, whose two pages must be restored, waits for frames;
// they come when B's history is shorter than what was reserved for it, so the copies come before the step's own ticket.
TEST_CASE("use counts are taken over when the step that writes them is done, not with a copy inside of it") {
  gated_space<serial_space> const space{serial_space{}};
  engine<small, gated_space<serial_space>> e{space,
                                             {.frames = 15,
                                              .host_pages = 60,
                                              .requests = 4,
                                              .max_batch = 1,
                                              .max_tokens = 320,
                                              .hot_rows = 32,
                                              .steps_in_flight = 3,
                                              .refill_bytes = 0}};
  session c = e.start(32, 32);
  e.kv.preempt(c.id);
  idle(e, 2);
  session d = e.start(320, 16 * 12);
  REQUIRE(e.kv.whole(d.id));
  session b = e.start(80);
  auto const some = [](session const&, int, int, int column, std::int64_t) { return 16 * column; };
  while (e.kv.counts().steps % defaults::use_period != defaults::use_period - 1) e.run_step({&d}, 1, 0, some);
  e.settle();
  auto const uses = [&] { return std::accumulate(e.record(d).uses.begin(), e.record(d).uses.end(), 0u); };
  REQUIRE(uses() == 0);

  e.kv.reserve_import(b.id, 80);
  REQUIRE(e.kv.pools().frames_free == 0);
  auto main = space.close_gate(e.main, "main");
  step const s = e.begin({&d});
  auto const buffers = e.make_buffers(1, 1);
  e.fill(buffers, some);
  e.enqueue(s, buffers);
  REQUIRE(e.kv.resume(c.id));
  REQUIRE_FALSE(e.kv.ready(c.id));
  for (source_id source : {first, second, third}) (void)e.kv.import_pages(b.id, source);
  e.kv.publish(b.id, 16);
  REQUIRE(e.kv.ready(c.id));
  ticket const end = e.end(s, {0});
  ticket const before{static_cast<std::uint64_t>(end) - 1};
  REQUIRE(e.kv.reached(before));
  REQUIRE_FALSE(e.kv.reached(end));
  e.end(e.begin({}, 1, 0, before), {});
  CHECK(uses() == 0);
  main.open();
  e.end(e.begin({}, 1, 0, end), {});
  CHECK(uses() > 0);
  e.settle();
}

// ---- frames of the engine

TEST_CASE("frames that the engine did not collect, or names twice, are refused and nothing changes") {
  stub const space;
  small_engine e{space, given};
  session a = e.start(64, 32);
  session b = e.start(64);
  take_id const id = or_throw(e.kv.take(2));
  std::vector<frame_id> const taken = frames_in(e, frame_state::taken);
  REQUIRE(taken.size() == 2);
  auto const refused = [&](std::vector<frame_id> const& frames, frame_id named) {
    std::string const before = report(e);
    std::string const legal =
        " is " + std::to_string(index(named)) + "; legal: a frame that the engine collected and has not given back";
    CHECK(refusal([&] { e.kv.give(e.main, frames); }).find("give: frame" + legal) == 0);
    auto const tokens = b.tokens + 16 * static_cast<std::int64_t>(frames.size());
    CHECK(refusal([&] { e.kv.adopt(e.main, b.id, frames, tokens); }).find("adopt: frame" + legal) == 0);
    CHECK(report(e) == before);
    CHECK(out_of_balance(e.kv) == "");
  };
  refused({taken[0]}, taken[0]);
  std::vector<frame_id> const mine = *e.kv.collect(id);
  CHECK(mine.size() == 2);
  refused({mine[0], mine[1], mine[0]}, mine[0]);
  refused({mine[0], e.page(a, 0).at.frame}, e.page(a, 0).at.frame);
  refused({mine[1], frames_in(e, frame_state::free).front()}, frames_in(e, frame_state::free).front());
  refused({frame_id{10}}, frame_id{10});
  refused({frame_id::none}, frame_id::none);

  std::string const before = report(e);
  space.begin_capture(e.main);
  CHECK(refusal([&] { e.kv.give(e.main, mine); }) == "give: stream is being captured; legal: one that is not");
  CHECK(refusal([&] { e.kv.adopt(e.main, b.id, mine, 32); }) ==
        "adopt: stream is being captured; legal: one that is not");
  CHECK(refusal([&] { (void)e.kv.begin_step(e.main, {}); }).find("begin_step: stream is being captured") == 0);
  (void)space.end_capture(e.main);
  CHECK(report(e) == before);
  e.adopt(b, std::span{mine}.first(1), 16);
  e.kv.give(e.main, std::span{mine}.last(1));
  refused({mine[0]}, mine[0]);
  refused({mine[1]}, mine[1]);
  random_rows select{5};
  for (int i = 0; i < 3; ++i) e.run_step({&a, &b}, 2, 1, select);
  e.settle();
}

// ---- holds

TEST_CASE("of holds that do not fit together the oldest is served first and the others cannot block it") {
  sizes narrow = given;
  narrow.frames = 8;
  small_engine e{stub{}, narrow};
  auto const held = [&](std::int64_t frames, std::int64_t hosts) {
    CHECK(e.kv.pools().frames_held == frames);
    CHECK(e.kv.pools().host_pages_held == hosts);
  };
  for (bool const released : {false, true}) {
    CAPTURE(released);
    hold_id const older = or_throw(e.kv.hold(160)), younger = or_throw(e.kv.hold(160));  // 5 frames, 10 host pages
    held(10, 20);
    auto const too_young = e.kv.admit(160, 0, younger);
    REQUIRE_FALSE(too_young);
    CHECK(too_young.error().message() == "not enough frames: wanted 5, free 3, revocable 0");
    CHECK_FALSE(e.kv.admit(16));
    held(10, 20);
    if (released) {
      e.kv.release(older);
    } else {
      auto const a = e.kv.admit(160, 80, older);
      REQUIRE(a);
      held(5, 10);
      CHECK_FALSE(e.kv.admit(160, 0, younger));
      e.kv.finish(*a);
    }
    held(5, 10);
    auto const b = e.kv.admit(160, 80, younger);
    REQUIRE(b);
    held(0, 0);
    for (hold_id gone : {older, younger}) {
      CHECK(refusal([&] { (void)e.kv.admit(16, 0, gone); }).find("hold is ") == 0);
      CHECK(refusal([&] { e.kv.release(gone); }).find("hold is ") == 0);
    }
    e.kv.finish(*b);
    e.end(e.begin({}), {});
    CHECK(e.kv.pools().frames_free == 8);
  }
}

// ---- arguments and order

TEST_CASE("wrong arguments are refused by name, and nothing changes") {
  small_engine e{stub{}, given};
  session a = e.start(160, 40);
  e.run_step({&a}, 1, 0, random_rows{1});
  constexpr auto huge = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t tokens : {huge, huge - 7, std::int64_t{321}}) {
    auto const message =
        "not enough tokens: wanted " + std::to_string(tokens) + ", free 320, revocable 0 (can never fit)";
    auto const admitted = e.kv.admit(tokens);
    REQUIRE_FALSE(admitted);
    CHECK(admitted.error().message() == message);
    auto const held = e.kv.hold(tokens);
    REQUIRE_FALSE(held);
    CHECK(held.error().message() == message);
  }
  std::string const before = report(e);
  ticket const next{static_cast<std::uint64_t>(e.kv.allocator().book().last) + 1};
  CHECK(refusal([&] { (void)e.kv.reached(next); }).find("reached: ticket is ") == 0);
  CHECK(refusal([&] { e.kv.wait(next); }).find("wait: ticket is ") == 0);
  CHECK(refusal([&] { (void)e.kv.begin_step(e.main, {}, next); }).find("begin_step: progress is ") == 0);
  CHECK(refusal([&] { (void)e.kv.import_pages(a.id, first); }) ==
        "import_pages: request is 0; legal: one with room from reserve_import");
  std::byte row[24]{};
  CHECK(refusal([&] { e.kv.import(a.id, first, {row}); }) ==
        "import: request is 0; legal: one with room from reserve_import");
  CHECK(report(e) == before);

  e.kv.reserve_import(a.id, 41);
  CHECK(refusal([&] { e.kv.import(a.id, first, {nullptr}); }) == "import: rows is null; legal: readable by bodies");
  CHECK(refusal([&] { e.kv.import(a.id, first, {row, 23}); }) == "import: row_stride is 23; legal: at least 24");
  // Neither counts as an import.
  CHECK(refusal([&] { e.kv.publish(a.id, 41); }) == "publish: source is 0; legal: one whose rows were imported");
  for (int source : {0, 1, 2}) e.import_source(a, source, 41);
  e.kv.publish(a.id, 41);
  a.tokens = 41;

  random_rows select{7};
  step const s = e.begin({&a});
  auto const b = e.make_buffers(1, 1);
  e.fill(b, select);
  std::string const open = report(e);
  auto const out = b.out[0][0];
  CHECK(refusal([&] { e.kv.resolve(e.main, s, both, nullptr, out); }) ==
        "resolve: selection is null; legal: a device array");
  CHECK(refusal([&] { e.kv.resolve(e.main, s, both, b.selections[0], {}); }).find("resolve: out is null") == 0);
  CHECK(refusal([&] {
          e.kv.resolve(e.main, s, both, b.selections[0], {out.indices, nullptr});
        }).find("resolve: out is null") == 0);
  CHECK(refusal([&] { e.kv.replay(e.main, s, both, second, b.out[0][1]); }).find("replay: group is 0") == 0);
  CHECK(report(e) == open);
  e.kv.addresses(e.main, s);
  e.kv.resolve(e.main, s, both, b.selections[0], out);
  CHECK(refusal([&] { e.kv.replay(e.main, s, both, second, {}); }).find("replay: out is null") == 0);
  CHECK(refusal([&] {
          e.kv.replay(e.main, s, both, second, {b.out[0][1].indices, nullptr});
        }).find("replay: out is null") == 0);
  CHECK(refusal([&] { e.kv.replay(e.main, s, both, third, b.out[0][1]); }).find("replay: source is 2") == 0);
  CHECK(refusal([&] { e.kv.resolve(e.main, s, both, b.selections[0], out); }).find("resolve: group is 0") == 0);
  e.end(s, {0});
  for (int i = 0; i < 3; ++i) e.run_step({&a}, 2, 1, select);
  e.settle();
}

TEST_CASE("history is published when every source with rows to come was imported") {
  small_engine e{stub{}, given};
  session a = e.start(160);
  random_rows select{8};
  // 35 tokens complete 8 rows of ratio 4, and 35 of ratio 1.
  e.kv.reserve_import(a.id, 35);
  e.import_source(a, 0, 35);
  CHECK(refusal([&] { e.kv.publish(a.id, 35); }) == "publish: source is 1; legal: one whose rows were imported");
  e.import_source(a, 1, 35);
  std::string const before = report(e);
  CHECK(refusal([&] { e.kv.publish(a.id, 35); }) == "publish: source is 2; legal: one whose rows were imported");
  CHECK(report(e) == before);
  CHECK(e.kv.tokens(a.id) == 0);
  e.import_source(a, 2, 35);
  e.kv.publish(a.id, 35);
  a.tokens = 35;
  e.run_step({&a}, 1, 0, select);
  e.truncate(a, 32);
  // Three more complete no row of ratio 4, whatever was reserved; the fourth does.
  for (std::int64_t reserved : {35, 36}) {
    CAPTURE(reserved);
    e.kv.reserve_import(a.id, reserved);
    e.import_source(a, 0, reserved);
    e.import_source(a, 1, reserved);
    if (reserved == 36)
      CHECK(refusal([&] { e.kv.publish(a.id, 36); }) == "publish: source is 2; legal: one whose rows were imported");
    e.kv.publish(a.id, 35);
    a.tokens = 35;
    for (int i = 0; i < 2; ++i) e.run_step({&a}, 2, 0, select);
    e.truncate(a, 32);
  }
  // What an earlier import brought does not count for the next one.
  e.kv.reserve_import(a.id, 36);
  CHECK(refusal([&] { e.kv.publish(a.id, 36); }) == "publish: source is 0; legal: one whose rows were imported");
  e.settle();
}

TEST_CASE("a step without addresses writes nothing and finds nothing, and the next one does") {
  small_engine e{stub{}, given};
  session a = e.start(160, 64), b = e.start(80, 30);
  auto const oldest = [](session const&, int, int, int column, std::int64_t) { return column; };
  for (int i = 0; i < 3; ++i) {
    e.run_step({&a, &b}, 2, 1, oldest);
    e.settle();
    counters const before = e.kv.counts();
    step const s = e.begin({&a, &b}, 2);
    auto const buffers = e.make_buffers(2, 2);
    e.fill(buffers, oldest);
    for (source_id source : {first, second, third}) {
      for (int k = 0; k < 4; ++k) CHECK(e.kv.write_addresses(source)[k] == -1);
    }
    e.kv.resolve(e.main, s, both, buffers.selections[0], buffers.out[0][0]);
    for (int k = 0; k < 4; ++k) CHECK(buffers.out[0][0].lengths[k] == 1);
    counters const after = e.kv.counts();
    CHECK(after.rejected - before.rejected == 2 * 2 * 8);
    CHECK(after.tail_hits == before.tail_hits);
    e.end(s, {0, 0});
  }
  e.run_step({&a, &b}, 2, 2, oldest);
  e.settle();
}

TEST_CASE("a group is replayed until another one is resolved") {
  small_engine e{stub{}, given};
  session a = e.start(160, 100);
  random_rows select{9};
  step const s = e.begin({&a});
  auto const b = e.make_buffers(1, 1);
  e.fill(b, select);
  e.kv.addresses(e.main, s);
  auto const refused = [&](group_id group, source_id source, auto out) {
    CHECK(refusal([&] { e.kv.replay(e.main, s, group, source, out); }) ==
          "replay: group is " + std::to_string(index(group)) + "; legal: the group that this step resolved last");
  };
  refused(both, second, b.out[0][1]);
  e.kv.resolve(e.main, s, both, b.selections[0], b.out[0][0]);
  refused(alone, third, b.out[1][0]);
  e.kv.replay(e.main, s, both, second, b.out[0][1]);
  e.kv.resolve(e.main, s, alone, b.selections[1], b.out[1][0]);
  refused(both, second, b.out[0][1]);
  e.end(s, {0});
  step const next = e.begin({&a});
  CHECK(refusal([&] { e.kv.replay(e.main, next, alone, third, b.out[1][0]); }).find("replay: group is 1") == 0);
  CHECK(refusal([&] { e.kv.replay(e.main, s, alone, third, b.out[1][0]); }).find("replay: step is 1") == 0);
  e.end(next, {0});
  e.run_step({&a}, 2, 1, select);  // replays right behind each resolve: exact
  e.settle();
}

/// Two groups on a set of three sources, and pools.
struct pooled : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 2;
  static constexpr int candidate_pool = 24;
  static constexpr std::array<layer_binding, 6> layers{{{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}}};
  static constexpr auto ratios = equal_ratios<3>();
};

TEST_CASE("wrong ragged batches, selections and pools are refused by name, and nothing changes") {
  using pooled_engine = engine<pooled, stub>;
  pooled_engine e{stub{}, given};
  session a = e.start(160, 100), b = e.start(160, 90);
  random_rows select{5};
  e.run_step({&a, &b}, 2, 1, select);
  e.settle();
  std::string const before = to_json(e.kv.counts(), e.kv.pools());
  request_id const ids[] = {a.id, b.id};
  std::int32_t offsets[] = {0, 1, 3};
  int const counts[] = {1, 2}, zero[] = {1, 0}, many[] = {1, 3}, one[] = {1};
  auto const begin = [&](batch x) {
    x.requests = ids;
    return refusal([&] { (void)e.kv.begin_step(e.main, x); });
  };
  CHECK(begin({.counts = one}).find("begin_step: counts is 1; legal: one for each of the 2 requests") == 0);
  CHECK(begin({.counts = zero}).find("begin_step: counts is 0; legal: 1 to 2") == 0);
  CHECK(begin({.counts = many}).find("begin_step: counts is 3; legal: 1 to 2") == 0);
  CHECK(begin({.counts = counts, .rows = 2}).find("begin_step: rows is 2; legal: 3 to 6") == 0);
  CHECK(begin({.counts = counts, .rows = 7}).find("begin_step: rows is 7") == 0);
  CHECK(begin({.rows = 4}).find("begin_step: rows is 4; legal: 0 where") == 0);
  CHECK(begin({.queries = 2, .offsets = offsets}).find("begin_step: rows is 0; legal: given where offsets are") == 0);
  CHECK(begin({.counts = counts, .offsets = offsets, .rows = 3}).find("begin_step: counts is given beside offsets") ==
        0);
  CHECK(to_json(e.kv.counts(), e.kv.pools()) == before);

  step const s = e.kv.begin_step(e.main, {.requests = ids, .counts = counts});
  CHECK(s.shape.rows == 3);
  e.kv.addresses(e.main, s);
  std::vector<std::int32_t> nothing(4 * 8, -1), out(4 * 8), bounds(4), pool(3 * 24, -1);
  auto const resolve = [&](selected const& what) {
    return refusal([&] { e.kv.resolve(e.main, s, group_id{0}, what, {out.data()}); });
  };
  CHECK(resolve({}).find("resolve: selection is null") == 0);
  CHECK(resolve({.positions = nothing.data(), .queries = 3}).find("resolve: queries is 3; legal: 0 to 2") == 0);
  CHECK(resolve({.positions = nothing.data(), .queries = 1}).find("resolve: bounds is null") == 0);
  CHECK(resolve({.positions = nothing.data(), .rows = 2}).find("resolve: rows is 2; legal: 0 where no offsets") == 0);
  CHECK(resolve({.positions = nothing.data(), .offsets = offsets}).find("resolve: queries is 0") == 0);
  CHECK(resolve({.positions = nothing.data(), .pass = 1}).find("resolve: pass is 1; legal: 0 to 0") == 0);
  auto const prefetch = [&](group_id g, candidates const& c) {
    return refusal([&] { e.kv.prefetch(e.main, s, g, c); });
  };
  CHECK(prefetch(group_id{0}, {}).find("prefetch: candidates is null") == 0);
  CHECK(prefetch(group_id{0}, {pool.data(), 25}).find("prefetch: size is 25; legal: 1 to candidate_pool, 24") == 0);
  CHECK(prefetch(group_id{0}, {pool.data(), 0}).find("prefetch: size is 0") == 0);
  CHECK(e.kv.prefetched(group_id{0}));
  e.kv.resolve(e.main, s, group_id{0}, nothing.data(), {out.data()});
  CHECK(prefetch(group_id{0}, {pool.data(), 24}).find("prefetch: group is 0; legal: a group that was not resolved") ==
        0);
  e.kv.replay(e.main, s, group_id{0}, source_id{2}, {out.data()});
  CHECK(refusal([&] {
          e.kv.replay(e.main, s, group_id{0}, source_id{1}, {out.data()});
        }).find("replay: source is 1; legal: one at or behind") == 0);
  CHECK(refusal([&] { e.kv.end_step(e.main, s, on_device{nullptr}); }).find("end_step: accepted is null") == 0);
  int const none[] = {0, 0};
  e.kv.end_step(e.main, s, none);
}

TEST_CASE("a captured part that leaves copies behind is refused until join forgets it, and the step goes on") {
  using pooled_engine = engine<pooled, stub>;
  for (bool pool : {false, true}) {
    CAPTURE(pool);
    pooled_engine e{stub{}, given};
    session a = e.start(320, 300);
    random_rows select{7};
    e.run_step({&a}, 2, 1, select);
    step const s = e.begin({&a}, 2);
    auto b = e.make_buffers(1, 2);
    e.fill(b, select);
    auto* const positions = e.take<std::int32_t>(24);
    for (int i = 0; i < 24; ++i) positions[i] = 7 * i;
    e.write(s, b);
    e.space.begin_capture(e.main);
    if (pool) {
      e.kv.prefetch(e.main, s, group_id{1}, {positions, 24});
    } else {
      e.resolve(s, b, 0);
    }
    CHECK_THROWS_AS((void)e.space.end_capture(e.main), std::logic_error);
    auto const refused = [&](char const* call, auto f) {
      CHECK(refusal(f) ==
            std::string{call} +
                ": captured part is left copies behind that nothing waits for; legal: one that ends with join");
    };
    refused("resolve", [&] { e.resolve(s, b, 1); });
    refused("prefetch", [&] { e.kv.prefetch(e.main, s, group_id{1}, {positions, 24}); });
    refused("end_step", [&] { e.end(s, {1}); });
    if (!pool) refused("replay", [&] { e.replay(s, b, 0, 1); });
    e.kv.join(e.main, s);
    e.kv.prefetch(e.main, s, group_id{1}, {positions, 24});
    e.resolve(s, b, 1);
    for (int k = 0; k < 3; ++k) {
      if (k > 0) e.replay(s, b, 1, k);
      e.check(b, 1, k);
    }
    e.end(s, {1});
    for (int i = 0; i < 3; ++i) e.run_step({&a}, 2, 1, select);
    e.settle();
  }
}

TEST_CASE("a ragged step without requests writes its padding, whatever its kind") {
  engine<pooled, stub> e{stub{}, given};
  session a = e.start(160, 100);
  random_rows select{8};
  std::int32_t const offsets[] = {0, 0, 0};
  for (int padded : {0, 2}) {
    for (bool own : {false, true}) {
      CAPTURE(padded);
      CAPTURE(own);
      step const s =
          e.kv.begin_step(e.main, {.queries = 2, .padded = padded, .offsets = own ? offsets : nullptr, .rows = 5});
      CHECK(s.padded == std::max(padded, 1));
      CHECK(s.shape.rows == 5);
      CHECK(s.shape.offsets != nullptr);
      e.kv.addresses(e.main, s);
      std::vector<std::int32_t> const selection(5 * 8, 3);
      std::vector<std::int32_t> out(5 * 8 + 1, 12'345);
      e.kv.resolve(e.main, s, group_id{0}, selection.data(), {out.data()});
      e.kv.end_step(e.main, s, {});
      CHECK(std::count(out.begin(), out.end(), -1) == 5 * 8);
      CHECK(out.back() == 12'345);
    }
  }
  e.run_step({&a}, 2, 1, select);
  e.settle();
}

TEST_CASE("a launch that fails while something looks ahead leaves no row without bytes") {
  stub const space;
  using pooled_engine = engine<pooled, stub>;
  for (int n = 1; n <= 14; ++n) {
    pooled_engine e{space, given};
    session a = e.start(320, 300), b = e.start(320, 290);
    random_rows select{static_cast<std::uint32_t>(n)};
    e.run_step({&a, &b}, 2, 1, select);
    step const s = e.begin({&a, &b}, 2);
    auto const buffers = e.make_buffers(2, 2);
    e.fill(buffers, select);
    auto* const pool = e.take<std::int32_t>(2 * 24);
    for (int i = 0; i < 48; ++i) pool[i] = 5 * i % 250;
    e.kv.addresses(e.main, s);
    for (int k = 0; k < 3; ++k)
      space.run(e.main, 4,
                write_rows_body{e.kv.view(source_id{k}), e.kv.write_addresses(source_id{k}),
                                buffers.writes[static_cast<std::size_t>(k)], e.wrong()});

    auto const persist = [&](auto call) {
      for (int i = 0;; ++i) {
        REQUIRE(i < 3);
        try {
          return call();
        } catch (std::runtime_error const&) {
        }
      }
    };
    space.fail(n);
    for (int g = 0; g < 2; ++g) {
      auto const at = static_cast<std::size_t>(g);
      persist([&] { e.kv.prefetch(e.main, s, group_id{g}, {pool, 24}); });
      persist([&] { e.kv.resolve(e.main, s, group_id{g}, buffers.selections[at], buffers.out[at][0]); });
      for (std::size_t k = 0; k < 3; ++k) {
        source_id const source{static_cast<int>(k)};
        if (k > 0 && g == 1) persist([&] { e.kv.replay(e.main, s, group_id{g}, source, buffers.out[at][k]); });
        if (k > 0 && g == 0) break;  // its plan is carried out by the next resolve
        serial_space{space}.run(e.main, 4,
                                check_rows_body<pooled>{e.kv.view(source), buffers.out[at][k], buffers.rows[at][k],
                                                        buffers.lengths[at], e.wrong()});
      }
    }
    space.fail(0);
    e.end(s, {2, 1});
    for (int i = 0; i < 3; ++i) e.run_step({&a, &b}, 2, 1, select);
    e.settle();
    CHECK(e.kv.counts().prefetched_rows > 0);
  }
}

// ---- memory

/// Memory that is exactly as large as it must be, filled with what no row holds.
struct lent_memory {
  explicit lent_memory(sizes s) : all{s} {
    for (source_id source : {first, second, third}) {
      std::size_t const bytes = static_cast<std::size_t>(arena_bytes<small>(s, source));
      memory.push_back(std::make_unique<std::byte[]>(bytes));
      std::fill_n(memory.back().get(), bytes, std::byte{0xEE});
      arenas.push_back(
          {memory.back().get(), geometry<small>{}.layout(index(source)).stride, static_cast<std::int64_t>(bytes)});
    }
    store.resize(static_cast<std::size_t>(host_bytes<small>(s)), std::byte{0xEE});
    all.arenas = arenas;
    all.host_memory = store;
  }
  sizes all;
  std::vector<std::unique_ptr<std::byte[]>> memory{};
  std::vector<arena_view> arenas{};
  std::vector<std::byte> store{};
};

TEST_CASE("borrowed memory is as large as arena_bytes and host_bytes say, and no smaller") {
  lent_memory lent{given};
  auto const said = [&] { return refusal([&] { residency<small, stub> const kv{stub{}, lent.all}; }); };
  CHECK(said() == "");
  for (std::size_t source : {0, 1, 2}) {
    CAPTURE(source);
    arena_view const whole = lent.arenas[source];
    --lent.arenas[source].bytes;
    // 10 frames, one of zeroes, and staging of 16 slots for each of 3 requests.
    CHECK(said() == "arenas: bytes is " + std::to_string(whole.bytes - 1) + "; legal: enough for " +
                        std::to_string(source == 2 ? 11 + 3 * 4 : 11 + 3) + " frames of source " +
                        std::to_string(source) + ", staging included");
    lent.arenas[source].bytes = std::numeric_limits<std::int64_t>::min();
    CHECK(said().find("arenas: bytes is -") == 0);
    lent.arenas[source] = whole;
  }
  arena_view const whole = lent.arenas[1];
  lent.arenas[1].base = lent.arenas[0].base;
  CHECK(said() == "arenas: source is 1; legal: one that shares no bytes with source 0");
  lent.arenas[1].base = lent.arenas[0].base + lent.arenas[0].bytes / 16 * 16 - 16;
  CHECK(said() == "arenas: source is 1; legal: one that shares no bytes with source 0");
  lent.arenas[1] = whole;
  lent.all.host_memory = std::span{lent.store}.first(lent.store.size() - 1);
  CHECK(said() == "host_memory: bytes is " + std::to_string(lent.store.size() - 1) + "; legal: at least " +
                      std::to_string(lent.store.size()));
  lent.all.host_memory = lent.store;
  CHECK(said() == "");

  // Pages of two sources side by side, from one stride to the next.
  std::int64_t const page = lent.arenas[0].frame_stride;
  std::vector<std::byte> shared(static_cast<std::size_t>(2 * arena_bytes<small>(given, first, 2 * page)));
  std::int64_t const bytes = arena_bytes<small>(given, first, 2 * page);
  CHECK(bytes == 13 * 2 * page + page);
  lent.arenas[0] = {shared.data(), 2 * page, bytes};
  lent.arenas[1] = {shared.data() + page, 2 * page, bytes};
  CHECK(said() == "");
  lent.arenas[1].base -= 16;
  CHECK(said() == "arenas: source is 1; legal: one that shares no bytes with source 0");
}

// The engine's check bodies compare fillers of an empty row with zeroes.
TEST_CASE("borrowed memory may hold anything: the row of zeroes is one, and all others are exact") {
  lent_memory lent{given};
  stub const space;
  small_engine e{space, lent.all};
  (void)or_throw(e.kv.take(4));
  session a = e.start(160, 100), empty = e.start(16);
  random_rows select{10};
  for (int i = 0; i < 6; ++i) e.run_step({&empty, &a}, 2, std::vector{0, 2}, select, 3);
  e.settle();
  CHECK(e.kv.counts().misses > 0);
  CHECK(e.kv.counts().lost == 0);
}

// ---- interleaved

struct side_by_side : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr auto layers = separate_layers<2>();
  static constexpr auto ratios = equal_ratios<2>();
  using metadata = interleaved;
};
struct of_two_ratios : side_by_side {
  static constexpr std::array<int, 2> ratios{1, 2};
};
struct huge_pages : side_by_side {
  static constexpr int page_tokens = 16'384;
};

TEST_CASE("interleaved metadata is refused where row indices could not name the rows") {
  std::vector<std::byte> memory(1 << 16);
  auto const said = []<class P>(P, sizes s, std::vector<arena_view> const& arenas) {
    s.arenas = arenas;
    return refusal([&] { residency<P, serial_space> const kv{serial_space{}, s}; });
  };
  sizes const s{.frames = 10, .host_pages = 4, .requests = 1, .max_batch = 1, .max_tokens = 64, .hot_rows = 16};
  constexpr std::int64_t page = 256;
  std::byte* const at = memory.data();
  auto const block = [&](std::int64_t stride) { return 9 * stride + page; };
  std::string const zero = "metadata: interleaved, arena of source is 0; legal: borrowed, of one ratio";
  std::string const one = "metadata: interleaved, arena of source is 1; legal: borrowed, of one ratio";
  side_by_side const p;
  CHECK(said(p, s, {{at, 2 * page, block(2 * page)}, {at + page, 2 * page, block(2 * page)}}) == "");
  CHECK(said(p, s, {{at, 3 * page, block(3 * page)}, {at + page, 3 * page, block(3 * page)}}) == "");
  CHECK(said(p, s, {}).find(zero) == 0);
  CHECK(said(p, s, {{at, page, block(page)}, {at + 10 * page, page, block(page)}}).find(zero) == 0);
  CHECK(said(p, s, {{at, 2 * page, block(2 * page)}, {at + 20 * page, 2 * page, block(2 * page)}}).find(one) == 0);
  CHECK(said(p, s, {{at, 3 * page, block(3 * page)}, {at + 2 * page, 3 * page, block(3 * page)}}).find(one) == 0);
  std::int64_t const padded = 2 * page + 16;
  CHECK(said(p, s, {{at, padded, block(padded)}, {at + page, padded, block(padded)}}).find(zero) == 0);
  CHECK(said(of_two_ratios{}, s, {{at, 2 * page, block(2 * page)}, {at + page, 2 * page, block(2 * page)}}).find(one) ==
        0);

  constexpr std::int64_t huge = 16'384 * 16, endless = std::numeric_limits<std::int64_t>::max();
  sizes many{.frames = 65'536, .host_pages = 1, .requests = 1, .max_batch = 1, .max_tokens = 64, .hot_rows = 16};
  std::vector<arena_view> const blocks{{at, 2 * huge, endless}, {at + huge, 2 * huge, endless}};
  CHECK(said(huge_pages{}, many, blocks) ==
        "metadata: interleaved, rows is 1073741824; legal: few enough for int32 indices over 2 layers");
  many.frames = 65'535;
  CHECK(said(huge_pages{}, many, blocks) == "");
}

TEST_CASE("an instance that is out of use gives no holds") {
  stub const space;
  small_engine e{space, given};
  session a = adopted(e, 8);
  hold_id const id = or_throw(e.kv.hold(16));
  space.fail(1);
  CHECK_THROWS_AS((void)e.begin({&a}), std::runtime_error);
  CHECK_THROWS_WITH_AS((void)e.kv.hold(16), doctest::Contains("out of use"), std::runtime_error);
  CHECK_THROWS_WITH_AS(e.kv.release(id), doctest::Contains("out of use"), std::runtime_error);
}

TEST_CASE("a step on another stream is ordered behind the step before") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    serial_space const space{host::deferred{seed}};
    auto const a = space.make_stream(), b = space.make_stream();
    residency<small, serial_space> kv{space, given};
    request_id const id = or_throw(kv.admit(64));
    step const before = kv.begin_step(a, {std::vector{id}});
    kv.addresses(a, before);
    kv.end_step(a, before, std::vector{1});
    step const now = kv.begin_step(b, {std::vector{id}});
    kv.addresses(b, now);
    space.synchronize(space.record(b));
    CHECK(kv.bounds()[0] == 2);
    kv.end_step(b, now, std::vector{0});
  }
}

TEST_CASE("scratch behind the committed tokens does not keep frames from being adopted") {
  serial_space const space;
  auto const main = space.make_stream();
  residency<small, serial_space> kv{space, given};
  request_id const id = or_throw(kv.admit(64));
  for (int tokens = 0; tokens < 16; ++tokens) {
    step const now = kv.begin_step(main, {std::vector{id}, 2});
    kv.end_step(main, now, std::vector{1});
  }
  REQUIRE(kv.pools(id).pages == 2);
  kv.adopt(main, id, *kv.collect(or_throw(kv.take(1))), 32);
  CHECK(kv.tokens(id) == 32);
  CHECK(kv.pools(id).pages == 2);
}

TEST_CASE("a preempted request comes back by a hold of its own, before younger holds") {
  sizes room = given;
  room.host_pages = 80;
  residency<small, serial_space> kv{serial_space{}, room};
  request_id const id = or_throw(kv.admit(320));
  kv.preempt(id);
  hold_id const mine = or_throw(kv.hold(320)), younger = or_throw(kv.hold(320));
  CHECK(!kv.resume(id));
  CHECK(kv.resume(id, -1, mine).has_value());
  CHECK_THROWS_AS(kv.release(mine), std::invalid_argument);
  kv.release(younger);
}

}  // namespace misuse_test

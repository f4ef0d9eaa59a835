// What goes wrong on the way and at the edges: copies outstanding at the end, failed copies, page and index boundaries.
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "engine.hpp"

namespace faults_test {

using namespace ebb;
using namespace ebb::testing;

/// Sixteen rows a page, two segments, one source.
struct small : policy_defaults {
  static constexpr row_segments row{20, 4};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 5;
  static constexpr std::array<layer_binding, 1> layers{{{0, 0}}};
  static constexpr std::array<int, 1> ratios{1};
};
/// Two layers that share a selection, beside one that compresses four tokens into a row; 64 tokens a page.
struct mixed : policy_defaults {
  static constexpr row_segments row{16, 8};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 4;
  static constexpr std::array<layer_binding, 3> layers{{{0, 0}, {0, 1}, {1, 2}}};
  static constexpr std::array<int, 3> ratios{1, 1, 4};
};

// The scenario's numbers.
TEST_CASE_TEMPLATE("O19: a request that finishes with three backups outstanding gives everything back once", S,
                   EBB_SPACES) {
  int const cycles = times<S>(50, 4);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    engine<small, S> e{make_deferred_space<S>(seed),
                       {.frames = 24,
                        .host_pages = 64,
                        .requests = 3,
                        .max_batch = 2,
                        .max_tokens = 256,
                        .hot_rows = 16,
                        .steps_in_flight = 6}};
    random_rows select{static_cast<std::uint32_t>(seed)};
    session other = e.start(256, 40);
    e.run_step({&other}, 1, 0, select);
    e.settle();
    e.kv.wait(e.kv.allocator().book().last);
    gauges const before = e.kv.pools();
    std::uint64_t backed_up = e.kv.counts().pages.backed_up;
    for (int cycle = 0; cycle < cycles; ++cycle) {
      CAPTURE(cycle);
      session a = e.start(128);
      auto const wanted = e.kv.take(3);
      REQUIRE(wanted);
      e.run_step({&other}, 1, 0, select);
      auto const frames = e.kv.collect(*wanted);
      REQUIRE(frames);
      e.adopt(a, *frames, 48);
      {
        auto gate = e.space.close_gate(e.main);
        e.run_step({&a, &other}, 1, 0, select);  // n: seals three pages, so three backups are in flight
        REQUIRE(e.page(a, 2).backing == 16);
        REQUIRE(e.page(a, 2).backed == 0);
        if (cycle % 2 == 0) {
          e.kv.finish(a.id);
        } else {
          e.kv.abort(a.id);
        }
        CHECK(out_of_balance(e.kv) == "");
        session b = e.start(128);  // n + 1, in the same slot
        CHECK(b.id.slot == a.id.slot);
        CHECK(b.id != a.id);
        e.run_step({&b, &other}, 3, 3, select);
        CHECK_THROWS_AS(e.kv.tokens(a.id), std::invalid_argument);
        e.run_step({&b, &other}, 3, {2, 0}, select);  // n + 2
        gate.open();                                  // n + 3: the completions arrive
        e.run_step({&b, &other}, 2, {2, 0}, select);
        e.settle();
        CHECK(e.kv.tokens(b.id) == 7);
        CHECK(e.page(b, 0).backed == 0);
        CHECK(e.page(b, 0).backing == 0);
        CHECK(out_of_balance(e.kv) == "");
        e.kv.finish(b.id);
      }
      e.truncate(other, 40);
      e.kv.wait(e.kv.allocator().book().last);
      e.run_step({&other}, 1, 0, select);
      e.settle();
      backed_up += 3;
      CHECK(e.kv.counts().pages.backed_up == backed_up);
    }
    e.kv.wait(e.kv.allocator().book().last);
    e.run_step({&other}, 1, 0, select);
    gauges const after = e.kv.pools();
    CHECK(after.frames_free == before.frames_free);
    CHECK(after.frames_revoking == 0);
    CHECK(after.host_pages_free == before.host_pages_free);
    CHECK(after.frames_promised == before.frames_promised);
    CHECK(after.running == 1);
    e.settle();
  }
}

// The scenario's numbers; 5 queries are reserved for in every step, 0 to 5 of them accepted in turn.
TEST_CASE_TEMPLATE("O21: a request holds the pages of its length, and readers see no more", S, EBB_SPACES) {
  engine<small, S> e{
      make_space<S>(),
      {.frames = 450, .host_pages = 450, .requests = 6, .max_batch = 6, .max_tokens = 1100, .hot_rows = 16}};
  int const steps = times<S>(200, 60);
  std::vector<session> all;
  for (int length : {15, 16, 17, 31, 32, 33}) all.push_back(e.start(1100, length));
  std::vector<session*> who;
  for (session& s : all) who.push_back(&s);
  // The newest row, the one behind it, the last of the page and the one behind that; then anything.
  random_rows other{7};
  auto const select = [&](session const& s, int g, int j, int c, std::int64_t rows) -> std::int64_t {
    std::int64_t const page_end = (rows + 15) / 16 * 16;
    switch (c) {
      case 0:
        return rows - 1;
      case 1:
        return rows;
      case 2:
        return page_end - 1;
      case 3:
        return page_end;
      case 4:
        return page_end + 16;
      default:
        return other(s, g, j, c, rows);
    }
  };
  for (int i = 0; i < steps; ++i) {
    std::vector<int> accepted;
    for (int k = 0; k < 6; ++k) accepted.push_back((i + k) % 6);
    step const s = e.begin(who, 5);
    for (session* one : who) {
      CHECK(e.record(*one).pages.size() == static_cast<std::size_t>(pages_for(one->tokens + 5, 16)));
    }
    auto const b = e.make_buffers(s.padded, 5);
    e.fill(b, select);
    e.enqueue(s, b);
    e.end(s, accepted);
    CHECK(out_of_balance(e.kv) == "");
  }
  // A step of nothing for a request sheds what was reserved for drafts: one query, none accepted, then the next length's pages are exact.
  e.run_step(who, 1, 0, select);
  for (session* one : who) {
    CHECK(e.record(*one).pages.size() == static_cast<std::size_t>(pages_for(one->tokens + 1, 16)));
    CHECK(e.kv.tokens(one->id) == one->tokens);
    e.kv.finish(one->id);
  }
  e.settle();
  e.run_step({}, 1, 0, select);
  CHECK(e.kv.pools().frames_free == 450);
  CHECK(e.kv.pools().host_pages_free == 450);
  CHECK(e.kv.counts().lost == 0);
}

// The scenario's numbers: 64 tokens a page, sources of ratio 1 and 4.
TEST_CASE_TEMPLATE("O22: history of any length comes in, its partial page as tail", S, EBB_SPACES) {
  for (std::int64_t length : {0, 1, 63, 64, 65, 32019}) {
    CAPTURE(length);
    engine<mixed, S> e{
        make_space<S>(),
        {.frames = 40, .host_pages = 600, .requests = 4, .max_batch = 4, .max_tokens = 33'000, .hot_rows = 64}};
    random_rows select{static_cast<std::uint32_t>(length) + 1};
    session a = e.start(1000, 200);
    session b = e.start(1000, 64);
    session c = e.start(1000, 3);
    e.run_step({&a, &b, &c}, 2, 1, select);
    session late = e.start(33'000);
    if (length == 0) {
      CHECK_THROWS_WITH_AS(e.kv.reserve_import(late.id, 0), "reserve_import: tokens is 0; legal: 1 to 33000",
                           std::invalid_argument);
    } else {
      e.import(late, length, length == 65 ? 5 : 0);
    }
    CHECK(e.kv.tokens(late.id) == length);
    if (length % 64 != 0) {
      page_record const& last = e.page(late, static_cast<int>(length / 64));
      CHECK(last.at.frame != frame_id::none);
      CHECK(e.kv.allocator().book().frames[last.at.frame].state == frame_state::required);
    }
    for (int i = 0; i < 3; ++i) {
      e.run_step({&a, &b, &c, &late}, 3, i,
                 [&](session const& s, int g, int j, int col, std::int64_t rows) -> std::int64_t {
                   std::int64_t const last = length / (g == 0 ? 1 : 4) - 1;
                   if (&s == &late && col < 2) return last - col;
                   return select(s, g, j, col, rows);
                 });
    }
    CHECK(out_of_balance(e.kv) == "");
    e.settle();
    CHECK(e.kv.counts().lost == 0);
  }
}

// 5 slots, max_tokens 100 with 16 a page; 5 queries, the most there are. The sixth request and the 101st token are refused: for want of
// host pages where there are 35, else of slots.
TEST_CASE_TEMPLATE("O23: the last slot, the last row and the last query stay in their arrays", S, EBB_SPACES) {
  using W = watched_space<S>;
  bool slots = false;
  SUBCASE("no host page to spare") {}
  SUBCASE("no slot to spare") { slots = true; }
  W const space{make_space<S>()};
  engine<small, W> e{
      space,
      {.frames = 45, .host_pages = slots ? 42 : 35, .requests = 5, .max_batch = 5, .max_tokens = 100, .hot_rows = 16}};
  random_rows select{23};
  std::vector<session> all;
  for (int i = 0; i < 5; ++i) all.push_back(e.start(100, 99));
  CHECK(all.back().id.slot == 4);
  auto const sixth = e.kv.admit(100);
  REQUIRE(!sixth);
  CHECK(sixth.error().message() == (slots ? "not enough requests: wanted 1, free 0, revocable 0"
                                          : "not enough host pages: wanted 7, free 0, revocable 0"));
  std::vector<session*> who;
  for (session& s : all) who.push_back(&s);
  auto const last_rows = [&](session const& s, int g, int j, int c, std::int64_t rows) -> std::int64_t {
    return c < 4 ? rows - 1 - c * 16 : c == 4 ? 99 : c == 5 ? 100 : select(s, g, j, c, rows);
  };
  for (int i = 0; i < 3; ++i) e.run_step(who, 5, 0, last_rows);  // at max length − 1: four of five queries find no room
  e.settle();
  CHECK(space.dead_canaries() == 0);
  e.run_step(who, 5, 1, last_rows);
  e.settle();
  CHECK(space.dead_canaries() == 0);
  for (session& s : all) {
    CHECK(e.kv.tokens(s.id) == 100);
    CHECK(e.record(s).pages.size() == 7);
  }
  request_id const full = all.back().id;
  CHECK_THROWS_WITH_AS(e.kv.begin_step(e.main, {{&full, 1}}),
                       "begin_step: tokens is 100; legal: less than the request's tokens_max, 100",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(e.kv.begin_step(e.main, {{&full, 1}, 6}), "begin_step: queries is 6; legal: 1 to 5",
                       std::invalid_argument);
  CHECK_THROWS_AS(e.kv.reserve_import(full, 101), std::invalid_argument);
  // Everything is still there, in every row of the highest slot.
  e.truncate(all.back(), 99);
  for (int first = 0; first < 100; first += 8) {
    e.run_step({&all.back()}, 1, 0,
               [&](session const&, int, int, int c, std::int64_t) -> std::int64_t { return first + c; });
  }
  e.settle();
  CHECK(space.dead_canaries() == 0);
  for (session& s : all) e.kv.finish(s.id);
  auto const longer = e.kv.admit(101);
  REQUIRE(!longer);
  CHECK(longer.error().pool == pool::tokens);
  CHECK(longer.error().message() == "not enough tokens: wanted 101, free 100, revocable 0 (can never fit)");
  CHECK(e.kv.admit(100));
  CHECK(out_of_balance(e.kv) == "");
}

#if !defined(__CUDACC__)

template <class Body>
inline constexpr bool moves_pages = false;
template <policy P>
inline constexpr bool moves_pages<move_body<P>> = true;
template <policy P, int Width>
inline constexpr bool moves_pages<import_body<P, Width>> = true;

/// A space where the next copy of pages fails: its launch, which leaves the device well, or on its way.
template <class S>
class failing_space : public S {
 public:
  enum fault { none, at_launch, on_its_way };
  explicit failing_space(S const& of) : S{of} {}

  template <class Body>
  void run(typename S::stream on, int items, Body const& body) const {
    if constexpr (moves_pages<Body>) {
      fault const now = std::exchange(*next, none);
      if (now == at_launch) throw std::runtime_error{"too many resources requested for launch"};
      if (now == on_its_way)
        return S::call(on, [] { throw std::runtime_error{"an illegal memory access was encountered"}; });
    }
    S::run(on, items, body);
  }

  std::shared_ptr<fault> next = std::make_shared<fault>(none);
};

/// A request of 20 pages whose pages 1 to 8 are about to be handed back, a request whose 8 pages are about to be backed up, or one that
/// is about to import 8 pages.
template <class S>
struct eight_pages {
  explicit eight_pages(S const& space, copy_kind what)
      : e{space, {.frames = 20, .host_pages = 64, .requests = 2, .max_batch = 2, .max_tokens = 512, .hot_rows = 16}},
        kind{what} {
    if (kind == copy_kind::refill) {
      auto const frames = taken();
      a = e.start(512, 316);
      e.kv.give(e.main, frames);
    } else if (kind == copy_kind::backup) {
      auto const frames = taken();
      a = e.start(512);
      e.adopt(a, frames, 128);
    } else {
      a = e.start(512);
      e.kv.reserve_import(a.id, 128);
    }
    e.kv.wait(e.kv.allocator().book().last);
    e.settle();
  }
  std::vector<frame_id> taken() {
    take_id const id = or_throw(e.kv.take(8));
    return *e.kv.collect(id);
  }
  /// The call that asks for the copies.
  void ask() {
    if (kind == copy_kind::import) {
      e.import_source(a, 0, 128);
      return;
    }
    if (kind == copy_kind::backup) a.tokens = 128;
    e.run_step({&a}, 1, 0, [](session const&, int, int, int c, std::int64_t rows) -> std::int64_t {
      return c < 3 ? c : c == 3 ? rows - 1 : 5 * 16 + c;
    });
  }
  /// Everything that was enqueued happens, and a step sees it.
  void see() {
    e.kv.wait(e.kv.allocator().book().last);
    ask();
    e.settle();
  }
  std::uint64_t successes() const {
    counters const c = e.kv.counts();
    return kind == copy_kind::refill   ? c.pages.refilled
           : kind == copy_kind::backup ? c.pages.backed_up
                                       : c.imported_bytes / (16 * 24);
  }
  engine<small, S> e;
  copy_kind kind;
  session a;
};

// (a) The copy of page 5 is refused: it alone stays as it was, is named, and comes with the next try.
TEST_CASE_TEMPLATE("O20: a copy that is refused changes nothing but the list of failures", S, EBB_SPACES) {
  for (copy_kind kind : {copy_kind::refill, copy_kind::backup, copy_kind::import}) {
    CAPTURE(static_cast<int>(kind));
    S const space = make_deferred_space<S>(20);
    eight_pages<S> t{space, kind};
    space.refuse_copies([=](copy_kind k, int, int page) { return k == kind && page == 5; });
    t.ask();
    if (kind != copy_kind::import) t.see();
    auto const failures = t.e.kv.take_failures();
    REQUIRE(!failures.empty());
    CHECK(failures.front().kind == kind);
    CHECK(failures.front().request == t.a.id);
    CHECK(failures.front().page == page_index{5});
    CHECK(t.e.kv.counts().pages.copy_failures == failures.size());
    CHECK(t.successes() == 7);
    CHECK(out_of_balance(t.e.kv) == "");
    page_record const& page = t.e.page(t.a, 5);
    if (kind == copy_kind::refill) CHECK_FALSE(page.mapped);
    if (kind == copy_kind::backup) CHECK(page.backed == 0);
    if (kind == copy_kind::backup) CHECK(page.mapped);
    if (kind == copy_kind::import) {
      CHECK_THROWS_WITH_AS(t.e.kv.publish(t.a.id, 128), doctest::Contains("page 5 of the request in slot 0"),
                           std::runtime_error);
      CHECK(t.e.kv.tokens(t.a.id) == 0);
    }
    space.refuse_copies({});
    t.ask();
    if (kind == copy_kind::import) {
      t.e.kv.publish(t.a.id, 128);
      t.a.tokens = 128;
      t.kind = copy_kind::backup;
    }
    t.see();
    if (kind == copy_kind::refill) CHECK(t.e.page(t.a, 5).mapped);
    if (kind != copy_kind::import) CHECK(t.successes() == 8);
    if (kind == copy_kind::backup) CHECK(t.e.page(t.a, 5).backed == 16);
    CHECK(t.e.kv.counts().lost == 0);
  }
}

// (b) and (c): nothing that the failed copies were to do counts as done, and the instance says so from then on. On a GPU, (c) is the
// sticky error of the device, which every call meets.
TEST_CASE_TEMPLATE("O20: an error of the device puts the instance out of use", S, EBB_SPACES) {
  using F = failing_space<S>;
  for (copy_kind kind : {copy_kind::refill, copy_kind::backup, copy_kind::import}) {
    for (typename F::fault fault : {F::at_launch, F::on_its_way}) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(static_cast<int>(fault));
      F const space{make_deferred_space<S>(21)};
      eight_pages<F> t{space, kind};
      std::uint64_t const before = kind == copy_kind::import ? 0 : t.successes();
      *space.next = fault;
      if (fault == F::at_launch) {
        CHECK_THROWS_WITH_AS(t.ask(), doctest::Contains("too many resources"), std::runtime_error);
        CHECK_FALSE(space.broken());
      } else {
        t.ask();
        if (kind == copy_kind::import) t.e.kv.publish(t.a.id, 128);
        CHECK_THROWS_WITH_AS(space.drain(), doctest::Contains("illegal memory access"), std::runtime_error);
        space.drain();
        CHECK_THROWS_AS(t.e.kv.begin_step(t.e.main, {{&t.a.id, 1}}), std::runtime_error);
      }
      CHECK_THROWS_WITH_AS(t.e.kv.begin_step(t.e.main, {{&t.a.id, 1}}), doctest::Contains("out of use"),
                           std::runtime_error);
      CHECK_THROWS_WITH_AS(t.e.kv.admit(16), doctest::Contains("out of use"), std::runtime_error);
      CHECK_THROWS_WITH_AS(t.e.kv.preempt(t.a.id), doctest::Contains("out of use"), std::runtime_error);
      if (kind != copy_kind::import) CHECK(t.successes() == before);
      for (int p = 1; p < static_cast<int>(t.e.record(t.a).pages.size()) && p <= 8; ++p) {
        if (kind == copy_kind::refill) CHECK_FALSE(t.e.page(t.a, p).mapped);
        if (kind == copy_kind::backup) CHECK(t.e.page(t.a, p).backed == 0);
      }
    }
  }
}

#endif  // host spaces

}  // namespace faults_test

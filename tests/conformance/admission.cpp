// Who is admitted, who waits and who gives pages back.
#include <algorithm>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "engine.hpp"

namespace admission_test {

using namespace ebb;
using namespace ebb::testing;

/// Sixteen rows a page.
struct lending : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 4;
  static constexpr int max_queries = 4;
  static constexpr std::array<layer_binding, 1> layers{{{0, 0}}};
  static constexpr std::array<int, 1> ratios{1};
};
/// Pages are backed up when they are about to leave.
struct lazy : lending {
  using backup = on_revoke;
};
/// Always whole.
struct whole : lending {
  using tiers = tier_list<host_pages>;
};
/// 1,024 bytes a row: pages of 16 KiB, runs of 128 host pages.
struct kilobyte_rows : lending {
  static constexpr row_segments row{1024};
};

std::int64_t nothing(session const&, int, int, int, std::int64_t) { return -1; }

// 16 rows a page instead of 10, so 62 host pages for 1,000 rows; "hot buffers for 8 requests" are 8 request slots here: hot rows belong to a
// request's slot. A request of 320 tokens takes 20 host pages, one of 30 takes 2.
TEST_CASE_TEMPLATE("O34: admission counts every pool and what it has promised", S, EBB_SPACES) {
  engine<lending, S> e{
      make_space<S>(),
      {.frames = 60, .host_pages = 62, .requests = 8, .max_batch = 8, .max_tokens = 400, .hot_rows = 16}};
  random_rows select{34};
  for (int pass = 0; pass < 2; ++pass) {
    CAPTURE(pass);
    int const history = pass == 0 ? 300 : 10;
    std::vector<session> admitted;
    int refused = 0;
    for (int i = 0; i < (pass == 0 ? 4 : 10); ++i) {
      auto const id = e.kv.admit(history + 20, history);
      if (id) {
        admitted.push_back(e.name(*id, history + 20));
        continue;
      }
      ++refused;
      CHECK(id.error().ever);
      CHECK(id.error().pool == (pass == 0 ? pool::host_pages : pool::requests));
      CHECK(id.error().wanted == (pass == 0 ? 20 : 1));
      CHECK(id.error().free == (pass == 0 ? 2 : 0));
      CHECK(id.error().message().find(pass == 0 ? "host pages: wanted 20, free 2" : "requests: wanted 1, free 0") !=
            std::string::npos);
    }
    CHECK(admitted.size() == (pass == 0 ? 3u : 8u));
    CHECK(refused == (pass == 0 ? 1 : 2));
    // Whoever is in gets everything up to its last token.
    for (session& s : admitted) e.import(s, history);
    std::vector<session*> who;
    for (session& s : admitted) who.push_back(&s);
    for (int i = 0; i < 5; ++i) {
      e.run_step(who, 4, 4, select);
      CHECK(out_of_balance(e.kv) == "");
    }
    e.settle();
    for (session& s : admitted) {
      CHECK(e.kv.tokens(s.id) == s.tokens_max);
      e.kv.finish(s.id);
    }
    e.end(e.begin({}), {});
  }
  CHECK(e.kv.counts().pages.refused == 3);
  CHECK(e.kv.counts().lost == 0);
}

// 20 pages lent to four requests; who needs frames are an admission (tail and hot rows: 6), a verification that reaches into the next page,
// and a tail that grows.
TEST_CASE_TEMPLATE("O35: lent pages make room for admission, scratch and tail, oldest first and in proportion", S,
                   EBB_SPACES) {
  engine<lending, S> e{
      make_space<S>(),
      {.frames = 46, .host_pages = 120, .requests = 7, .max_batch = 7, .max_tokens = 256, .hot_rows = 48}};
  std::vector<frame_id> const frames = *e.kv.collect(or_throw(e.kv.take(40)));
  std::vector<session> long_ones;
  for (std::size_t i = 0; i < 4; ++i) {
    long_ones.push_back(e.start(256, 190));  // 12 pages: 3 tail, 9 history; no frame to spare yet
    e.kv.give(e.main, {frames.data() + i * 6, 6});
  }
  e.kv.give(e.main, {frames.data() + 24, 16});
  session tail = e.start(48, 16);
  session verify = e.start(48, 15);
  e.run_step({&long_ones[0]}, 1, 0, nothing);
  e.kv.wait(e.kv.allocator().book().last);
  e.run_step({&long_ones[0]}, 1, 0, nothing);
  REQUIRE(e.kv.pools().frames_lent == 20);
  REQUIRE(e.kv.pools().frames_free == 0);
  for (session const& s : long_ones) {
    REQUIRE(e.record(s).lent == 5);
    for (int p = 4; p < 9; ++p) REQUIRE(e.page(s, p).at.frame != frame_id::none);
  }
  std::uint64_t const revoked = e.kv.counts().pages.revoked;
  std::uint64_t const waits = e.kv.counts().pages.forced_waits;

  auto const newcomer = e.kv.admit(256, 96);
  REQUIRE(newcomer);
  CHECK(e.kv.counts().pages.revoked == revoked + 6);
  std::vector<session*> who{&tail, &verify};
  random_rows select{35};
  e.run_step(who, 4, 4, select);
  CHECK(e.kv.ready(*newcomer));
  CHECK(e.kv.counts().pages.revoked == revoked + 8);
  CHECK(e.kv.pools().frames_lent == 12);
  CHECK(e.kv.counts().pages.forced_waits == waits);  // a host copy was there beforehand, for each
  for (session const& s : long_ones) {
    CHECK(e.record(s).lent == 3);
    for (int p = 4; p < 9; ++p) {
      CHECK((e.page(s, p).at.frame != frame_id::none) == (p >= 6));  // the oldest two
      CHECK(e.page(s, p).backed == 16);
    }
  }
  session last = e.name(*newcomer, 256);
  e.import(last, 96);
  for (session& s : long_ones) who.push_back(&s);
  who.push_back(&last);
  for (int i = 0; i < 4; ++i) e.run_step(who, 2, 2, select);
  e.settle();
  CHECK(out_of_balance(e.kv) == "");
  CHECK(e.kv.counts().misses > 0);
}

// 64 pages of 16 tokens, as frames of requests that are always whole, and as host pages behind hot rows. Request 3 is asked for while 1
// has everything: it is answered at once, and gets in as soon as 1 ends, whatever became of 2.
template <class P, class S>
void exact_fit(S const& space, pool limit) {
  bool const by_host = limit == pool::host_pages;
  engine<P, S> e{space,
                 {.frames = by_host ? 12 : 64,
                  .host_pages = by_host ? 64 : 200,
                  .requests = 4,
                  .max_batch = 4,
                  .max_tokens = 2048,
                  .hot_rows = by_host ? 16 : 0}};
  session first = e.start(1024, 10);
  auto const second = e.kv.admit(1025, 10);
  REQUIRE(!second);
  CHECK(second.error().pool == limit);
  CHECK(second.error().wanted == 65);
  CHECK(second.error().free == 64);
  CHECK_FALSE(second.error().ever);
  auto third = e.kv.admit(20, 10);
  REQUIRE(!third);
  CHECK(third.error().ever);
  CHECK(third.error().pool == limit);
  CHECK(third.error().wanted == 2);
  CHECK(third.error().free == 0);
  random_rows select{36};
  while (first.tokens < 1024)
    e.run_step({&first}, 4, static_cast<int>(std::min<std::int64_t>(4, 1024 - first.tokens)), select);
  e.settle();
  CHECK(e.kv.tokens(first.id) == 1024);
  e.kv.finish(first.id);
  session late = e.start(20, 10);
  e.run_step({&late}, 4, 4, select);
  CHECK_FALSE(e.kv.admit(1025));
  CHECK(out_of_balance(e.kv) == "");
  e.settle();
  // Before 1: 3 gets in, and 2 is refused for ever all the same.
  e.kv.finish(late.id);
  session early = e.start(20, 10);
  CHECK_FALSE(e.kv.admit(1025).error().ever);
  CHECK(e.kv.admit(1024).error().ever);
  e.run_step({&early}, 4, 4, select);
  e.settle();
}
TEST_CASE_TEMPLATE("O36: an exact fit is admitted, one token more is refused at once", S, EBB_SPACES) {
  SUBCASE("frames of whole requests") { exact_fit<whole>(make_space<S>(), pool::frames); }
  SUBCASE("host pages") { exact_fit<lending>(make_space<S>(), pool::host_pages); }
}

// Pages without a host copy (on_revoke), so that the copies wait for the two gated steps. The retry loop is two more steps and a second
// admission that is refused for want of frames.
TEST_CASE_TEMPLATE("O37: a revocation that waits for steps in flight is not made again", S, EBB_SPACES) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    // Nine pages a request, adopted and all in frames: 4 are the tail, 1 will be its hot rows, 4 are lent.
    engine<lazy, S> e{make_deferred_space<S>(seed),
                      {.frames = 45,
                       .host_pages = 200,
                       .requests = 7,
                       .max_batch = 6,
                       .max_tokens = 512,
                       .hot_rows = 16,
                       .steps_in_flight = 5}};
    std::vector<session> all;
    for (int i = 0; i < 5; ++i) {
      all.push_back(e.start(512));
      e.adopt(all.back(), *e.kv.collect(or_throw(e.kv.take(8))), 128);
    }
    std::vector<session*> who;
    for (session& s : all) who.push_back(&s);
    random_rows select{static_cast<std::uint32_t>(seed)};
    e.run_step(who, 1, 0, select);
    e.settle();
    REQUIRE(e.kv.pools().frames_free == 0);
    REQUIRE(e.kv.pools().frames_lent == 5 * (9 - 4 - 1));
    for (session const& s : all) REQUIRE(e.record(s).lent == 4);

    auto gate = e.space.close_gate(e.main);
    e.run_step(who, 1, 0, select);
    e.run_step(who, 1, 0, select);
    auto const id = e.kv.admit(32, 32);
    REQUIRE(id);
    CHECK_FALSE(e.kv.ready(*id));
    auto const check_two = [&] {
      CHECK(e.kv.pools().frames_revoking == 2);
      CHECK(e.kv.pools().frames_lent == 18);
      CHECK(e.kv.allocator().book().marked.size() == 2);
      CHECK(e.kv.pools().frames_wanted == 2);
      CHECK_FALSE(e.kv.ready(*id));
      CHECK(e.kv.counts().pages.preempted == 0);
      CHECK(out_of_balance(e.kv) == "");
    };
    check_two();
    CHECK_THROWS_WITH_AS(e.kv.begin_step(e.main, {{&*id, 1}}), doctest::Contains("begin_step: request"),
                         std::invalid_argument);
    for (int retry = 0; retry < 2; ++retry) {
      e.run_step(who, 1, 0, select);
      check_two();
    }
    gate.open();
    e.settle();
    e.kv.wait(e.kv.allocator().book().last);
    for (int i = 0; i < 3 && !e.kv.ready(*id); ++i) {
      e.run_step(who, 1, 0, select);
      e.settle();
      e.kv.wait(e.kv.allocator().book().last);
    }
    CHECK(e.kv.ready(*id));
    CHECK(e.kv.counts().pages.revoked == 2);
    CHECK(e.kv.pools().frames_wanted == 0);
    session late = e.name(*id, 32);
    e.import(late, 20);
    who.push_back(&late);
    e.run_step(who, 4, 1, select);
    e.settle();
    CHECK(e.kv.pools().frames_lent >= 18 - 2);  // less the frames that became hot rows of the two that gave
    CHECK(out_of_balance(e.kv) == "");
  }
}

// Room for three whole requests of 1,200 tokens; two run all the time, four more come at step 200 and end at 400. Four pages a step are
// handed back at most. A page move is a page backed up, restored, revoked or refilled; the bound is 2 a committed row.
TEST_CASE_TEMPLATE("O38: load that comes and goes neither starves nor thrashes", S, EBB_SPACES) {
  int const phase_steps = times<S>(200, 60);
  engine<lending, S> e{make_space<S>(),
                       {.frames = 3 * 75,
                        .host_pages = 6 * 88,
                        .requests = 8,
                        .max_batch = 6,
                        .max_tokens = 1400,
                        .hot_rows = 16,
                        .refill_bytes = 4 * 16 * 16}};
  random_rows select{38};
  std::vector<std::unique_ptr<session>> live;
  std::map<int, long long> revoked_at;  // of each slot, our step
  std::map<int, long long> seen;        // of each slot, the allocator's
  std::vector<std::int64_t> committed;
  std::int64_t rows = 0;
  auto const arrive = [&](int n) {
    for (int i = 0; i < n; ++i) live.push_back(std::make_unique<session>(e.start(1400, 600)));
  };
  auto const step_all = [&](long long now, int held) {
    std::vector<session*> who;
    for (auto const& s : live) who.push_back(s.get());
    step const s = e.begin(who);
    for (auto const& one : live) {
      request_record const& r = e.record(*one);
      auto const last = seen.emplace(one->id.slot, r.revoked_at);
      if (r.revoked_at > 0 && (last.second || r.revoked_at != last.first->second)) revoked_at[one->id.slot] = now;
      last.first->second = r.revoked_at;
      bool filling = false;
      for (page_record const& p : r.pages)
        filling |= p.at.frame != frame_id::none && !p.mapped && p.backed == 16 &&
                   e.kv.allocator().book().frames[p.at.frame].state == frame_state::filling;
      if (filling && revoked_at.count(one->id.slot) > 0) CHECK(now - revoked_at[one->id.slot] >= 10);
    }
    CHECK(e.kv.pools().frames_filling <= 8);  // of this step and the last
    if (held > 0) CHECK(e.kv.pools().frames_free + e.kv.pools().frames_revoking >= held);
    auto const b = e.make_buffers(s.padded, 1);
    e.fill(b, select);
    e.enqueue(s, b);
    e.end(s, std::vector<int>(who.size(), 1));
    rows += static_cast<std::int64_t>(who.size());
    committed.push_back(rows);
    REQUIRE(out_of_balance(e.kv) == "");
  };
  long long now = 0;
  arrive(2);
  for (int i = 0; i < phase_steps; ++i) step_all(now++, 0);
  arrive(4);
  for (int i = 0; i < phase_steps; ++i) step_all(now++, 0);
  // One waits while the load falls: its frames are not lent again.
  auto const waiting = e.kv.hold(1400);
  REQUIRE(waiting);
  int const need = e.kv.allocator().required(1400);
  for (int i = 0; i < 4; ++i) {
    e.kv.finish(live.back()->id);
    revoked_at.erase(live.back()->id.slot);
    seen.erase(live.back()->id.slot);
    live.pop_back();
  }
  for (int i = 0; i < phase_steps / 2; ++i) step_all(now++, need);
  std::uint64_t const revoked = e.kv.counts().pages.revoked;
  auto const late = e.kv.admit(1400, 600, *waiting);
  REQUIRE(late);
  CHECK(e.kv.ready(*late));
  CHECK(e.kv.counts().pages.revoked == revoked);
  e.kv.finish(*late);
  for (int i = 0; i < phase_steps / 2; ++i) step_all(now++, 0);
  e.settle();
  for (std::size_t from = 0; from + 100 < committed.size(); ++from) REQUIRE(committed[from + 100] > committed[from]);
  counters const c = e.kv.counts();
  std::uint64_t const moves = c.pages.revoked + c.pages.refilled + c.pages.restored + c.pages.backed_up;
  MESSAGE(moves << " page moves, " << rows << " committed rows, " << c.pages.revoked << " revoked, " << c.pages.refilled
                << " refilled");
  CHECK(moves < 2 * static_cast<std::uint64_t>(rows));
  CHECK(c.pages.revoked > 0);
  if (phase_steps == 200) CHECK(c.pages.refilled > 0);
  CHECK(c.lost == 0);
}

// The queue is the engine's: what the library gives are `hold` and answers that say whether waiting helps. 60 frames, 40 of them taken by
// requests of one page of which one ends in every step. The engine lets at most 4 pass, then holds room for the big one.
TEST_CASE_TEMPLATE("O45: a big request is passed by a few small ones, then gets its turn", S, EBB_SPACES) {
  engine<whole, S> e{make_space<S>(),
                     {.frames = 60, .host_pages = 200, .requests = 100, .max_batch = 100, .max_tokens = 640}};
  std::deque<request_id> running;
  for (int i = 0; i < 40; ++i) running.push_back(or_throw(e.kv.admit(16)));
  CHECK(e.kv.pools().frames - e.kv.pools().frames_promised == 20);
  std::deque<int> queue{640};
  for (int i = 0; i < 10; ++i) queue.push_back(16);
  hold_id hold = hold_id::none;
  int passed = 0;
  int admitted_at = -1;
  std::uint64_t refusals = 0;
  for (int now = 0; now < 60; ++now) {
    bool const big_waits = admitted_at < 0;
    if (big_waits) {
      auto const big = e.kv.admit(queue.front(), 0, hold);
      if (big) {
        admitted_at = now;
        hold = hold_id::none;
        queue.pop_front();
      } else {
        ++refusals;
        CHECK(big.error().ever);
        CHECK(big.error().pool == pool::frames);
        CHECK(big.error().wanted == 40);
        if (passed == 4 && hold == hold_id::none) hold = or_throw(e.kv.hold(640));
      }
    }
    if (admitted_at < 0 && hold != hold_id::none) {
      auto const small = e.kv.admit(16);  // tried all the same: the hold keeps it out
      REQUIRE(!small);
      ++refusals;
      CHECK(small.error().free == 0);
      CHECK(small.error().ever);
    }
    while (queue.size() > (admitted_at < 0 ? 1u : 0u) && (admitted_at >= 0 || (hold == hold_id::none && passed < 4))) {
      auto const small = e.kv.admit(16);
      if (!small) {
        ++refusals;
        break;
      }
      running.push_back(*small);
      passed += admitted_at < 0;
      queue.pop_back();
    }
    e.kv.finish(running.front());
    running.pop_front();
    queue.push_back(16);
    e.end(e.begin({}), {});
    CHECK(out_of_balance(e.kv) == "");
  }
  CHECK(passed == 4);
  CHECK(admitted_at > 0);
  CHECK(admitted_at <= 25);  // 16 frames were left, 24 requests had to end
  CHECK(e.kv.counts().pages.refused == refusals);
}

// The scenario's numbers: 64 MiB are 4,096 pages of 16 KiB.
TEST_CASE_TEMPLATE("O46: the host pool hands out all it has, whatever its pieces", S, EBB_SPACES) {
  engine<kilobyte_rows, S> e{
      make_space<S>(),
      {.frames = 40, .host_pages = 4096, .requests = 260, .max_batch = 4, .max_tokens = 65'536, .hot_rows = 16},
      std::size_t{80} << 20};
  CHECK(e.kv.pools().host_bytes == std::int64_t{64} << 20);
  CHECK(e.kv.pools().host_pages_free == 4096);
  random_rows select{46};
  session a = e.start(32'768);
  session b = e.start(32'768);
  e.kv.reserve_import(a.id, 32'768);
  e.kv.reserve_import(b.id, 32'768);
  CHECK(e.kv.pools().host_pages_free == 0);
  CHECK_FALSE(e.kv.admit(16));
  e.kv.abort(a.id);
  e.kv.abort(b.id);
  CHECK(e.kv.pools().host_pages_free == 4096);

  // Requests of 1 to 40 pages: each gets its pages at once. Required frames are few, so only short ones hold any; they wait for nothing.
  std::vector<request_id> live;
  std::map<int, int> pages_of;
  int held = 0;
  for (int i = 0; i < 1000; ++i) {
    int const pages = 1 + static_cast<int>(select.next() % 40);
    auto const id = live.size() < 200 && held + pages <= 4096 && select.next() % 3 != 0
                        ? e.kv.admit(pages * 16)
                        : outcome<request_id>{refused{shortage{}}};
    if (id && e.kv.ready(*id)) {
      e.kv.reserve_import(*id, pages * 16);
      live.push_back(*id);
      pages_of[id->slot] = pages;
      held += pages;
    } else if (!live.empty()) {
      std::size_t const which = select.next() % live.size();
      held -= pages_of[live[which].slot];
      e.kv.abort(live[which]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
    REQUIRE(e.kv.pools().host_pages_free == 4096 - held);
    if (i % 50 == 0) e.end(e.begin({}), {});
  }
  REQUIRE(live.size() >= 4);
  for (std::size_t i = 0; i < live.size(); i += 2) {
    held -= pages_of[live[i].slot];
    e.kv.abort(live[i]);
  }
  e.end(e.begin({}), {});
  int const half = (4096 - held) / 2;
  session big = e.start(std::int64_t{half} * 16 + 16, std::int64_t{half} * 16);
  CHECK(e.kv.pools().host_pages_free == 4096 - held - half);
  CHECK(out_of_balance(e.kv) == "");
  e.run_step({&big}, 4, 0, select);
  e.settle();
  // All the rest, too: no page is lost to runs.
  int const rest = e.kv.pools().host_pages_free;
  session last = e.start(std::int64_t{rest} * 16, std::int64_t{rest} * 16 - 16);
  CHECK(e.kv.pools().host_pages_free == 1);
  e.run_step({&big, &last}, 4, 0, select);
  e.settle();
  CHECK(e.kv.pools().host_pages_free == 0);
}

}  // namespace admission_test

// O17: every frame and every host page is in exactly one state, whatever happens.
#include <algorithm>

#include "scenario.hpp"

namespace balance_test {

using namespace ebb;
using namespace ebb::testing;

struct small_rows : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 4;
  static constexpr int top_k = 4;
  static constexpr int max_queries = 2;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
};
struct small_rows_each_step : small_rows {
  using backup = each_step;
  using keep = whole_requests;
};
struct small_rows_on_revoke : small_rows {
  using backup = on_revoke;
};

/// A few live requests and what was taken, driven by random calls.
template <policy P, class S>
struct random_calls {
  using space_type = gated_space<S>;
  engine<P, space_type> e;
  host::generator numbers;
  std::vector<session> live{};       ///< with history, running
  std::vector<session> importing{};  ///< their room reserved, copies under way or not
  std::vector<session> pending{};    ///< admitted or resumed, frames on their way
  std::vector<session> preempted{};
  std::vector<frame_id> taken{};
  std::vector<take_id> takes{};
  int nested = 0;  ///< allocations that revoked loans
  int kinds[9]{};

  random_calls(S const& space, std::uint64_t seed)
      : e{space_type{space},
          {.frames = 32,
           .host_pages = 64,
           .requests = 6,
           .max_batch = 4,
           .max_tokens = 64,
           .hot_rows = 8,
           .steps_in_flight = 2,
           .refill_bytes = 4 * 64},
          std::size_t{4} << 20},
        numbers{seed} {}

  bool chance(int of) { return numbers.below(of) == 0; }
  session pick(std::vector<session>& from) {
    std::size_t const i = static_cast<std::size_t>(numbers.below(static_cast<int>(from.size())));
    session const s = from[i];
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
    return s;
  }

  void call() {
    int const kind = numbers.below(9);
    auto const revoked = e.kv.counts().pages.revoked;
    auto const frames_before = e.kv.pools();
    if (kind == 0) {  // allocate: where nothing is free, loans are revoked inside
      std::int64_t const most = chance(4) ? 1 + numbers.below(20) : 40 + numbers.below(25);
      std::int64_t const tokens = numbers.below(static_cast<int>(most));
      if (auto const id = e.kv.admit(most, tokens)) pending.push_back(e.name(*id, most));
    } else if (kind == 1) {  // demote
      if (auto const id = e.kv.take(1 + numbers.below(8))) takes.push_back(*id);
    } else if (kind == 2 && !taken.empty()) {
      e.kv.give(e.main, taken);
      taken.clear();
    } else if (kind == 3 && !live.empty()) {  // free
      e.kv.finish(pick(live).id);
    } else if (kind == 4 && !live.empty()) {
      session const s = pick(live);
      e.kv.preempt(s.id);
      preempted.push_back(s);
    } else if (kind == 5 && !preempted.empty()) {  // promote
      session const s = pick(preempted);
      (e.kv.resume(s.id) ? pending : preempted).push_back(s);
    } else if (kind == 6 && !live.empty()) {
      session s = pick(live);
      e.truncate(s, numbers.below(static_cast<int>(s.tokens) + 1));
      live.push_back(s);
    } else if (kind == 7) {  // abort, in any state
      for (auto* list : {&importing, &pending, &preempted}) {
        if (list->empty() || !chance(3)) continue;
        e.kv.abort(pick(*list).id);
        break;
      }
    } else {
      step_();
    }
    bool const allocates = kind < 2 || kind == 5;
    nested += allocates && frames_before.frames_free == 0 && e.kv.counts().pages.revoked > revoked;
    ++kinds[kind];
    proceed();
  }
  /// A step of some requests, with promotion by refill; begin_step lets pending calls go on.
  void step_() {
    std::vector<session*> who;
    for (session& s : live) {
      if (s.tokens < s.tokens_max && who.size() < 4 && !chance(4)) who.push_back(&s);
    }
    int const queries = 1 + numbers.below(2);
    std::vector<int> accepted;
    for (session const* s : who)
      accepted.push_back(
          static_cast<int>(std::min<std::int64_t>(numbers.below(queries + 1), s->tokens_max - s->tokens)));
    e.run_step(who, queries, accepted, random_rows{static_cast<std::uint32_t>(numbers.next())});
  }
  /// What waits for something that is there now.
  void proceed() {
    for (std::size_t i = 0; i < pending.size();) {
      if (!e.kv.ready(pending[i].id)) {
        ++i;
        continue;
      }
      session s = pending[i];
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
      std::int64_t const room = std::min<std::int64_t>(s.tokens_max, s.tokens + numbers.below(64));
      if (room > s.tokens) {
        e.kv.reserve_import(s.id, room);
        e.import_source(s, 0, room);
        importing.push_back(s);
      } else {
        live.push_back(s);
      }
    }
    for (std::size_t i = 0; i < importing.size();) {
      if (chance(2)) {
        ++i;
        continue;
      }
      session s = importing[i];
      importing.erase(importing.begin() + static_cast<std::ptrdiff_t>(i));
      std::int64_t const room = e.record(s).reserved;
      e.kv.publish(s.id, room);
      s.tokens = room;
      live.push_back(s);
    }
    for (std::size_t i = 0; i < takes.size();) {
      auto const frames = e.kv.collect(takes[i]);
      if (!frames) {
        ++i;
        continue;
      }
      taken.insert(taken.end(), frames->begin(), frames->end());
      takes.erase(takes.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  /// The engine's memory is used again, which imports that nobody waits for may still read.
  void settle() {
    e.space.finish_side();
    e.settle();
  }
  /// Ends everything; the pools are as they were.
  void end() {
    for (auto* list : {&live, &importing, &pending, &preempted}) {
      for (session const& s : *list) e.kv.finish(s.id);
      list->clear();
    }
    for (int i = 0; i < 3; ++i) {
      finish(e.space, e.main);
      e.space.finish_side();
      step_();
      proceed();
    }
    CHECK(takes.empty());
    if (!taken.empty()) e.kv.give(e.main, taken);
    taken.clear();
    finish(e.space, e.main);
    e.space.finish_side();
    step_();
    e.settle();
    gauges const g = e.kv.pools();
    CHECK(g.frames_free == g.frames);
    CHECK(g.host_pages_free == g.host_pages);
    CHECK(g.frames_promised == 0);
    CHECK(g.frames_wanted == 0);
    CHECK(g.running + g.waiting + g.preempted == 0);
  }
};

template <policy P, class S>
void check_balance_over(S const& space, std::uint64_t seed, int calls) {
  CAPTURE(seed);
  random_calls<P, S> r{space, seed};
  std::string off;
  int at = 0;
  for (; at < calls && off.empty(); ++at) {
    r.call();
    off = out_of_balance(r.e.kv);
    if (at % 64 == 63) r.settle();
  }
  CAPTURE(at);
  CHECK(off == "");
  CHECK(r.nested > 0);
  CHECK(*std::min_element(r.kinds, r.kinds + 9) > 0);
  CHECK(r.e.kv.counts().pages.refilled > 0);
  CHECK(r.e.kv.counts().lost == 0);
  r.end();
  CHECK(out_of_balance(r.e.kv) == "");
}

// 32 frames and 64 host pages. Demotion is revocation by take or admission, promotion is resumption and refill.
TEST_CASE_TEMPLATE("O17: after each of 10,000 random calls every page is in exactly one state, and the states add up",
                   S, EBB_SPACES) {
  int const calls = lanes_are_threads<S> ? 1'000 : 10'000;
  check_balance_over<small_rows>(make_space<S>(), 17, calls);
  check_balance_over<small_rows_each_step>(make_space<S>(), 18, calls);
  check_balance_over<small_rows_on_revoke>(make_space<S>(), 19, calls);
}

#if !defined(__CUDACC__)
TEST_CASE_TEMPLATE("O17: the states add up in whatever order the streams advance", S, EBB_SPACES) {
  int const calls = lanes_are_threads<S> ? 800 : 3'000;
  for (std::uint64_t seed = 20; seed < 24; ++seed)
    check_balance_over<small_rows>(make_deferred_space<S>(seed), seed, calls);
}
#endif

}  // namespace balance_test

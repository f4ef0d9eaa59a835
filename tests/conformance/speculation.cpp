// O05, O13 and O24 to O31 with several queries of a request: ragged batches, plans for later sources, announced candidates, acceptance that
// only the device knows.
#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "scenario.hpp"

namespace speculation_test {

using namespace ebb;
using namespace ebb::testing;

using host_only = tier_list<hot_rows<lru>, staging_rows, host_pages>;

/// Two tables: groups 0 and 2 share the sources 0 and 1, group 1 has source 2, of ratio 2.
struct ragged : policy_defaults {
  static constexpr row_segments row{20, 4};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 3;
  static constexpr std::array<layer_binding, 5> layers{{{0, 0}, {0, 1}, {1, 2}, {2, 0}, {2, 1}}};
  static constexpr std::array<int, 3> ratios{1, 1, 2};
  static constexpr int candidate_pool = 48;
};
struct ragged_packed : ragged {
  using metadata = flashinfer_packed;
  using keep = most_selected;
};
struct ragged_flashmla : ragged {
  using metadata = flashmla;
};

std::vector<session*> pointers(std::vector<session>& all) {
  std::vector<session*> who;
  for (session& s : all) who.push_back(&s);
  return who;
}
int sum(std::vector<int> const& counts) {
  int n = 0;
  for (int c : counts) n += c;
  return n;
}
/// 1 to `most` queries for each of `n` requests, no more than `all` together.
std::vector<int> random_counts(random_rows& select, int n, int most, int all = 1 << 20) {
  std::vector<int> counts;
  int left = all - n;
  for (int i = 0; i < n; ++i) {
    int const more = std::min(left, static_cast<int>(select.next() % static_cast<std::uint32_t>(most)));
    counts.push_back(1 + more);
    left -= more;
  }
  return counts;
}
/// A number of 0 to each count.
std::vector<int> random_share(random_rows& select, std::vector<int> const& counts) {
  std::vector<int> out;
  for (int c : counts) out.push_back(static_cast<int>(select.next() % static_cast<std::uint32_t>(c + 1)));
  return out;
}
/// Where each request's rows begin, as an engine would write it.
void write_offsets(std::int32_t* offsets, std::vector<int> const& counts, int padded) {
  offsets[0] = 0;
  for (int i = 0; i < padded; ++i)
    offsets[i + 1] = offsets[i] + (i < static_cast<int>(counts.size()) ? counts[static_cast<std::size_t>(i)] : 0);
}

// ---- O28 -----------------------------------------------------------------------------------------------------------------------------

/// S = 8 and K = 6, two sources.
struct eight_slots : policy_defaults {
  static constexpr row_segments row{24, 8};
  static constexpr int page_tokens = 8;
  static constexpr int top_k = 6;
  static constexpr int max_queries = 3;
  static constexpr std::array<layer_binding, 2> layers{{{0, 0}, {0, 1}}};
  static constexpr std::array<int, 2> ratios{1, 1};
  using tiers = host_only;
};

// "18 rows where the last query repeats the first" are 12 different ones with Q = 3 and K = 6.
TEST_CASE_TEMPLATE("O28: what several queries want is fetched once, and no slot is given to two rows of a step", S,
                   EBB_SPACES) {
  for (bool const uniform : {true, false}) {
    CAPTURE(uniform);
    engine<eight_slots, S> e{
        make_space<S>(),
        {.frames = 12, .host_pages = 60, .requests = 3, .max_batch = 3, .max_tokens = 160, .hot_rows = 8}};
    std::vector<session> all;
    for (int i = 0; i < 3; ++i) all.push_back(e.start(160, 100));
    auto const who = pointers(all);
    std::vector<int> const counts = uniform ? std::vector{3, 3, 3} : std::vector{3, 1, 2};
    for (int shape = 0; shape < 3; ++shape) {
      CAPTURE(shape);
      std::set<std::pair<std::uint32_t, int>> wanted;
      std::uint64_t const before = e.kv.counts().fetched_rows;
      step const s = uniform ? e.begin(who, 3) : e.begin_ragged(who, counts);
      auto const b = e.make_buffers(3, 3, sum(counts));
      e.fill(b, [&](session const& of, int, int j, int c, std::int64_t) -> std::int64_t {
        int const row = shape * 18 + c + (shape == 0 ? 6 * j : shape == 1 ? 0 : 6 * (j % 2));
        wanted.insert({of.key, row});
        return row;
      });
      e.enqueue(s, b);
      CHECK(misplaced(e, who, b) == "");
      std::vector<std::set<std::int32_t>> hot(3);
      for (int at = 0; at < b.all * 6; ++at) {
        std::int32_t const a = b.out[0][0].rows[at];
        REQUIRE(a >= 0);
        if (!e.kv.view(source_id{0}).is_staged(a)) hot[static_cast<std::size_t>(e.query_of(at / 6).first)].insert(a);
      }
      for (auto const& slots : hot) CHECK(slots.size() <= 8);
      e.end(s, std::vector<int>(3, 1));
      e.settle();
      CHECK(wanted.size() == std::size_t(uniform ? (shape == 0   ? 54
                                                    : shape == 1 ? 18
                                                                 : 36)
                                                 : (shape == 0   ? 36
                                                    : shape == 1 ? 18
                                                                 : 30)));
      CHECK(e.kv.counts().fetched_rows - before == 2 * wanted.size());
      CHECK(e.kv.counts().lost == 0);
    }
  }
}

/// The most that a request may select: 16,384 rows, a quarter of them in hot rows.
struct widest : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 2048;
  static constexpr int max_queries = 8;
  static constexpr std::array<layer_binding, 1> layers{{{0, 0}}};
  static constexpr std::array<int, 1> ratios{1};
  using tiers = host_only;
};
TEST_CASE_TEMPLATE("O28: 8 queries of 2,048 rows each", S, EBB_SPACES) {
  engine<widest, S> e{
      make_space<S>(),
      {.frames = 70, .host_pages = 320, .requests = 1, .max_batch = 1, .max_tokens = 20'000, .hot_rows = 4096}};
  session a = e.start(20'000, 19'000);
  for (bool const disjoint : {true, false}) {
    CAPTURE(disjoint);
    std::uint64_t const before = e.kv.counts().fetched_rows;
    step const s = e.begin({&a}, 8);
    auto const b = e.make_buffers(1, 8);
    e.fill(b, [&](session const&, int, int j, int c, std::int64_t) -> std::int64_t {
      return disjoint ? c * 8 + j : 16'384 + c;
    });
    e.enqueue(s, b);
    CHECK(misplaced(e, {&a}, b) == "");
    e.end(s, {1});
    e.settle();
    CHECK(e.kv.counts().fetched_rows - before == (disjoint ? 16'384 : 2048));
  }
  CHECK(e.kv.counts().lost == 0);
}

// ---- O30 -----------------------------------------------------------------------------------------------------------------------------

struct eight_queries : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 2;
  static constexpr int max_queries = 8;
  static constexpr std::array<layer_binding, 2> layers{{{0, 0}, {1, 1}}};
  static constexpr std::array<int, 2> ratios{1, 2};
};

// Lengths lie 10 apart, so that a bound names its request and query. The scenario's 2,000 repeats of a shape are a GPU's; on the host,
// where a team of one has no races, they are fewer. Half of the shapes are captured wider than their queries.
TEST_CASE_TEMPLATE("O30: rows of a ragged batch belong to the requests and queries that the counts say", S,
                   EBB_SPACES) {
  constexpr int n = 64;
  S const space = make_space<S>();
  engine<eight_queries, S> e{
      space, {.frames = 300, .host_pages = 2900, .requests = n, .max_batch = n, .max_tokens = 704, .hot_rows = 16}};
  std::vector<session> all;
  for (int i = 0; i < n; ++i) all.push_back(e.start(704, 10 * i + 3));
  shared_array<std::int32_t> offsets{space, n + 1};
  random_rows select{30};
  auto const run = [&](int form, bool wide, bool device) {
    int const requests = form == 3 ? 40 : n;
    std::vector<session*> who = pointers(all);
    for (std::size_t i = who.size(); i-- > 1;) std::swap(who[i], who[select.next() % i]);
    who.resize(static_cast<std::size_t>(requests));
    std::vector<int> counts = random_counts(select, requests, 8);
    if (form == 1 || form == 2) counts.assign(counts.size(), 1 + static_cast<int>(select.next() % 8));
    if (form == 2) counts.back() = counts.back() % 8 + 1;
    int const rows = wide ? 8 * n : sum(counts);
    write_offsets(offsets.data(), counts, n);
    step const s = e.begin_ragged(who, counts, n, rows, device ? offsets.data() : nullptr);
    auto const b = e.make_buffers(n, 8, rows);
    e.fill(b, select);
    e.enqueue(s, b);
    finish(space, e.main);
    std::vector<std::int32_t> bounds(static_cast<std::size_t>(rows));
    std::vector<std::int32_t> writes[2]{bounds, bounds};
    space.peek(bounds.data(), e.kv.bounds(), bounds.size() * 4);
    for (int source = 0; source < 2; ++source)
      space.peek(writes[source].data(), e.kv.write_addresses(source_id{source}), bounds.size() * 4);
    int wrong = 0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < who.size(); ++i) {
      for (int j = 0; j < counts[i]; ++j, ++at) {
        int const token = static_cast<int>(who[i]->tokens) + j;
        wrong += bounds[at] != token + 1;
        int const frame = index(e.page(*who[i], token / 16).at.frame);
        wrong += writes[0][at] != frame * 16 + token % 16;
        wrong += writes[1][at] != (token % 2 == 1 ? frame * 8 + token % 16 / 2 : -1);
      }
    }
    for (; at < bounds.size(); ++at) wrong += bounds[at] != 0 || writes[0][at] != -1 || writes[1][at] != -1;
    CHECK(wrong == 0);
    e.end(s, std::vector<int>(who.size(), 0));
    e.settle();
  };
  for (int form = 0; form < 4; ++form) {
    for (bool const device : {false, true}) {
      CAPTURE(form);
      CAPTURE(device);
      for (int i = 0; i < times<S>(200, 8, 2000); ++i) run(form, i % 2 == 0, device);
    }
  }
  CHECK(e.kv.counts().misses > 0);
  CHECK(e.kv.counts().lost == 0);
}

// ---- O29 -----------------------------------------------------------------------------------------------------------------------------

/// Groups 0 and 1 share a set of four sources, group 2 has a fifth.
struct followers : policy_defaults {
  static constexpr row_segments row{20, 4};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 3;
  static constexpr std::array<layer_binding, 9> layers{
      {{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 0}, {1, 1}, {1, 2}, {1, 3}, {2, 4}}};
  static constexpr std::array<int, 5> ratios{1, 1, 1, 1, 1};
  using tiers = host_only;
};

// Drafts have a store of their own (drafting.cpp).
TEST_CASE_TEMPLATE("O29: a layer is given its leader's addresses of this step or none", S, EBB_SPACES) {
  engine<followers, S> e{
      make_space<S>(),
      {.frames = 20, .host_pages = 60, .requests = 2, .max_batch = 2, .max_tokens = 400, .hot_rows = 16}};
  session a = e.start(400, 200);
  random_rows select{29};
  e.run_step({&a}, 3, 1, select);
  e.settle();
  step s = e.begin({&a}, 3);
  auto const b = e.make_buffers(1, 3);
  auto const refused = [&](int g, int k, int source, char const* why) {
    CAPTURE(g);
    CAPTURE(k);
    CAPTURE(source);
    CHECK_THROWS_WITH_AS(e.kv.replay(e.main, s, group_id{g}, source_id{source},
                                     b.out[static_cast<std::size_t>(g)][static_cast<std::size_t>(k)]),
                         doctest::Contains(why), std::invalid_argument);
  };
  auto const untouched = [&] {
    finish(e.space, e.main);
    for (std::size_t g = 0; g < 2; ++g) {
      for (std::size_t k = 1; k < 4; ++k) {
        for (int i = 0; i < 3 * 8; ++i) REQUIRE(b.out[g][k].rows[i] == 123456);
      }
    }
  };
  e.fill(b, select);
  refused(0, 2, 2, "replay: group");
  e.write(s, b);
  refused(0, 2, 2, "replay: group");
  e.resolve(s, b, 1);
  e.check(b, 1, 0);
  refused(0, 2, 2, "replay: group");   // shares the set, has a selection of its own
  refused(1, 2, 4, "replay: source");  // another set's
  untouched();
  e.replay(s, b, 1, 2);
  e.check(b, 1, 2);
  refused(1, 1, 1, "replay: source");  // out of order
  refused(1, 1, 0, "replay: source");
  e.replay(s, b, 1, 2);
  e.check(b, 1, 2);
  e.replay(s, b, 1, 3);
  e.check(b, 1, 3);
  e.resolve(s, b, 2);
  e.check(b, 2, 0);
  refused(1, 1, 3, "replay: group");  // resolved in this step, not last
  refused(0, 1, 1, "replay: group");
  e.resolve(s, b, 0);
  e.check(b, 0, 0);
  for (int k = 1; k < 4; ++k) {
    e.replay(s, b, 0, k);
    e.check(b, 0, k);
  }
  e.kv.join(e.main, s);
  refused(0, 1, 3, "replay: group");
  step const old = s;
  e.end(s, {2});
  e.settle();
  refused(0, 1, 3, "step");
  // The next step never gives the addresses of the one before, resolved there or not.
  for (std::size_t g = 0; g < 2; ++g)
    for (std::size_t k = 1; k < 4; ++k) std::fill_n(b.out[g][k].rows, 3 * 8, 123456);
  s = e.begin({&a}, 3);
  e.fill(b, select);
  refused(0, 1, 1, "replay: group");
  e.write(s, b);
  refused(0, 1, 1, "replay: group");
  CHECK_THROWS_WITH_AS(e.kv.replay(e.main, old, group_id{0}, source_id{1}, b.out[0][1]), doctest::Contains("step"),
                       std::invalid_argument);
  untouched();
  e.end(s, {1});
  e.run_step({&a}, 3, 1, select);
  e.settle();
  CHECK(e.kv.counts().lost == 0);
}

// Group 0 is replayed for the first sources of its set only. Group 1 selects the same rows, in the same step or the next, for all.
TEST_CASE_TEMPLATE("O29: a plan that is not replayed leaves no wrong hit behind", S, EBB_SPACES) {
  for (int seed = 0; seed < times<S>(24, 8, 24); ++seed) {
    for (int replayed = 1; replayed <= 4; ++replayed) {
      CAPTURE(seed);
      CAPTURE(replayed);
      engine<followers, S> e{
          make_deferred_space<S>(static_cast<std::uint64_t>(seed)),
          {.frames = 22, .host_pages = 60, .requests = 2, .max_batch = 2, .max_tokens = 400, .hot_rows = 64}};
      std::vector<session> all{e.start(400, 300), e.start(400, 260)};
      random_rows select{static_cast<std::uint32_t>(seed)};
      for (int i = 0; i < 8; ++i) {
        std::vector<int> const counts = random_counts(select, 2, 3);
        step const s = e.begin_ragged(pointers(all), counts);
        auto b = e.make_buffers(2, 3, sum(counts));
        b.replayed = {replayed, 4, 1};
        int const lag = i % 2 == 0 ? 0 : 1;
        e.fill(b, [&](session const&, int g, int j, int c, std::int64_t) -> std::int64_t {
          int const window = i + 1 - (g == 1 ? lag : 0);
          return (window * 24 + j * 8 + c) % 200;
        });
        e.enqueue(s, b);
        e.end(s, random_share(select, counts));
      }
      e.settle();
      CHECK(e.kv.counts().hot_hits > 0);
      CHECK(e.kv.counts().lost == 0);
    }
  }
}

// ---- O31 -----------------------------------------------------------------------------------------------------------------------------

template <class Body>
inline constexpr bool plans_ahead = false;
template <policy P>
inline constexpr bool plans_ahead<prefetch_body<P>> = true;

/// A space that holds the stream of a prefetch right behind its planning, when told to.
template <class S>
class held_space : public S {
  using gate = decltype(std::declval<S const&>().close_gate(std::declval<typename S::stream const&>()));

 public:
  explicit held_space(S const& of) : S{of} {}

  template <class Body>
  void run(typename S::stream on, int items, Body const& body) const {
    S::run(on, items, body);
    if constexpr (plans_ahead<Body>) {
      if (state_->armed) state_->copies.emplace(S::close_gate(on, "copies"));
      state_->armed = false;
    }
  }
  void hold_next() const { state_->armed = true; }
  void open() const {
    state_->copies->open();
    state_->copies.reset();
  }

 private:
  struct state {
    bool armed = false;
    std::optional<gate> copies;
  };
  std::shared_ptr<state> state_ = std::make_shared<state>();
};

/// Two groups share the table of two sources.
struct pooled : policy_defaults {
  static constexpr row_segments row{20, 4};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 64;
  static constexpr int max_queries = 3;
  static constexpr std::array<layer_binding, 4> layers{{{0, 0}, {0, 1}, {1, 0}, {1, 1}}};
  static constexpr std::array<int, 2> ratios{1, 1};
  static constexpr int candidate_pool = 4096;
  using tiers = host_only;
};

TEST_CASE_TEMPLATE("O31: candidates are there once their copies are done, not before they are planned", S, EBB_SPACES) {
  held_space<S> const space{make_space<S>()};
  engine<pooled, held_space<S>> e{
      space, {.frames = 140, .host_pages = 160, .requests = 1, .max_batch = 1, .max_tokens = 10'000, .hot_rows = 8192}};
  session a = e.start(10'000, 9000);
  constexpr int pool = 4096, absent = 300;
  auto* const positions = e.template take<std::int32_t>(pool);
  e.keep_buffers();
  // 3,796 of them are brought in first.
  for (int i = 0; i < pool; ++i) positions[i * 7 % pool] = i < pool - absent ? 2 * i : -1;
  auto const none = [](session const&, int, int, int, std::int64_t) { return std::int64_t{-1}; };
  auto const announced = [&](step const& s) { e.kv.prefetch(e.main, s, group_id{0}, {positions, pool}); };
  CHECK(e.kv.prefetched(group_id{0}));  // there was none
  step s = e.begin({&a}, 3);
  auto b = e.make_buffers(1, 3);
  e.fill(b, none);
  e.write(s, b);
  announced(s);
  e.end(s, {1});
  e.settle();
  CHECK(e.kv.prefetched(group_id{0}));
  counters before = e.kv.counts();
  CHECK(before.prefetched_rows == 2 * (pool - absent));
  CHECK(before.prefetch_dropped == 0);

  for (int i = pool - absent; i < pool; ++i) positions[i * 7 % pool] = 2 * (i - (pool - absent)) + 1;
  s = e.begin({&a}, 3);
  b = e.make_buffers(1, 3);
  e.fill(b, [](session const&, int g, int j, int c, std::int64_t) -> std::int64_t {
    return g == 0 ? 2 * ((j * 64 + c) * 5 % absent) + 1 : 2 * (j * 64 + c);
  });
  e.write(s, b);
  finish(space, e.main);
  {
    auto main = space.close_gate(e.main, "main");
    space.hold_next();
    announced(s);
    CHECK_FALSE(e.kv.prefetched(group_id{0}));
    CHECK_FALSE(e.kv.prefetched(group_id{1}));  // of the same table
    CHECK(e.kv.counts().prefetched_rows == before.prefetched_rows);
    main.open();
  }
  for (int i = 0; i < 1'000'000 && e.kv.counts().prefetched_rows == before.prefetched_rows; ++i) {
  }
  CHECK(e.kv.counts().prefetched_rows - before.prefetched_rows == 2 * absent);
  CHECK_FALSE(e.kv.prefetched(group_id{0}));  // planned, and its copies are held
  e.resolve(s, b, 0);                         // asks early: waits on the device
  e.check(b, 0, 0);
  auto const resolved = space.record(e.main);
  CHECK_FALSE(space.reached(resolved));
  for (int i = 0; i < 3 * 64; ++i) REQUIRE(b.out[0][0].rows[i] == 123456);
  CHECK_FALSE(e.kv.prefetched(group_id{0}));
  space.open();
  finish(space, e.main);
  CHECK(e.kv.prefetched(group_id{0}));
  e.replay(s, b, 0, 1);
  e.check(b, 0, 1);
  e.resolve(s, b, 1);
  e.check(b, 1, 0);
  e.replay(s, b, 1, 1);
  e.check(b, 1, 1);
  e.end(s, {1});
  e.settle();
  counters after = e.kv.counts();
  CHECK(after.fetched_rows == before.fetched_rows);
  CHECK(after.hot_hits - before.hot_hits == 2 * 3 * 64);
  CHECK(after.prefetch_dropped == 0);

  // Nothing missing; nothing named; nothing that may be selected. Each completes, held or not.
  for (int form = 0; form < 3; ++form) {
    CAPTURE(form);
    for (int i = 0; i < pool && form > 0; ++i) positions[i] = form == 1 ? -1 : i % 2 == 0 ? 9100 + i : -2 - i;
    s = e.begin({&a}, 3);
    b = e.make_buffers(1, 3);
    e.fill(b, random_rows{static_cast<std::uint32_t>(form)});
    finish(space, e.main);
    auto main = space.close_gate(e.main, "main");
    e.write(s, b);
    announced(s);
    CHECK_FALSE(e.kv.prefetched(group_id{0}));
    e.resolve(s, b, 0);
    e.check(b, 0, 0);
    main.open();
    finish(space, e.main);
    CHECK(e.kv.prefetched(group_id{0}));
    e.end(s, {1});
    e.settle();
    CHECK(e.kv.counts().prefetched_rows == after.prefetched_rows);
    CHECK(e.kv.counts().prefetch_dropped == 0);
  }
  CHECK(e.kv.counts().lost == 0);
}

/// 64 hot rows at most, pools of up to 256.
struct crowded : pooled {
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr int candidate_pool = 256;
};
/// The same, and a third group with a table of its own, and loans.
struct crowded_lent : crowded {
  static constexpr std::array<layer_binding, 5> layers{{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 2}}};
  static constexpr std::array<int, 3> ratios{1, 1, 2};
  using tiers = policy_defaults::tiers;
};

// What is missing is copied or dropped, and counted as one of the two.
TEST_CASE_TEMPLATE("O31: pools wider than the hot rows, or than a prefetch may copy, and pools of several queries", S,
                   EBB_SPACES) {
  for (int const most : {-1, 20}) {
    for (bool const per_query : {false, true}) {
      CAPTURE(most);
      CAPTURE(per_query);
      engine<crowded, S> e{make_space<S>(),
                           {.frames = 30,
                            .host_pages = 120,
                            .requests = 3,
                            .max_batch = 3,
                            .max_tokens = 600,
                            .hot_rows = 32,
                            .prefetch_rows = most}};
      std::vector<session> all{e.start(600, 500), e.start(600, 480), e.start(600, 490)};
      std::vector<int> const counts{3, 1, 2};
      for (int const size : {6, 64, 256}) {
        CAPTURE(size);
        counters const before = e.kv.counts();
        step const s = e.begin_ragged(pointers(all), counts, 3, 8);
        auto b = e.make_buffers(3, 3, 8);
        int const lists = per_query ? 8 : 3;
        auto* const positions = e.template take<std::int32_t>(static_cast<std::size_t>(lists * size));
        // Windows of the queries overlap by half; each size has rows of its own. Rows of padding name rows, too.
        std::set<std::pair<int, int>> wanted;
        int const first = size == 6 ? 0 : size == 64 ? 20 : 150;
        for (int list = 0; list < lists; ++list) {
          int const i = per_query ? e.query_of(list).first : list;
          int const j = per_query ? e.query_of(list).second : 0;
          for (int c = 0; c < size; ++c) {
            int const row = size == 256 ? first + c : first + j * size / 2 + c;
            positions[list * size + c] = row;
            if (i >= 0) wanted.insert({i, row});
          }
        }
        b.pools.assign(2, {});
        b.pools[0] = {positions, size, per_query};
        e.fill(b, [&](session const&, int, int j, int c, std::int64_t) -> std::int64_t {
          return first + j * size / 2 + c;
        });
        e.enqueue(s, b);
        CHECK(misplaced(e, pointers(all), b) == "");
        e.end(s, {1, 0, 2});
        e.settle();
        counters const after = e.kv.counts();
        std::uint64_t const copied = (after.prefetched_rows - before.prefetched_rows) / 2;
        std::uint64_t const dropped = after.prefetch_dropped - before.prefetch_dropped;
        CAPTURE(copied);
        CAPTURE(dropped);
        if (per_query) {
          CHECK(copied <= wanted.size());
          CHECK(copied + dropped >= wanted.size());  // a row that two queries miss may be dropped twice
        } else {
          CHECK(copied + dropped == wanted.size());
        }
        if (size == 6 && most < 0) CHECK(copied == wanted.size());
        if (size == 6 && most < 0) CHECK(dropped == 0);
        if (size > 6) CHECK(copied <= 3u * (most < 0 ? 32u : 20u));
        if (size > 6) CHECK(copied >= 3u * 16u);
      }
      CHECK(e.kv.counts().lost == 0);
    }
  }
}

// Group 1's pool is announced right behind group 0's resolve, and copied before anybody reads what that gave out.
TEST_CASE_TEMPLATE("O31: a prefetch evicts nothing that its step's resolves gave out", S, EBB_SPACES) {
  for (int seed = 0; seed < times<S>(40, 10, 40); ++seed) {
    CAPTURE(seed);
    engine<crowded, S> e{
        make_deferred_space<S>(static_cast<std::uint64_t>(seed)),
        {.frames = 24, .host_pages = 120, .requests = 2, .max_batch = 2, .max_tokens = 600, .hot_rows = 32}};
    std::vector<session> all{e.start(600, 500), e.start(600, 450)};
    random_rows select{static_cast<std::uint32_t>(seed)};
    for (int i = 0; i < 6; ++i) {
      std::vector<int> const counts = random_counts(select, 2, 3);
      step const s = e.begin_ragged(pointers(all), counts);
      auto b = e.make_buffers(2, 3, sum(counts));
      auto* const positions = e.template take<std::int32_t>(2 * 256);
      for (int k = 0; k < 2 * 256; ++k) positions[k] = static_cast<std::int32_t>(select.next() % 400);
      b.pools.assign(2, {positions, 256});
      e.fill(b, [&](session const&, int, int, int c, std::int64_t rows) -> std::int64_t {
        return c == 0 ? rows - 1 : static_cast<std::int64_t>(select.next() % 400);
      });
      e.write(s, b);
      if (i % 2 == 1) e.announce(s, b, 0);
      e.resolve(s, b, 0);
      e.replay(s, b, 0, 1);
      e.announce(s, b, 1);
      e.kv.join(e.main, s);
      e.check(b, 0, 0);
      e.check(b, 0, 1);
      e.resolve(s, b, 1);
      e.check(b, 1, 0);
      e.replay(s, b, 1, 1);
      e.check(b, 1, 1);
      e.end(s, random_share(select, counts));
    }
    e.settle();
    CHECK(e.kv.counts().prefetched_rows > 0);
    CHECK(e.kv.counts().prefetch_dropped > 0);
    CHECK(e.kv.counts().hot_hits > 0);
    CHECK(e.kv.counts().lost == 0);
  }
}

/// Announces for every group what it is about to select, more or less: `fill` with `selects`.
template <class Engine>
struct announced_rows {
  random_rows& select;
  int size;
  std::vector<std::int32_t*> positions;  ///< of each group, [padded][size]

  announced_rows(Engine& e, random_rows& from, int padded, int wanted) : select{from}, size{wanted} {
    for (int g = 0; g < e.kv.local().groups(); ++g)
      positions.push_back(e.template take<std::int32_t>(static_cast<std::size_t>(padded * size)));
  }
  void put_into(typename Engine::buffers& b) const {
    for (std::int32_t* p : positions) b.pools.push_back({p, size});
  }
  /// Pools for a step's requests: rows anywhere, stale ones behind them.
  void announce(Engine const& e, std::vector<session*> const& who, int padded) const {
    for (std::size_t g = 0; g < positions.size(); ++g) {
      int const r = e.kv.local().ratio_of_set(e.kv.local().set_of_group(static_cast<int>(g)));
      for (int i = 0; i < padded; ++i) {
        std::int64_t const rows = i < static_cast<int>(who.size()) ? who[static_cast<std::size_t>(i)]->tokens / r : 0;
        for (int c = 0; c < size; ++c) {
          std::uint32_t const what = select.next() % 16;
          positions[g][i * size + c] = rows > 0 && what > 1
                                           ? static_cast<std::int32_t>(select.next() % static_cast<std::uint32_t>(rows))
                                       : what == 0 ? -1
                                                   : 1'000'000 + c;
        }
      }
    }
  }
  /// A selection of mostly announced rows. Requires: `who` as announced.
  auto selects(std::vector<session*> const& who) const {
    return [this, who](session const& s, int g, int, int c, std::int64_t rows) -> std::int64_t {
      auto const i = std::find(who.begin(), who.end(), &s) - who.begin();
      if (c == 0 || select.next() % 4 == 0) return select(s, g, 0, c, rows);
      return positions[static_cast<std::size_t>(g)]
                      [i * size + static_cast<int>(select.next() % static_cast<std::uint32_t>(size))];
    };
  }
};

TEST_CASE_TEMPLATE("O31: a resolve never reads a candidate early, in whatever order the streams advance", S,
                   EBB_SPACES) {
  for (int seed = 0; seed < times<S>(60, 12, 40); ++seed) {
    CAPTURE(seed);
    using E = engine<crowded_lent, S>;
    S const space = make_deferred_space<S>(static_cast<std::uint64_t>(seed));
    E e{space,
        {.frames = 36,
         .host_pages = 120,
         .requests = 3,
         .max_batch = 3,
         .max_tokens = 600,
         .hot_rows = 64,
         .steps_in_flight = 1 + seed % 3}};
    std::vector<session> all{e.start(600, 500), e.start(600, 470), e.start(600, 37)};
    auto const who = pointers(all);
    random_rows select{static_cast<std::uint32_t>(seed)};
    for (int i = 0; i < 6; ++i) {
      std::vector<int> const counts = random_counts(select, 3, 3);
      announced_rows<E> pools{e, select, 3, 40};
      step const s = e.begin_ragged(who, counts);
      auto b = e.make_buffers(3, 3, sum(counts));
      pools.put_into(b);
      pools.announce(e, who, 3);
      e.fill(b, pools.selects(who));
      e.enqueue(s, b);
      e.end(s, random_share(select, counts));
    }
    e.settle();
    CHECK(e.kv.counts().prefetched_rows > 0);
    CHECK(e.kv.counts().hot_hits > 0);
    CHECK(e.kv.counts().lost == 0);
    CHECK(out_of_balance(e.kv) == "");
  }
}

// ---- O24 -----------------------------------------------------------------------------------------------------------------------------

struct grouped_tokens : policy_defaults {
  static constexpr row_segments row{20, 4};
  static constexpr int page_tokens = 128;
  static constexpr int top_k = 4;
  static constexpr int max_queries = 3;
  static constexpr std::array<layer_binding, 4> layers{{{0, 0}, {1, 1}, {2, 2}, {3, 3}}};
  static constexpr std::array<int, 4> ratios{1, 2, 4, 128};
  using backup = each_step;
};
constexpr std::byte poisoned{0xA5};

/// Rows of the host store that are not what a session committed. A row whose last token is not committed is still poison.
template <class Engine>
int wrong_host_rows(Engine const& e, session const& s, int& committed) {
  int wrong = 0;
  for (int source = 0; source < e.kv.local().sources(); ++source) {
    source_view const& v = e.kv.view(e.kv.local().id_of_source(source));
    std::int64_t const complete = s.tokens / e.kv.local().ratio(source);
    for (int p = 0; p < static_cast<int>(e.record(s).pages.size()); ++p) {
      for (int row = 0; row < v.layout.rows; ++row) {
        std::int64_t const at = std::int64_t{index(e.page(s, p).at.host)} * v.layout.rows + row;
        std::int64_t const position = std::int64_t{p} * v.layout.rows + row;
        bool const is = position < complete;
        row_pattern const want = is ? e.pattern(s, source, position) : row_pattern{};
        committed += is;
        bool same = true;
        for (int i = 0; i < v.layout.row.total(); ++i) {
          std::byte const found = i < v.layout.row.in_row
                                      ? v.host[v.host_layout.in_row_offset(at) + i]
                                      : v.host[v.host_layout.page_end_offset(at) + (i - v.layout.row.in_row)];
          same = same && found == (is ? std::byte{byte_of(want, i)} : poisoned);
        }
        wrong += !same;
      }
    }
  }
  return wrong;
}

// Each length is verified up to 12 times with 1 to 3 queries, none to all accepted. Entries ask for the newest row that the query may
// select, the first that it may not, the first, and one far behind.
TEST_CASE_TEMPLATE("O24: a row is there once its group is complete and accepted", S, EBB_SPACES) {
  std::vector<std::vector<int>> batches{{3, 4, 5}};
  for (int n = 1; n <= 9; ++n) batches.push_back({n});
  for (int n : {126, 127, 128, 129, 130, 254, 255, 256, 257}) batches.push_back({n});
  for (int n : {383, 511}) batches.push_back({n, 3, n + 2});
  std::uint32_t seed = 0;
  for (auto const& lengths : batches) {
    CAPTURE(lengths[0]);
    using W = gated_space<S>;
    W const space{make_space<S>()};
    sizes given{.frames = 22, .host_pages = 24, .requests = 3, .max_batch = 3, .max_tokens = 1024, .hot_rows = 512};
    shared_array<std::byte> store{space, static_cast<std::size_t>(host_bytes<grouped_tokens>(given))};
    std::fill(store.begin(), store.end(), poisoned);
    given.host_memory = store;
    engine<grouped_tokens, W> e{space, given};
    std::vector<session> all;
    for (int n : lengths) all.push_back(e.start(1024, n));
    auto const who = pointers(all);
    random_rows select{++seed};
    for (int i = 0; i < 12; ++i) {
      std::vector<int> const counts = random_counts(select, static_cast<int>(all.size()), 3);
      std::uint64_t const rejected = e.kv.counts().rejected;
      std::uint64_t beyond = 0;
      step const s = e.begin_ragged(who, counts);
      auto const b = e.make_buffers(s.padded, 3, sum(counts));
      e.fill(b, [&](session const&, int, int, int c, std::int64_t rows) -> std::int64_t {
        std::int64_t const row = c == 0 ? rows - 1 : c == 1 ? rows : c == 2 ? 0 : rows + 3;
        beyond += row >= rows;
        return row;
      });
      e.enqueue(s, b);
      std::vector<int> const accepted = i == 0 ? std::vector<int>(counts.size(), 0) : random_share(select, counts);
      e.end(s, accepted);
      e.settle();
      CHECK(e.kv.counts().rejected - rejected == beyond);
      finish(space, e.main);
      if (i % 3 == 2) {
        idle(e, 2);
        for (session const& one : all) {
          int rows = 0;
          CHECK(wrong_host_rows(e, one, rows) == 0);
          CHECK(rows == one.tokens + one.tokens / 2 + one.tokens / 4 + one.tokens / 128);
          CHECK(e.kv.tokens(one.id) == one.tokens);
        }
      }
    }
    CHECK(e.kv.counts().lost == 0);
    CHECK(out_of_balance(e.kv) == "");
  }
}

// ---- O05 -----------------------------------------------------------------------------------------------------------------------------

struct one_layer : policy_defaults {
  static constexpr row_segments row{64};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 3;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
};
template <class Engine>
bool host_page_holds(Engine const& e, session const& s, host_page_id at) {
  source_view const& v = e.kv.view(source_id{0});
  bool same = true;
  for (int row = 0; row < 16; ++row) {
    for (int i = 0; i < 64; ++i)
      same = same &&
             v.host[index(at) * v.host_layout.stride + row * 64 + i] == std::byte{byte_of(e.pattern(s, 0, row), i)};
  }
  return same;
}

enum class path { scratch, admission, import, refill };

// A page is filled by a verification that is accepted in part; its request ends while the copy is held. ordering.cpp has single queries.
TEST_CASE_TEMPLATE("O05: scratch of a verification gets no frame whose backup is under way", S, EBB_SPACES) {
  for (path const asks : {path::scratch, path::admission, path::import, path::refill}) {
    CAPTURE(static_cast<int>(asks));
    auto const space = gated_space<S>{make_space<S>()};
    shared_array<std::byte> store{space, 64 * 16 * 64};
    engine<one_layer, gated_space<S>> e{space,
                                        {.frames = asks == path::refill ? 7 : 4,
                                         .host_pages = 64,
                                         .requests = 4,
                                         .max_batch = 2,
                                         .max_tokens = 256,
                                         .hot_rows = 16,
                                         .steps_in_flight = 4,
                                         .host_memory = store}};
    random_rows select{5};
    session b{};
    if (asks == path::scratch || asks == path::import) b = e.start(48, 31);
    if (asks == path::refill) b = e.start(160, 96);
    session a = asks == path::refill ? start_waiting(e, 16, 15) : e.start(16, 15);
    if (asks == path::refill) {
      auto const spare = take_spare(e);
      poison(e, spare);
      e.run_step({&b}, 3, 1, select);
      idle(e, defaults::refill_pause + 2);
      REQUIRE(e.record(b).hot.size() == 1);
    }
    auto side = space.close_gate(space.side(), "copies");
    e.run_step({&a}, 3, 1, select);  // the last token and two that do not fit
    REQUIRE(frames_of(e, a).size() == 1);
    frame_id const x = e.page(a, 0).at.frame;
    host_page_id const host_of_x = e.page(a, 0).at.host;
    REQUIRE(e.page(a, 0).backing == 16);
    session const written = a;
    e.kv.finish(a.id);
    std::vector<frame_id> rest;
    if (int const free = e.kv.pools().frames_free; free > 0) {
      auto const taken = e.kv.collect(or_throw(e.kv.take(free)));
      REQUIRE(taken.has_value());
      rest = *taken;
    }
    auto const waits = [&] { return e.kv.allocator().book().frames[x].state == frame_state::revoking; };
    CHECK(waits());
    auto const before = e.kv.counts().pages;
    session c{};
    if (asks == path::admission) {
      c = e.name(or_throw(e.kv.admit(16, 16)), 16);
      CHECK_FALSE(e.kv.ready(c.id));
    } else if (asks == path::import) {
      e.kv.reserve_import(b.id, 47);
      for (import_page const& page : e.kv.import_pages(b.id, source_id{0}))
        CHECK((page.frame == nullptr || page.page != page_index{2}));
      e.import_source(b, 0, 47);
      e.kv.publish(b.id, 47);
      b.tokens = 47;
    } else if (asks == path::scratch) {
      // Tokens 31 to 33: the last two are scratch of a page that has X, and nothing is accepted.
      e.run_step({&b}, 3, 0, select);
      CHECK(e.kv.counts().pages.forced_waits == before.forced_waits + 1);
      CHECK(e.page(b, 2).at.frame == x);
      e.run_step({&b}, 3, 2, select);
    }
    if (asks == path::admission || asks == path::import || asks == path::refill) {
      for (int i = 0; i < 2; ++i) {
        e.end(e.begin({}), {});
        CHECK(waits());
      }
      CHECK(e.kv.counts().pages.refilled == before.refilled);
      if (asks == path::admission) CHECK_FALSE(e.kv.ready(c.id));
    }
    CHECK_FALSE(host_page_holds(e, written, host_of_x));
    CHECK(out_of_balance(e.kv) == "");
    side.open();
    finish(space, space.side());
    if (asks != path::import) CHECK(host_page_holds(e, written, host_of_x));
    idle(e, 2);
    if (asks == path::admission) {
      REQUIRE(e.kv.ready(c.id));
      e.import(c, 14);
      CHECK(e.page(c, 0).at.frame == x);
      e.run_step({&c}, 3, 2, select);
    }
    if (asks == path::refill) CHECK(e.kv.counts().pages.refilled > before.refilled);
    if (b.tokens > 0 && b.tokens < b.tokens_max) e.run_step({&b}, 3, 1, select);
    e.settle();
    CHECK(e.kv.counts().lost == 0);
    CHECK(out_of_balance(e.kv) == "");
    if (!rest.empty()) e.kv.give(e.main, rest);
  }
}

// ---- O25 to O27 ----------------------------------------------------------------------------------------------------------------------

template <class P, class S>
void captured(S const& of, bool device, std::vector<int> replayed) {
  using W = watched_space<S>;
  using E = engine<P, W>;
  W const space{of};
  E e{space,
      {.frames = 110, .host_pages = 400, .requests = 12, .max_batch = 8, .max_tokens = 400, .hot_rows = 48},
      std::size_t{24} << 20};
  std::vector<session> all;
  for (int i = 0; i < 12; ++i) all.push_back(e.start(400, i % 4 == 0 ? 20 : 210));
  random_rows select{25};
  constexpr int rows = 20;
  auto b = e.make_buffers(8, 3, rows);
  announced_rows<E> const pools{e, select, 8, 24};
  pools.put_into(b);
  b.replayed = std::move(replayed);
  auto* const offsets = e.template take<std::int32_t>(9);
  e.keep_buffers();
  std::optional<decltype(space.end_capture(e.main))> graph;
  for (int i = 0; i < times<S>(300, 40, 300); ++i) {
    int const n = i == 0 ? 8 : static_cast<int>(select.next() % 9);
    std::vector<session*> who;
    for (std::size_t at = select.next() % 12; static_cast<int>(who.size()) < n; at = (at + 1) % 12)
      who.push_back(&all[at]);
    for (session* s : who) {
      if (s->tokens > 380) e.truncate(*s, s->tokens % 3 == 0 ? 18 : 150);
    }
    std::vector<int> const counts = random_counts(select, n, 3, rows);
    write_offsets(offsets, counts, 8);
    long long const before = space.allocations();
    step const s =
        n == 0 && !device ? e.begin({}, 1, 8) : e.begin_ragged(who, counts, 8, rows, device ? offsets : nullptr);
    pools.announce(e, who, 8);
    e.fill(b, pools.selects(who));
    if (!graph) {
      space.begin_capture(e.main);
      e.enqueue(s, b);
      graph.emplace(space.end_capture(e.main));
    }
    space.launch(e.main, *graph);
    e.end(s, random_share(select, counts));
    e.settle();
    if (i > 0) CHECK(space.allocations() == before);
    REQUIRE(out_of_balance(e.kv) == "");
  }
  counters const c = e.kv.counts();
  CHECK(c.prefetched_rows > 0);
  CHECK(c.misses > 0);
  CHECK(c.hot_hits > 0);
  CHECK(c.lost == 0);
  CHECK(space.dead_canaries() == 0);
}

// One graph for all: 8 requests and 20 rows wide, with pools for every group, copies beside the layers, and the join.
TEST_CASE_TEMPLATE("O25: a captured ragged step is exact for whatever counts it is replayed", S, EBB_SPACES) {
  SUBCASE("counts from the host") { captured<ragged>(make_space<S>(), false, {2, 1, 2}); }
  SUBCASE("offsets on the device") { captured<ragged_packed>(make_space<S>(), true, {2, 1, 2}); }
  SUBCASE("plans that are not replayed") { captured<ragged>(make_space<S>(), true, {1, 1, 2}); }
  if constexpr (all_variants<S>) {
    SUBCASE("FlashMLA") { captured<ragged_flashmla>(make_space<S>(), false, {2, 1, 1}); }
    SUBCASE("deferred") { captured<ragged>(make_deferred_space<S>(25), false, {1, 1, 2}); }
  }
}

TEST_CASE_TEMPLATE("O25: a captured part that leaves copies behind is refused at the end of its step", S, EBB_SPACES) {
  S const space = make_space<S>();
  engine<crowded_lent, S> e{
      space, {.frames = 36, .host_pages = 120, .requests = 1, .max_batch = 1, .max_tokens = 600, .hot_rows = 64}};
  session a = e.start(600, 500);
  random_rows select{26};
  auto const b = e.make_buffers(1, 3, 3);
  e.keep_buffers();
  step const s = e.begin_ragged({&a}, {2}, 1, 3);
  e.fill(b, select);
  space.begin_capture(e.main);
  e.write(s, b);
  e.resolve(s, b, 0);
  CHECK_THROWS_WITH_AS(e.kv.end_step(e.main, s, std::vector{1}), doctest::Contains("end_step"), std::invalid_argument);
  e.kv.join(e.main, s);
  auto const graph = space.end_capture(e.main);
  space.launch(e.main, graph);
  e.check(b, 0, 0);
  e.end(s, {1});
  e.settle();
}

template <class P, class S>
void padding(S const& of, bool device) {
  using W = watched_space<S>;
  using E = engine<P, W>;
  W const space{of};
  // Sizes that no other array has: 12 slots of 48 ways, of 24 cut to 16 in the set of ratio 2; 12 maps of 25 pages.
  E e{space, {.frames = 90, .host_pages = 300, .requests = 12, .max_batch = 8, .max_tokens = 400, .hot_rows = 48}};
  auto const of_size = [&](std::size_t bytes) {
    std::vector<typename W::block> found;
    for (auto const& b : space.seen->device) {
      if (b.bytes == bytes) found.push_back(b);
    }
    REQUIRE(found.size() == 1);
    return found.front();
  };
  auto const wide = of_size(12 * 48 * 4), narrow = of_size(12 * 16 * 4), map = of_size(12 * 25 * 8);
  std::vector<session> all;
  for (int i = 0; i < 11; ++i) all.push_back(e.start(400, 180));
  random_rows select{26};
  auto b = e.make_buffers(8, 3, 24);
  announced_rows<E> const pools{e, select, 8, 24};
  pools.put_into(b);
  auto* const offsets = e.template take<std::int32_t>(9);
  e.keep_buffers();
  std::optional<decltype(space.end_capture(e.main))> graph;
  auto who = pointers(all);
  e.run_step({who[8], who[9], who[10]}, 3, 1, select);
  auto const others = [](std::vector<std::byte> bytes, int slots, int mine) {
    bytes.erase(bytes.begin(),
                bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / static_cast<std::size_t>(slots) *
                                                            static_cast<std::size_t>(mine)));
    return bytes;
  };
  auto const foreign_frames = [&](int mine) {
    std::vector<std::byte> bytes;
    for (int source = 0; source < e.kv.local().sources(); ++source) {
      source_view const& v = e.kv.view(e.kv.local().id_of_source(source));
      for (int f = 0; f < 90; ++f) {
        frame_record const& r = e.kv.allocator().book().frames[frame_id{f}];
        if (r.state == frame_state::free || r.slot < mine) continue;
        std::vector<std::byte> page(static_cast<std::size_t>(v.layout.stride));
        space.peek(page.data(), v.base + f * v.layout.stride, page.size());
        bytes.insert(bytes.end(), page.begin(), page.end());
      }
    }
    return bytes;
  };
  for (int const n : {8, 8, 5, 1, 0}) {
    CAPTURE(n);
    who = pointers(all);
    who.resize(static_cast<std::size_t>(n));
    std::vector<int> const counts = random_counts(select, n, 3);
    write_offsets(offsets, counts, 8);
    step const s =
        n == 0 && !device ? e.begin({}, 1, 8) : e.begin_ragged(who, counts, 8, 24, device ? offsets : nullptr);
    pools.announce(e, who, 8);
    e.fill(b, pools.selects(who));
    for (std::size_t g = 0; g < pools.positions.size(); ++g)  // stale candidates of requests that are not there
      for (int at = n * 24; at < 8 * 24; ++at) pools.positions[g][at] = at % 100;
    finish(space, e.main);
    auto const wide_before = others(space.look(wide), 12, n), narrow_before = others(space.look(narrow), 12, n);
    auto const map_before = space.look(map), frames_before = foreign_frames(n);
    counters const before = e.kv.counts();
    CHECK(std::any_of(wide_before.begin(), wide_before.end(), [](std::byte v) { return v != std::byte{0}; }));
    if (!graph) {
      space.begin_capture(e.main);
      e.enqueue(s, b);
      graph.emplace(space.end_capture(e.main));
    }
    space.launch(e.main, *graph);
    finish(space, e.main);
    counters const after = e.kv.counts();
    CHECK(others(space.look(wide), 12, n) == wide_before);
    CHECK(others(space.look(narrow), 12, n) == narrow_before);
    CHECK(space.look(map) == map_before);
    CHECK(foreign_frames(n) == frames_before);
    auto const seen = [](counters const& c) {
      return c.tail_hits + c.lent_hits + c.hot_hits + c.misses + c.invalid + c.rejected;
    };
    CHECK(seen(after) - seen(before) == static_cast<std::uint64_t>(sum(counts) * 3 * 8));  // groups · top-k
    if (n == 0) CHECK(after.fetched_rows == before.fetched_rows);
    if (n == 0) CHECK(after.prefetched_rows == before.prefetched_rows);
    e.end(s, std::vector<int>(who.size(), 1));
    e.settle();
  }
  CHECK(space.dead_canaries() == 0);
}
TEST_CASE_TEMPLATE("O26: rows behind the last request's leave a filler and touch nothing", S, EBB_SPACES) {
  SUBCASE("counts from the host") { padding<ragged>(make_space<S>(), false); }
  SUBCASE("offsets on the device") { padding<ragged>(make_space<S>(), true); }
  SUBCASE("packed") { padding<ragged_packed>(make_space<S>(), true); }
}

template <class P, class S>
void every_entry(S const& of) {
  using W = watched_space<S>;
  W const space{of};
  engine<P, W> e{space,
                 {.frames = 50, .host_pages = 160, .requests = 5, .max_batch = 5, .max_tokens = 512, .hot_rows = 48}};
  std::vector<session> all;
  for (int length : {0, 3, 31, 37, 480}) all.push_back(e.start(512, length));
  auto const who = pointers(all);
  random_rows select{27};
  for (int form = 0; form < 10; ++form) {
    CAPTURE(form);
    std::vector<int> const counts = random_counts(select, 5, 3);
    step const s = e.begin_ragged(who, counts, 5, 15);
    auto const b = e.make_buffers(5, 3, 15);  // every entry 123456
    counters const before = e.kv.counts();
    std::uint64_t none = 0, beyond = 0;
    e.fill(b, [&](session const&, int, int j, int c, std::int64_t rows) {
      std::int64_t at = rows == 0 ? -1 : static_cast<std::int64_t>(select.next()) % rows;
      int const shape = (form + j) % 5;
      if (shape == 0 && c < 3) at = -1;
      if (shape == 1 && c >= 3 && c < 5) at = -1;
      if (shape == 2) at = -1;
      if (shape == 3) at = c % 2 == 0 ? rows + c : c == 3 ? 2'000'000'000 : c == 5 ? -7 : at;
      none += at == -1;
      beyond += at < -1 || at >= rows;
      return at;
    });
    e.write(s, b);
    for (int g = 0; g < 3; ++g) {
      long long const runs = space.seen->runs;
      e.resolve(s, b, g);
      CHECK(space.seen->runs - runs <= (g == 1 ? 1 : 2));  // no fill; the copy for the second source is the other one
      e.check(b, g, 0);
    }
    e.end(s, random_share(select, counts));
    e.settle();
    counters const after = e.kv.counts();
    CHECK(after.invalid - before.invalid == none);
    CHECK(after.rejected - before.rejected == beyond);
  }
  CHECK(e.kv.counts().lost == 0);
}
TEST_CASE_TEMPLATE("O27: every entry of a ragged batch is written, also of an empty row", S, EBB_SPACES) {
  SUBCASE("plain rows") { every_entry<ragged>(make_space<S>()); }
  SUBCASE("packed") { every_entry<ragged_packed>(make_space<S>()); }
  if constexpr (all_variants<S>) {
    SUBCASE("FlashMLA") { every_entry<ragged_flashmla>(make_space<S>()); }
  }
}

// ---- O13 -----------------------------------------------------------------------------------------------------------------------------

TEST_CASE_TEMPLATE("O13: every reading path gives the same bytes after each change of a request's place", S,
                   EBB_SPACES) {
  using W = gated_space<S>;
  using E = engine<crowded_lent, W>;
  W const space{make_space<S>()};
  E e{space, {.frames = 40, .host_pages = 120, .requests = 3, .max_batch = 3, .max_tokens = 600, .hot_rows = 64}};
  std::vector<session> all{e.start(400, 30), e.start(600, 300)};
  random_rows select{13};
  auto const read = [&](char const* after) {
    CAPTURE(after);
    for (int form = 0; form < 4; ++form) {
      auto const who = pointers(all);
      std::vector<int> const counts = form == 0   ? std::vector{3, 3}
                                      : form == 1 ? std::vector{1, 1}
                                                  : random_counts(select, 2, 3);
      announced_rows<E> const pools{e, select, 3, 32};
      step const s = e.begin_ragged(who, counts, 3, 9);
      auto b = e.make_buffers(3, 3, 9);
      if (form != 2) pools.put_into(b);
      pools.announce(e, who, 3);
      e.fill(b, pools.selects(who));
      e.enqueue(s, b);
      CHECK(misplaced(e, who, b) == "");
      e.end(s, random_share(select, counts));
      e.settle();
      REQUIRE(out_of_balance(e.kv) == "");
    }
  };
  auto const grow = [&](std::int64_t to) {
    while (all[0].tokens < to)
      e.run_step({&all[0]}, 3, static_cast<int>(std::min<std::int64_t>(3, to - all[0].tokens)), select);
  };
  read("start");
  grow(33);
  read("33 tokens");
  grow(49);
  read("49 tokens");
  grow(160);
  read("160 tokens");
  auto const spare = take_spare(e);
  poison(e, spare);
  CHECK_FALSE(e.kv.whole(all[1].id));
  read("demoted");
  e.kv.give(e.main, spare);
  std::uint64_t const refilled = e.kv.counts().pages.refilled;
  idle(e, defaults::refill_pause + 4);
  CHECK(e.kv.counts().pages.refilled > refilled);
  read("refilled");
  e.truncate(all[0], 35);
  read("truncated");
  e.kv.preempt(all[1].id);
  idle(e, 2);
  REQUIRE(e.kv.resume(all[1].id));
  idle(e, 2);
  read("resumed");
  int const slot = all[0].id.slot;
  e.kv.finish(all[0].id);
  all[0] = start_waiting(e, 400, 140);
  CHECK(all[0].id.slot == slot);
  read("slot bound again");
  CHECK(e.kv.counts().misses > 0);
  CHECK(e.kv.counts().prefetched_rows > 0);
  CHECK(e.kv.counts().lost == 0);
}

// ---- acceptance on the device --------------------------------------------------------------------------------------------------------

/// What a sampler does at the end of a step.
struct accept_body {
  std::int32_t const* from;
  std::int32_t* to;
  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    if (t.rank() == 0) to[item] = from[item];
  }
};
/// Ends a step whose acceptance `said` is there once the stream is, and not before.
template <class Engine>
void end_on_device(Engine& e, step const& s, std::vector<int> const& said, std::vector<int> const& accepted) {
  std::size_t const n = said.size();
  auto* const from = e.template take<std::int32_t>(n + 1);
  auto* const to = e.template take<std::int32_t>(n + 1);
  std::copy(said.begin(), said.end(), from);
  std::fill_n(to, n, 2);
  e.space.run(e.main, static_cast<int>(n), accept_body{from, to});
  e.end(s, on_device{to}, accepted);
}
/// A whole step of `counts`, its acceptance on the device.
template <class Engine>
void run_on_device(Engine& e, std::vector<session*> const& who, std::vector<int> const& counts,
                   std::vector<int> const& accepted, random_rows& select) {
  step const s = e.begin_ragged(who, counts);
  auto const b = e.make_buffers(s.padded, 3, sum(counts));
  e.fill(b, select);
  e.enqueue(s, b);
  end_on_device(e, s, accepted, accepted);
}

// Up to three steps are under way before the host knows the first one's acceptance. Numbers below 0, above the queries or the room are cut.
// Two requests reach tokens_max; a step may name one that has no room left, as long as the host cannot know.
TEST_CASE_TEMPLATE("O30: acceptance that only the device knows moves lengths, write addresses and bounds", S,
                   EBB_SPACES) {
  for (int seed = 0; seed < times<S>(60, 12, 40); ++seed) {
    CAPTURE(seed);
    using E = engine<ragged, S>;
    S const space = make_deferred_space<S>(static_cast<std::uint64_t>(seed));
    E e{space,
        {.frames = 60,
         .host_pages = 120,
         .requests = 4,
         .max_batch = 4,
         .max_tokens = 400,
         .hot_rows = 48,
         .steps_in_flight = 1 + seed % 3}};
    std::vector<session> all{e.start(58, 50), e.start(400, 300), e.start(85, 78), e.start(400, 150)};
    random_rows select{static_cast<std::uint32_t>(seed)};
    int unknown = 0;
    auto const ended = [&] { return all[0].tokens == all[0].tokens_max && all[2].tokens == all[2].tokens_max; };
    for (int i = 0; i < 16 || (!ended() && i < 100); ++i) {
      std::vector<session*> who;
      for (session& s : all) {
        CHECK(e.kv.tokens(s.id) <= s.tokens);
        unknown += e.kv.tokens(s.id) < s.tokens;
        if (e.kv.tokens(s.id) < s.tokens_max && select.next() % 8 != 0) who.push_back(&s);
      }
      if (who.empty()) continue;
      std::vector<int> const counts = random_counts(select, static_cast<int>(who.size()), 3);
      auto* const offsets = e.template take<std::int32_t>(5);
      write_offsets(offsets, counts, 4);
      bool const device = select.next() % 2 == 0;
      std::vector<int> said, accepted;
      for (std::size_t k = 0; k < who.size(); ++k) {
        said.push_back(static_cast<int>(select.next() % 6) - 1);
        int const most = static_cast<int>(std::min<std::int64_t>(counts[k], who[k]->tokens_max - who[k]->tokens));
        accepted.push_back(std::clamp(said.back(), 0, most));
      }
      step const s = e.begin_ragged(who, counts, 4, 12, device ? offsets : nullptr);
      auto const b = e.make_buffers(4, 3, 12);
      e.fill(b, select);
      e.enqueue(s, b);
      if (i % 5 == 4 && !device) {
        // The host may say it for a step, too; it can only be sure of room that no step before may have taken.
        for (std::size_t k = 0; k < who.size(); ++k) {
          std::int64_t const pending = e.record(*who[k]).pending;
          accepted[k] = static_cast<int>(std::max<std::int64_t>(
              0, std::min<std::int64_t>(accepted[k], who[k]->tokens_max - e.kv.tokens(who[k]->id) - pending)));
        }
        e.end(s, accepted);
      } else {
        end_on_device(e, s, said, accepted);
      }
    }
    e.settle();
    for (int i = 0; i < 2; ++i) {
      e.kv.wait(e.kv.allocator().book().last);
      e.end(e.begin({}), {});
    }
    for (session& s : all) CHECK(e.kv.tokens(s.id) == s.tokens);
    CHECK(all[0].tokens == all[0].tokens_max);
    CHECK(all[2].tokens == all[2].tokens_max);
    e.run_step({&all[1], &all[3]}, 3, 1, select);
    e.settle();
    if (seed % 3 > 0) CHECK(unknown > 0);
    CHECK(e.kv.counts().lost == 0);
    CHECK(out_of_balance(e.kv) == "");
  }
}

TEST_CASE_TEMPLATE("O30: the next step is issued before the last one's acceptance is known", S, EBB_SPACES) {
  gated_space<S> const space{make_space<S>()};
  engine<ragged, gated_space<S>> e{space,
                                   {.frames = 60,
                                    .host_pages = 120,
                                    .requests = 2,
                                    .max_batch = 2,
                                    .max_tokens = 400,
                                    .hot_rows = 48,
                                    .steps_in_flight = 2}};
  std::vector<session> all{e.start(400, 300), e.start(400, 46)};
  auto const who = pointers(all);
  random_rows select{30};
  for (int i = 0; i < 10; ++i) {
    std::int64_t const known[]{e.kv.tokens(all[0].id), e.kv.tokens(all[1].id)};
    CHECK(known[0] == all[0].tokens);
    auto main = space.close_gate(e.main, "main");
    std::vector<int> const counts{3, 1 + i % 3};
    run_on_device(e, who, counts, {i % 4, i % 2}, select);
    // With the host's own numbers behind it, or the device's again.
    if (i % 2 == 0) {
      run_on_device(e, who, {2, 3}, {1, 3}, select);
    } else {
      e.run_step(who, 3, {2, 0}, select);
    }
    CHECK(e.kv.tokens(all[0].id) <= known[0] + (i % 2 == 0 ? 0 : 2));
    CHECK(e.record(all[1]).pending > 0);
    main.open();
    e.settle();
    e.kv.wait(e.kv.allocator().book().last);
    e.end(e.begin({}), {});
    for (session& s : all) CHECK(e.kv.tokens(s.id) == s.tokens);
    CHECK(e.record(all[1]).pending == 0);
  }
  e.settle();
  CHECK(out_of_balance(e.kv) == "");
}

// The calls come while the step is open, or behind its end; its acceptance is held meanwhile.
TEST_CASE_TEMPLATE("O30: truncate, preempt and finish wait for an acceptance that is not known yet", S, EBB_SPACES) {
  for (bool const inside : {false, true}) {
    for (int accepted = 0; accepted <= 3; ++accepted) {
      CAPTURE(inside);
      CAPTURE(accepted);
      gated_space<S> const space{make_space<S>()};
      engine<ragged, gated_space<S>> e{space,
                                       {.frames = 80,
                                        .host_pages = 150,
                                        .requests = 4,
                                        .max_batch = 4,
                                        .max_tokens = 400,
                                        .hot_rows = 48,
                                        .steps_in_flight = 2}};
      std::vector<session> all{e.start(400, 95), e.start(400, 94), e.start(400, 94), e.start(400, 94)};
      session &a = all[0], &b = all[1], &c = all[2], &d = all[3];
      random_rows select{31};
      idle(e);
      auto main = space.close_gate(e.main, "main");
      step const s = e.begin(pointers(all), 3);
      auto const buffers = e.make_buffers(4, 3);
      e.fill(buffers, select);
      e.enqueue(s, buffers);
      auto const calls = [&] {
        CHECK_THROWS_AS(e.kv.truncate(a.id, 96), std::invalid_argument);  // not certain
        e.kv.truncate(a.id, 92);
        e.kv.preempt(b.id);
        e.kv.finish(c.id);
      };
      if (inside) calls();
      std::vector<int> const numbers(4, accepted);
      end_on_device(e, s, numbers, numbers);
      if (!inside) calls();
      CHECK(out_of_balance(e.kv) == "");
      CHECK_THROWS_AS(e.kv.begin_step(e.main, {std::vector{a.id}}), std::invalid_argument);
      CHECK_THROWS_AS(e.kv.begin_step(e.main, {std::vector{b.id}}), std::invalid_argument);
      // Another request has the slot before anybody knows.
      session n = e.name(or_throw(e.kv.admit(48)), 48);
      CHECK(n.id.slot == c.id.slot);
      REQUIRE(e.kv.ready(n.id));
      e.run_step({&d, &n}, 3, 2, select);
      CHECK(e.kv.tokens(a.id) == 95);
      CHECK(e.record(b).phase == phase::running);
      main.open();
      e.settle();
      idle(e, 2);
      CHECK(e.kv.tokens(a.id) == 92);
      CHECK(e.record(b).phase == phase::preempted);
      CHECK(e.kv.tokens(b.id) == 94 + accepted);
      CHECK(e.kv.tokens(d.id) == 96 + accepted);
      CHECK(e.kv.tokens(n.id) == 2);
      CHECK_THROWS_AS(e.kv.tokens(c.id), std::invalid_argument);
      CHECK(out_of_balance(e.kv) == "");
      a.tokens = 92;
      REQUIRE(e.kv.resume(b.id));
      idle(e, 2);
      REQUIRE(e.kv.ready(b.id));
      for (int i = 0; i < 4; ++i) e.run_step({&a, &b, &d, &n}, 3, i % 3, select);
      e.settle();
      CHECK(e.kv.counts().lost == 0);
      CHECK(out_of_balance(e.kv) == "");
    }
  }
}

}  // namespace speculation_test

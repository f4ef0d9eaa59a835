// O15, O16: what the row cache holds, slot by slot.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "scenario.hpp"

namespace tables_test {

using namespace ebb;
using namespace ebb::testing;

/// One resolve of one table as the resolver does it: find all, then claim what is missing.
template <class Cache>
struct look_up_body {
  struct shared {
    int unused;
  };
  row_table table;
  std::int32_t const* positions;
  int count;
  std::int32_t* ways;
  std::uint32_t* fetched;  ///< how many lanes were told to fetch each position of the list

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int, shared&) const {
    for (int i = t.rank(); i < count; i += T::width) ways[i] = Cache::find(t, table, positions[i]);
    t.sync();
    constexpr int bundles = T::width / T::bundle;
    for (int first = 0; first < count; first += bundles) {
      int const i = first + t.rank() / T::bundle;
      std::int32_t const wanted = i < count && ways[i] < 0 ? positions[i] : -1;
      claimed c = Cache::claim(t, table, wanted, false);
      if (t.some(wanted >= 0 && c.way < 0)) {
        claimed const other = Cache::claim(t, table, c.way < 0 ? wanted : -1, true);
        if (c.way < 0) c = other;
      }
      bool const fetch = t.least(c.fetch ? 0 : 1) == 0;
      if (i >= count || t.bundle_rank() != 0) continue;
      if (wanted >= 0) ways[i] = c.way;
      fetched[i] = fetch;
    }
  }
};

/// Claims staging slots for a list of positions, a bundle each.
struct stage_body {
  row_table table;
  std::int32_t const* positions;
  int count;
  std::int32_t* ways;
  std::uint32_t* fetched;

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int) const {
    constexpr int bundles = T::width / T::bundle;
    for (int first = 0; first < count; first += bundles) {
      int const i = first + t.rank() / T::bundle;
      claimed const c = staging_rows::claim(t, table, i < count ? positions[i] : -1, false);
      if (i >= count || t.bundle_rank() != 0) continue;
      ways[i] = c.way;
      fetched[i] = c.fetch;
    }
  }
};

/// A table of one request in device memory, and what the last resolve did to it.
template <class Cache, class S>
struct table_under_test {
  table_under_test(S const& of, int ways)
      : space{of},
        stream{of.make_stream()},
        memory{of.device_memory(static_cast<std::size_t>(std::max(ways, set_ways)) * 4)},
        positions{of, 64},
        at{of, 64},
        fetched{of, 64} {
    table = {reinterpret_cast<std::uint32_t*>(memory.get()), ways, {20, Cache::exponent_bits}, 0, 1};
  }
  /// Resolves; returns how many rows were fetched.
  int resolve(std::vector<int> const& wanted) {
    ++table.now;
    std::copy(wanted.begin(), wanted.end(), positions.begin());
    space.run(stream, 1,
              look_up_body<Cache>{table, positions.data(), static_cast<int>(wanted.size()), at.data(), fetched.data()});
    finish(space, stream);
    before = words;
    words.assign(static_cast<std::size_t>(table.ways), 0);
    space.peek(words.data(), table.words, words.size() * 4);
    return static_cast<int>(std::accumulate(fetched.begin(), fetched.begin() + wanted.size(), 0u));
  }
  /// As admit, resume and truncate leave it.
  void clear() {
    space.zero(stream, table.words, words.size() * 4);
    words.assign(words.size(), 0);
    table.now = 0;
  }
  /// Slots that hold the position.
  std::vector<int> slots_of(int position) const {
    std::vector<int> slots;
    for (int w = 0; w < static_cast<int>(words.size()); ++w) {
      if (table.format.stamp(words[static_cast<std::size_t>(w)]) != 0 &&
          table.format.position(words[static_cast<std::size_t>(w)]) == position)
        slots.push_back(w);
    }
    return slots;
  }
  std::vector<int> occupied() const {
    std::vector<int> rows;
    for (std::uint32_t w : words) {
      if (table.format.stamp(w) != 0) rows.push_back(table.format.position(w));
    }
    return rows;
  }

  S space;
  typename S::stream stream;
  std::shared_ptr<std::byte> memory;
  shared_array<std::int32_t> positions, at;
  shared_array<std::uint32_t> fetched;
  row_table table;
  std::vector<std::uint32_t> words{}, before{};
};

struct small_table : policy_defaults {
  static constexpr row_segments row{64};
  static constexpr int page_tokens = 8;
  static constexpr int top_k = 4;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
};

struct lru_table : small_table {
  using tiers = tier_list<lent_pages, hot_rows<lru>, staging_rows, host_pages>;
};

struct twelve_of_sixteen : policy_defaults {
  static constexpr row_segments row{64};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 12;
  static constexpr int max_queries = 4;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
};

/// Whether the slots that a resolve answered and the rows of the table are one to one.
template <class Table>
bool one_to_one(Table const& t, std::vector<int> const& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (t.slots_of(wanted[i]) != std::vector<int>{t.at[i]}) return false;
  }
  auto const rows = t.occupied();
  return std::set<int>(rows.begin(), rows.end()).size() == rows.size() && static_cast<int>(rows.size()) <= t.table.ways;
}

TEST_CASE_TEMPLATE("O16: staging gives every row one slot until the last, whatever its size", S, EBB_SPACES) {
  auto const space = make_space<S>();
  auto const stream = space.make_stream();
  for (int slots : {1, 2, 3, 5, 16, 40, 61, 96}) {
    CAPTURE(slots);
    auto const memory = space.device_memory(static_cast<std::size_t>(std::max(slots, set_ways)) * 4);
    shared_array<std::int32_t> positions{space, 3 * 97}, ways{space, 3 * 97};
    shared_array<std::uint32_t> fetched{space, 3 * 97};
    for (std::uint32_t now = 1; now < 4; ++now) {
      // Every position three times, and one more position than there are slots.
      int const n = 3 * (slots + 1);
      for (int i = 0; i < n; ++i)
        positions[static_cast<std::size_t>(i)] = static_cast<int>(now) * 1000 + i * 7 % (slots + 1) * 37;
      row_table const table{reinterpret_cast<std::uint32_t*>(memory.get()), slots, {20, 0}, now, 1};
      space.run(stream, 1, stage_body{table, positions.data(), n, ways.data(), fetched.data()});
      finish(space, stream);
      std::map<int, std::set<int>> ways_of;
      std::map<int, int> fetches_of;
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        ways_of[positions[i]].insert(ways[i]);
        fetches_of[positions[i]] += static_cast<int>(fetched[i]);
      }
      std::set<int> used;
      int without = 0;
      for (auto const& [position, at] : ways_of) {
        CHECK(at.size() == 1);
        bool const none = *at.begin() == -1;
        without += none;
        CHECK(fetches_of[position] == (none ? 0 : 1));
        if (!none) CHECK(used.insert(*at.begin()).second);
      }
      CHECK(without == static_cast<int>(ways_of.size()) - slots);
      CHECK(static_cast<int>(used.size()) == slots);
      CHECK(*used.begin() == 0);
      CHECK(*used.rbegin() == slots - 1);
    }
  }
}

TEST_CASE_TEMPLATE("O15: a row found behind one that was evicted is a hit and stays in one slot", S, EBB_SPACES) {
  // All rows collide in a table of 8 ways. i, j and six others fill it; a ninth row evicts i, the least recent.
  table_under_test<hot_rows<lru>, S> t{make_space<S>(), 8};
  int const i = 3, j = 77;
  CHECK(t.resolve({i}) == 1);
  CHECK(t.resolve({j}) == 1);
  int const slot_of_j = t.at[0];
  for (int other = 100; other < 106; ++other) CHECK(t.resolve({other}) == 1);
  CHECK(t.resolve({200}) == 1);
  CHECK(t.slots_of(i).empty());
  CHECK(t.resolve({j}) == 0);
  CHECK(t.slots_of(j) == std::vector<int>{slot_of_j});
  CHECK(t.resolve({i, j}) == 1);
  CHECK(one_to_one(t, {i, j}));
}

// H = 64 rows, K = 4, S = 8; then 48 and 160 ways, where rows collide in pairs of sets. Fewer steps where lanes are threads.
TEST_CASE_TEMPLATE("O15: after every step the occupied slots are one to one with rows", S, EBB_SPACES) {
  auto const space = make_space<S>();
  int const steps = ebb::testing::lanes_are_threads<S> ? 500 : 10'000;
  for (int const ways : {8, 48, 160}) {
    CAPTURE(ways);
    table_under_test<hot_rows<lrfu>, S> t{space, ways};
    host::generator numbers{static_cast<std::uint64_t>(ways)};
    int wrong = 0, fetched = 0, missed = 0;
    std::size_t fullest = 0;
    for (int step = 0; step < steps; ++step) {
      std::vector<int> wanted;
      for (int k = 0; k < 4; ++k) wanted.push_back(numbers.below(ways == 8 ? 64 : 3 * ways));
      std::set<int> const distinct(wanted.begin(), wanted.end());
      auto const held = t.occupied();
      missed += static_cast<int>(std::count_if(distinct.begin(), distinct.end(), [&](int p) {
        return std::find(held.begin(), held.end(), p) == held.end();
      }));
      fetched += t.resolve(wanted);
      wrong += !one_to_one(t, wanted);
      fullest = std::max(fullest, t.occupied().size());
      if (t.table.now == 500) t.clear();
    }
    CHECK(wrong == 0);
    CHECK(fetched == missed);
    CHECK(fetched > steps / 4);
    CHECK(fullest == static_cast<std::size_t>(ways));
  }
}

// Requests of 2^24 tokens leave 6 bits for stamps: they are lowered every 30 steps or so.
TEST_CASE_TEMPLATE("O15: random steps through a table of eight rows are exact, also when stamps run out", S,
                   EBB_SPACES) {
  engine<small_table, gated_space<S>> e{
      gated_space<S>{make_space<S>()},
      {.frames = 4, .host_pages = 80, .requests = 1, .max_batch = 1, .max_tokens = 1 << 24, .hot_rows = 8}};
  session s = e.start(600, 64);
  random_rows select{15};
  int const steps = ebb::testing::lanes_are_threads<S> ? 500 : 10'000;
  for (int i = 0; i < steps; ++i) {
    std::vector<session*> const who{&s};
    step const now = e.begin(who);
    auto const b = e.make_buffers(1, 1);
    e.fill(b, select);
    e.enqueue(now, b);
    if (i % 100 == 0) CHECK(misplaced(e, who, b) == "");
    e.end(now, {i % 64 == 63});
    if (i % 100 == 99) e.settle();
  }
  e.settle();
  CHECK(e.kv.counts().hot_hits > 0);
  CHECK(e.kv.counts().lost == 0);
}

// Ten rows of a table of sixteen are chosen in turn; two that were chosen last are kept through any number of lowered stamps.
TEST_CASE_TEMPLATE("O15: lowered stamps keep the order in which rows were used", S, EBB_SPACES) {
  engine<lru_table, gated_space<S>> e{
      gated_space<S>{make_space<S>()},
      {.frames = 5, .host_pages = 80, .requests = 1, .max_batch = 1, .max_tokens = 1 << 24, .hot_rows = 16}};
  session s = e.start(600, 200);
  auto const look = [&](auto rows) {
    e.run_step({&s}, 1, 0, [&](session const&, int, int, int column, std::int64_t) -> std::int64_t {
      return column < static_cast<int>(rows.size()) ? rows[static_cast<std::size_t>(column)] : -1;
    });
  };
  for (int i = 0; i < 400; ++i) {
    // 15 of 16 rows are used within five steps, so a new row takes the place of one that was not.
    int const turn = i % 5 * 3;
    look(std::vector{turn, turn + 1, turn + 2, i % 5 == 4 ? 20 + i % 100 : -1});
  }
  e.settle();
  // Each fifth step fetches one new row, and the fifteen were fetched once.
  CHECK(e.kv.counts().fetched_rows == 15 + 400 / 5);
}

// Slots are invalidated by clearing a request's table, all at once; 6 that were never used stand for the 6 of the scenario.
TEST_CASE_TEMPLATE("O16: free slots are used before rows are evicted, and exactly as many are evicted as must be", S,
                   EBB_SPACES) {
  auto const space = make_space<S>();
  for (int const queries : {1, 4}) {
    CAPTURE(queries);
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      table_under_test<hot_rows<lru>, S> t{space, 16};
      std::vector<int> used(10);
      std::iota(used.begin(), used.end(), 1000);
      REQUIRE(t.resolve(used) == 10);
      std::vector<int> step{1000, 1003, 1005, 1009};
      for (int k = 0; k < 8; ++k) step.push_back(2000 + k);
      std::vector<int> wanted;
      host::generator numbers{seed};
      for (int q = 0; q < queries; ++q) wanted.insert(wanted.end(), step.begin(), step.end());
      for (std::size_t left = wanted.size(); left > 1; --left)
        std::swap(wanted[left - 1], wanted[static_cast<std::size_t>(numbers.below(static_cast<int>(left)))]);
      CHECK(t.resolve(wanted) == 8);
      CHECK(one_to_one(t, wanted));
      int filled = 0, evicted = 0;
      for (std::size_t w = 0; w < 16; ++w) {
        bool const was = t.table.format.stamp(t.before[w]) != 0;
        bool const changed = t.table.format.position(t.before[w]) != t.table.format.position(t.words[w]);
        filled += !was && t.table.format.stamp(t.words[w]) != 0;
        evicted += was && changed;
      }
      CHECK(filled == 6);
      CHECK(evicted == 2);
    }
  }
}

TEST_CASE_TEMPLATE("O16: eight misses beside four hits fetch eight rows, however many queries name them", S,
                   EBB_SPACES) {
  for (int const queries : {1, 4}) {
    CAPTURE(queries);
    engine<twelve_of_sixteen, gated_space<S>> e{
        gated_space<S>{make_space<S>()},
        {.frames = 4, .host_pages = 40, .requests = 1, .max_batch = 1, .max_tokens = 600, .hot_rows = 16}};
    session s = e.start(400, 200);
    auto const look = [&](int n, auto select) {
      counters const before = e.kv.counts();
      e.run_step({&s}, n, 0, select);
      e.settle();
      counters const after = e.kv.counts();
      return std::vector<std::uint64_t>{after.hot_hits - before.hot_hits, after.misses - before.misses,
                                        after.fetched_rows - before.fetched_rows,
                                        after.fetched_bytes - before.fetched_bytes};
    };
    using list = std::vector<std::uint64_t>;
    auto const first_ten = [](session const&, int, int, int column, std::int64_t) {
      return column < 10 ? 10 * column : -1;
    };
    CHECK(look(1, first_ten) == list{0, 10, 10, 640});
    // Columns in another order for each query.
    auto const four_and_eight = [](session const&, int, int query, int column, std::int64_t) {
      int const c = (column * 5 + query * 7) % 12;
      return c < 4 ? 20 * c : 101 + c;
    };
    std::uint64_t const q = static_cast<std::uint64_t>(queries);
    CHECK(look(queries, four_and_eight) == list{4 * q, 8 * q, 8, 8 * 64});
    CHECK(look(queries, four_and_eight) == list{12 * q, 0, 0, 0});
    CHECK(look(1, first_ten) == list{8, 2, 2, 128});  // two had to go
  }
}

}  // namespace tables_test

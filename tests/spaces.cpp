// What every space promises, on the host and on a GPU: teams, words, copies, order, graphs, memory.
#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "spaces_under_test.hpp"

namespace spaces_test {

using ebb::testing::finish;
using ebb::testing::make_space;
using ebb::testing::shared_array;

EBB_FN constexpr bool votes(int lane, int round, int item) { return (lane * 7 + lane / 5 + round + item) % 3 == 0; }

/// Counts, per item, in how many rounds a lane was told something else than what the votes say. Nothing but `prefix`
/// and `any` between rounds.
struct vote_body {
  std::uint32_t* wrong;
  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    for (int round = 0; round < 30; ++round) {
      int before = 0;
      int all = 0;
      for (int lane = 0; lane < T::width; ++lane) {
        if (lane < t.rank()) before += votes(lane, round, item);
        all += votes(lane, round, item);
      }
      ebb::vote const v = t.prefix(votes(t.rank(), round, item));
      if (v.before != before || v.all != all) t.add(wrong + item, 1u);
      if (round % 4 == 0 && t.any(t.rank() == round % T::width) != true) t.add(wrong + item, 1u);
      if (round % 4 == 1 && t.any(false)) t.add(wrong + item, 1u);
    }
  }
};
struct small_vote_body : vote_body {
  static constexpr int threads = 32;
};
struct large_vote_body : vote_body {
  static constexpr int threads = 1024;
};
/// On a GPU with clusters: two, four or eight blocks an item, by how many items there are.
struct cluster_vote_body : vote_body {
  static constexpr int threads = 64;
  static constexpr int most_blocks = 8;
};

/// Lanes of several blocks write words, meet, and read and change each other's; bundles agree on the least of theirs.
struct cluster_body {
  static constexpr int threads = 64;
  static constexpr int most_blocks = 8;
  struct shared {
    int cells[64];
  };
  std::uint32_t* words;   ///< [items][1024]
  std::uint64_t* counts;  ///< [items]
  std::uint32_t* wrong;
  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item, shared& s) const {
    std::uint32_t* const mine = words + item * 1024;
    t.add_all(counts + item, 1u);
    for (std::uint32_t round = 1; round < 6; ++round) {
      s.cells[t.block_rank()] = t.rank();
      t.store(mine + t.rank(), round * 1000 + static_cast<std::uint32_t>(t.rank()));
      t.block_sync();
      if (s.cells[t.block_rank()] != t.rank()) t.add(wrong, 1u);  // no other block wrote here
      t.sync();
      for (int lane = 0; lane < T::width; ++lane) {
        if (t.load(mine + lane) != round * 1000 + static_cast<std::uint32_t>(lane)) t.add(wrong, 1u);
      }
      std::uint32_t const first = static_cast<std::uint32_t>(t.block_rank() / T::bundle * T::bundle);
      if (t.least(static_cast<std::uint32_t>(t.block_rank())) != first) t.add(wrong, 1u);
      if (t.bundle_rank() != t.block_rank() % T::bundle || !t.some(true) || t.some(false)) t.add(wrong, 1u);
      t.sync();
    }
    if (t.exchange(mine + 1023, 0, 1) == 0) t.add(counts + item, std::uint64_t{1} << 32);  // one lane of all
    t.sync_or_leave(true);
  }
};

/// Every lane writes its cells, in shared and in other memory, and reads all of them behind a collective.
struct exchange_body {
  struct shared {
    int cells[1024];
  };
  int* cells;
  std::uint32_t* wrong;
  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item, shared& s) const {
    int* const mine = cells + item * 1024;
    for (int round = 0; round < 12; ++round) {
      s.cells[t.rank()] = round * 10'000 + t.rank() + item;
      mine[t.rank()] = round * 20'000 + t.rank() + item;
      if (round % 3 == 0) t.sync();
      if (round % 3 == 1) t.prefix(true);
      if (round % 3 == 2) t.any(false);
      for (int lane = 0; lane < T::width; ++lane) {
        if (s.cells[lane] != round * 10'000 + lane + item) t.add(wrong + item, 1u);
        if (mine[lane] != round * 20'000 + lane + item) t.add(wrong + item, 1u);
      }
      t.sync();
    }
  }
};

/// Lanes of all items claim the same words; counters in both kinds of memory count who won.
struct claim_body {
  struct shared {
    std::uint32_t word;
    std::uint32_t won;
    std::uint64_t wide;
  };
  std::uint32_t* words;
  std::uint32_t* won;
  std::uint64_t* wide;
  std::uint32_t* wrong;
  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item, shared& s) const {
    std::uint32_t const id = static_cast<std::uint32_t>(item * T::width + t.rank() + 1);
    for (int w = 0; w < 64; ++w) {
      if (t.exchange(words + w, 0, id) == 0) t.add(won + w, 1u);
      if (t.load(words + w) == 0) t.add(wrong, 1u);
    }
    t.add(wide, std::uint64_t{1} << 33);
    if (t.rank() == 0) {
      s.word = 0;
      s.won = 0;
      s.wide = 0;
    }
    t.sync();
    if (t.exchange(&s.word, 0, id) == 0) t.add(&s.won, 1u);
    t.add(&s.wide, std::uint64_t{1} << 32);
    t.sync();
    if (t.load(&s.won) != 1 || t.load(&s.word) == 0 || s.wide >> 32 != T::width) t.add(wrong, 1u);
  }
};

/// Reads sets of several lengths and alignments after other lanes have changed them, twice.
struct set_body {
  std::uint32_t* words;  // 64 an item
  std::uint32_t* wrong;
  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    std::uint32_t* const mine = words + item * 64;
    for (std::uint32_t round = 1; round < 6; ++round) {
      for (int w = t.rank(); w < 64; w += T::width)
        t.exchange(mine + w, t.load(mine + w), round * 1000 + static_cast<std::uint32_t>(w));
      t.sync();
      std::uint32_t held[16];
      for (int from = 0; from < 48; from += 16) {
        t.load_set(mine + from, 16, held);
        for (int i = 0; i < 16; ++i) check(t, held[i], round, from + i);
      }
      t.load_set(mine + 5, 4, held);
      for (int i = 0; i < 4; ++i) check(t, held[i], round, 5 + i);
      t.load_set(mine + 8, 7, held);
      for (int i = 0; i < 7; ++i) check(t, held[i], round, 8 + i);
      t.sync();
    }
  }

 private:
  EBB_BODY
  template <ebb::team T>
  EBB_FN void check(T const& t, std::uint32_t word, std::uint32_t round, int place) const {
    if (word != round * 1000 + static_cast<std::uint32_t>(place)) t.add(wrong, 1u);
  }
};

/// Copies `bytes` bytes an item, B at a time, one or K in flight.
template <int B, int K>
struct copy_body {
  std::byte* to;
  std::byte const* from;
  int bytes;
  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    std::int64_t const base = std::int64_t{item} * bytes;
    if constexpr (K == 1) {
      for (int at = t.rank() * B; at < bytes; at += T::width * B) t.template copy<B>(to + base + at, from + base + at);
    } else {
      for (int at = t.rank() * B; at < bytes; at += T::width * B * K) {
        std::byte* targets[K];
        std::byte const* sources[K];
        for (int k = 0; k < K; ++k) {
          int const mine = at + k * T::width * B;
          targets[k] = to + base + mine;
          sources[k] = mine < bytes ? from + base + mine : nullptr;
        }
        t.template copy<B>(targets, sources);
      }
    }
  }
};

/// x = x · factor + summand for each item's number.
struct affine_body {
  std::uint32_t* x;
  std::uint32_t factor;
  std::uint32_t summand;
  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    if (t.rank() == 0) x[item] = x[item] * factor + summand;
  }
};

struct count_body {
  std::uint32_t* runs;  // of each item
  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    t.add(runs + item, 1u);
  }
};

template <class S, class Body>
void run_and_finish(S const& space, int items, Body const& body) {
  auto const stream = space.make_stream();
  space.run(stream, items, body);
  finish(space, stream);
}

template <int B, int K, class S>
void check_copy(S const& space, std::byte* to, std::byte const* from, int items, int bytes) {
  std::size_t const all = static_cast<std::size_t>(items) * static_cast<std::size_t>(bytes);
  auto const stream = space.make_stream();
  space.zero(stream, to, all);
  space.run(stream, items, copy_body<B, K>{to, from, bytes});
  finish(space, stream);
  std::vector<std::byte> wanted(all);
  std::vector<std::byte> found(all);
  space.peek(wanted.data(), from, all);
  space.peek(found.data(), to, all);
  CHECK(wanted == found);
}

TEST_CASE_TEMPLATE("votes count the lanes before this one and all lanes, call after call", S, EBB_SPACES) {
  auto const space = make_space<S>();
  shared_array<std::uint32_t> wrong{space, 300};
  run_and_finish(space, 300, vote_body{wrong.data()});
  run_and_finish(space, 300, small_vote_body{{wrong.data()}});
  run_and_finish(space, 20, large_vote_body{{wrong.data()}});
  for (int items : {3, 20, 50, 200}) run_and_finish(space, items, cluster_vote_body{{wrong.data()}});
  CHECK(std::accumulate(wrong.begin(), wrong.end(), 0u) == 0);
}

TEST_CASE_TEMPLATE("what a lane wrote before a collective is visible to its team behind it", S, EBB_SPACES) {
  auto const space = make_space<S>();
  auto const cells = space.device_memory(200 * 1024 * sizeof(int));
  shared_array<std::uint32_t> wrong{space, 200};
  run_and_finish(space, 200, exchange_body{reinterpret_cast<int*>(cells.get()), wrong.data()});
  CHECK(std::accumulate(wrong.begin(), wrong.end(), 0u) == 0);
}

TEST_CASE_TEMPLATE("blocks of a team see each other's words, and have shared memory of their own", S, EBB_SPACES) {
  auto const space = make_space<S>();
  for (int items : {1, 10, 20, 60, 200}) {
    auto const words = space.device_memory(static_cast<std::size_t>(items) * 1024 * 4);
    auto const counts = space.device_memory(static_cast<std::size_t>(items) * 8);
    shared_array<std::uint32_t> wrong{space, 1};
    run_and_finish(space, items,
                   cluster_body{reinterpret_cast<std::uint32_t*>(words.get()),
                                reinterpret_cast<std::uint64_t*>(counts.get()), wrong.data()});
    std::vector<std::uint64_t> lanes(static_cast<std::size_t>(items));
    space.peek(lanes.data(), counts.get(), lanes.size() * 8);
    CHECK(wrong[0] == 0);
    CHECK(std::count(lanes.begin(), lanes.end(), lanes[0]) == items);
    CHECK((lanes[0] >> 32) == 1);
  }
}

TEST_CASE_TEMPLATE("a word is claimed once, in device and in shared memory", S, EBB_SPACES) {
  auto const space = make_space<S>();
  auto const memory = space.device_memory(1024);
  auto* const words = reinterpret_cast<std::uint32_t*>(memory.get());
  auto* const wide = reinterpret_cast<std::uint64_t*>(memory.get() + 768);
  shared_array<std::uint32_t> wrong{space, 1};
  run_and_finish(space, 500, claim_body{words, words + 64, wide, wrong.data()});
  std::uint32_t won[64];
  std::uint64_t lanes = 0;
  space.peek(won, words + 64, sizeof(won));
  space.peek(&lanes, wide, sizeof(lanes));
  CHECK(std::all_of(won, won + 64, [](std::uint32_t n) { return n == 1; }));
  lanes >>= 33;
  CHECK(lanes >= 500);
  CHECK(lanes % 500 == 0);
  CHECK(wrong[0] == 0);
}

TEST_CASE_TEMPLATE("a set is read as its lanes left it, whatever its length and alignment", S, EBB_SPACES) {
  auto const space = make_space<S>();
  auto const memory = space.device_memory(100 * 64 * sizeof(std::uint32_t));
  shared_array<std::uint32_t> wrong{space, 1};
  run_and_finish(space, 100, set_body{reinterpret_cast<std::uint32_t*>(memory.get()), wrong.data()});
  CHECK(wrong[0] == 0);
}

TEST_CASE_TEMPLATE("bodies copy pieces of every width between history and device memory", S, EBB_SPACES) {
  auto const space = make_space<S>();
  constexpr int items = 40;
  constexpr int bytes = 16 * 1'223;
  auto const device = space.device_memory(items * bytes);
  for (auto const kind : {ebb::host_kind::managed, ebb::host_kind::pinned}) {
    CAPTURE(static_cast<int>(kind));
    auto const history = space.history_memory(2 * items * bytes, kind);
    CHECK(std::all_of(history.get(), history.get() + 2 * items * bytes, [](std::byte b) { return b == std::byte{0}; }));
    for (int i = 0; i < items * bytes; ++i) history.get()[i] = static_cast<std::byte>(i * 31 + i / 251);
    check_copy<1, 1>(space, device.get(), history.get(), items, bytes);
    check_copy<2, 1>(space, device.get(), history.get(), items, bytes);
    check_copy<4, 1>(space, device.get(), history.get(), items, bytes);
    check_copy<8, 1>(space, device.get(), history.get(), items, bytes);
    check_copy<16, 1>(space, device.get(), history.get(), items, bytes);
    check_copy<8, 2>(space, device.get(), history.get(), items, bytes);
    check_copy<16, 4>(space, device.get(), history.get(), items, bytes);
    check_copy<16, 4>(space, history.get() + items * bytes, device.get(), items, bytes);
    CHECK(std::equal(history.get(), history.get() + items * bytes, history.get() + items * bytes));
  }
}

TEST_CASE_TEMPLATE("every item runs once, on every lane; no items are nothing", S, EBB_SPACES) {
  auto const space = make_space<S>();
  shared_array<std::uint32_t> runs{space, 5000};
  run_and_finish(space, 0, count_body{runs.data()});
  CHECK(std::accumulate(runs.begin(), runs.end(), 0u) == 0);
  run_and_finish(space, 5000, count_body{runs.data()});
  CHECK(runs[0] > 0);
  CHECK(std::all_of(runs.begin(), runs.end(), [&](std::uint32_t n) { return n == runs[0]; }));
  CHECK_THROWS_AS(space.run(space.make_stream(), -1, ebb::empty_body{}), std::invalid_argument);
}

TEST_CASE_TEMPLATE("work of a stream starts after the event that it waits for", S, EBB_SPACES) {
  auto const space = make_space<S>();
  auto const first = space.make_stream();
  auto const second = space.make_stream();
  shared_array<std::uint32_t> x{space, 1};
  auto gate = space.close_gate(first);
  space.run(first, 1, affine_body{x.data(), 1, 5});
  auto const event = space.record(first);
  space.wait(second, event);
  space.run(second, 1, affine_body{x.data(), 10, 3});
  auto const last = space.record(second);
  CHECK_FALSE(space.reached(event));
  CHECK_FALSE(space.reached(last));
  CHECK(x[0] == 0);
  gate.open();
  space.synchronize(last);
  CHECK(space.reached(event));
  CHECK(x[0] == 53);
}

TEST_CASE_TEMPLATE("a stream that waits for nothing closed goes on, and memory can be looked at meanwhile", S,
                   EBB_SPACES) {
  auto const space = make_space<S>();
  auto const held = space.make_stream();
  auto const free = space.make_stream();
  auto const memory = space.device_memory(256);
  auto* const x = reinterpret_cast<std::uint32_t*>(memory.get());
  finish(space, free);
  {
    auto const gate = space.close_gate(held);
    space.run(held, 1, affine_body{x, 1, 100});
    space.wait(free, typename S::event{});
    space.run(free, 1, affine_body{x, 1, 7});
    finish(space, free);
    std::uint32_t seen = 0;
    space.peek(&seen, x, sizeof(seen));
    CHECK(seen == 7);
  }
  finish(space, held);  // a gate that died is open
  std::uint32_t seen = 0;
  space.peek(&seen, x, sizeof(seen));
  CHECK(seen == 107);
}

TEST_CASE_TEMPLATE("an event stays the point it was, however many are recorded and dropped after it", S, EBB_SPACES) {
  auto const space = make_space<S>();
  auto const held = space.make_stream();
  auto const other = space.make_stream();
  CHECK(space.reached(typename S::event{}));
  space.synchronize(typename S::event{});
  auto gate = space.close_gate(held);
  auto const point = space.record(held);
  for (int i = 0; i < 1000; ++i) {
    auto const copy = point;
    space.synchronize(space.record(other));
    if (i % 100 == 0) CHECK_FALSE(space.reached(copy));
  }
  gate.open();
  space.synchronize(point);
  CHECK(space.reached(point));
}

TEST_CASE_TEMPLATE("a captured fork and join runs in order at every launch, not before", S, EBB_SPACES) {
  auto const space = make_space<S>();
  auto const stream = space.make_stream();
  auto const side = space.make_stream();
  shared_array<std::uint32_t> x{space, 3};
  auto const cleared = space.device_memory(64);
  run_and_finish(space, 16, affine_body{reinterpret_cast<std::uint32_t*>(cleared.get()), 1, 9});
  CHECK_FALSE(space.capturing(stream));

  space.begin_capture(stream);
  CHECK(space.capturing(stream));
  space.run(stream, 3, affine_body{x.data(), 2, 1});
  space.wait(side, space.record(stream));
  space.run(side, 1, affine_body{x.data(), 3, 5});
  space.zero(side, cleared.get(), 32);
  space.wait(stream, space.record(side));
  space.run(stream, 3, affine_body{x.data(), 7, 2});
  auto const graph = space.end_capture(stream);
  CHECK_FALSE(space.capturing(stream));
  CHECK_FALSE(space.capturing(side));
  CHECK(x[0] == 0);

  std::uint32_t a = 0;
  std::uint32_t b = 0;
  for (int launch = 0; launch < 3; ++launch) {
    space.launch(stream, graph);
    a = ((a * 2 + 1) * 3 + 5) * 7 + 2;
    b = (b * 2 + 1) * 7 + 2;
  }
  finish(space, stream);
  CHECK(x[0] == a);
  CHECK(x[1] == b);
  CHECK(x[2] == b);
  std::uint32_t words[16];
  space.peek(words, cleared.get(), sizeof(words));
  CHECK(std::all_of(words, words + 8, [](std::uint32_t w) { return w == 0; }));
  CHECK(std::all_of(words + 8, words + 16, [](std::uint32_t w) { return w == 9; }));
}

TEST_CASE_TEMPLATE("memory starts as zeros and is cleared in stream order", S, EBB_SPACES) {
  auto const space = make_space<S>();
  auto const stream = space.make_stream();
  auto const memory = space.device_memory(100 * sizeof(std::uint32_t));
  auto* const x = reinterpret_cast<std::uint32_t*>(memory.get());
  std::vector<std::uint32_t> seen(100, 1);
  space.peek(seen.data(), x, 400);
  CHECK(seen == std::vector<std::uint32_t>(100, 0));
  space.run(stream, 100, affine_body{x, 0, 4});
  space.zero(stream, x + 10, 40);
  space.zero(stream, x, 0);
  space.run(stream, 100, affine_body{x, 2, 1});
  finish(space, stream);
  space.peek(seen.data(), x, 400);
  for (int i = 0; i < 100; ++i) CHECK(seen[static_cast<std::size_t>(i)] == (i >= 10 && i < 20 ? 1u : 9u));
}

TEST_CASE_TEMPLATE("history memory that cannot be had is refused with a sentence", S, EBB_SPACES) {
  auto const space = make_space<S>();
  for (auto const kind : {ebb::host_kind::managed, ebb::host_kind::pinned}) {
    CHECK_THROWS_AS(space.history_memory(std::size_t{1} << 50, kind), std::runtime_error);
  }
  CHECK_FALSE(space.refuses_copy(ebb::copy_kind::backup, 0, 0));
  auto const range = ebb::named_range(space, "nothing");
}

#if defined(__CUDACC__)
TEST_CASE("the default stream and a handle of none are refused, the engine's own is taken") {
  auto const space = make_space<ebb::cuda_space>();
  shared_array<std::uint32_t> x{space, 1};
  CHECK_THROWS_AS(ebb::cuda_stream{cudaStreamLegacy}, std::invalid_argument);
  CHECK_THROWS_AS(space.run(ebb::cuda_stream{}, 1, ebb::empty_body{}), std::invalid_argument);
  cudaStream_t mine = nullptr;
  CHECK_THROWS_AS(space.record(mine), std::invalid_argument);
  ebb::check(cudaStreamCreateWithFlags(&mine, cudaStreamNonBlocking));
  space.run(mine, 1, affine_body{x.data(), 1, 8});
  space.synchronize(space.record(mine));
  CHECK(x[0] == 8);
  ebb::check(cudaStreamDestroy(mine));
}

TEST_CASE("a failed call says its name, its text and its place, and is not remembered") {
  CHECK_THROWS_WITH(ebb::check(cudaErrorInvalidValue), doctest::Contains("cudaErrorInvalidValue: invalid argument"));
  CHECK_THROWS_WITH(ebb::check(cudaErrorInvalidValue), doctest::Contains("spaces.cpp"));
  auto const space = make_space<ebb::cuda_space>();
  CHECK_THROWS_WITH(space.device_memory(std::size_t{1} << 50), doctest::Contains("ebb: device memory: wanted"));
  CHECK(cudaGetLastError() == cudaSuccess);
}
#endif

}  // namespace spaces_test

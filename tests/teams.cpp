/// Teams of the host spaces: collectives, words, shared memory, items, failures.
#include <ebb/host/serial_space.hpp>
#include <ebb/host/thread_space.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

using serial_space = ebb::serial_space;
using threads_1 = ebb::thread_space<1, 3>;
using threads_4 = ebb::thread_space<4>;
using threads_7 = ebb::thread_space<7, 1>;
using blocks_2 = ebb::thread_space<8, 2, 2>;
using blocks_4 = ebb::thread_space<4, 1, 4>;
#define SPACES serial_space, threads_1, threads_4, threads_7, blocks_2, blocks_4

/// Counts, per item, in how many rounds a lane was told something else than what the votes say.
struct vote_body {
  std::uint32_t* wrong;
  template <ebb::team T>
  void operator()(T const& t, int item) const {
    for (int round = 0; round < 50; ++round) {
      auto const votes = [&](int lane) { return (lane * 7 + round + item) % 3 == 0; };
      int before = 0, all = 0;
      for (int lane = 0; lane < T::width; ++lane) {
        if (lane < t.rank()) before += votes(lane);
        all += votes(lane);
      }
      ebb::vote const v = t.prefix(votes(t.rank()));
      if (v.before != before || v.all != all || t.any(votes(t.rank())) != (all > 0)) t.add(wrong + item, 1u);
    }
  }
};

/// Every lane writes its cell without atomics and, behind a collective, reads all of them.
struct exchange_body {
  struct shared {
    int cell[16];
  };
  std::uint32_t* wrong;
  template <ebb::team T>
  void operator()(T const& t, int item, shared& s) const {
    for (int round = 0; round < 20; ++round) {
      s.cell[t.block_rank()] = round * 100 + t.block_rank() + item;
      if (round % 4 == 0) t.sync();
      if (round % 4 == 1) t.prefix(true);
      if (round % 4 == 2) t.any(false);
      if (round % 4 == 3) t.block_sync();
      for (int lane = 0; lane < T::block_width; ++lane) {
        if (s.cell[lane] != round * 100 + lane + item) t.add(wrong + item, 1u);
      }
      t.sync();
    }
  }
};

/// Every lane counts itself and writes its place; blocks have equal widths, and ranks go round them.
struct places_body {
  std::uint32_t* lanes;   ///< [items][blocks][block width]
  std::uint64_t* counts;  ///< [items]
  std::uint32_t* words;   ///< [items][width]
  std::uint32_t* wrong;
  template <ebb::team T>
  void operator()(T const& t, int item) const {
    t.add(lanes + (item * T::blocks + t.block()) * T::block_width + t.block_rank(), 1u);
    t.add_all(counts + item, static_cast<std::uint32_t>(t.rank()));
    t.store(words + item * T::width + t.rank(), static_cast<std::uint32_t>(t.rank()) + 1);
    t.sync();
    for (int lane = 0; lane < T::width; ++lane) {
      if (t.load(words + item * T::width + lane) != static_cast<std::uint32_t>(lane) + 1) t.add(wrong, 1u);
    }
    t.sync_or_leave(t.block() == 0);
    std::uint32_t const mine = static_cast<std::uint32_t>(100 + t.rank());
    if (t.exchange(words + item * T::width + t.rank(), static_cast<std::uint32_t>(t.rank()) + 1, mine) != mine - 99)
      t.add(wrong, 1u);
    if (t.exchange(words + item * T::width + t.rank(), 0, 7) != mine) t.add(wrong, 1u);
  }
};

/// Counts the bytes of shared memory that are not poison, and leaves it full of something else.
struct poison_body {
  struct shared {
    std::uint8_t bytes[200];
  };
  std::uint32_t* wrong;
  template <ebb::team T>
  void operator()(T const& t, int item, shared& s) const {
    for (int i = t.rank(); i < 200; i += T::width) {
      if (s.bytes[i] != 0xA5) t.add(wrong + item, 1u);
      s.bytes[i] = 0;
    }
  }
};

struct word_body {
  std::uint32_t* sum;
  std::uint64_t* wide;
  std::uint32_t* taken;  ///< [lanes]
  std::uint32_t* lock;
  std::byte* bytes;  ///< 32, aligned to 16
  template <ebb::team T>
  void operator()(T const& t, int) const {
    t.add(sum, 2u);
    t.add(wide, std::uint64_t{1} << 40);
    if (t.exchange(lock, 0, 1) == 0) t.add(taken, 1u);
    std::uint32_t set[4];
    t.load_set(lock, 1, set);
    if (set[0] != 1) t.add(sum, 1000u);
    if (t.rank() == 0) t.template copy<16>(bytes + 16, bytes);
  }
};

struct count_body {
  std::uint32_t* lanes;  ///< [items]
  template <ebb::team T>
  void operator()(T const& t, int item) const {
    t.add(lanes + item, 1u);
  }
};

/// One lane of one item throws between two collectives that the others reach.
struct throwing_body {
  int item_that_throws;
  template <ebb::team T>
  void operator()(T const& t, int item) const {
    t.sync();
    if (item == item_that_throws && t.rank() == T::width - 1) throw std::out_of_range{"no such row"};
    for (int i = 0; i < 5; ++i) t.any(true);
  }
};

/// Which items ran, in which order they started.
struct order_body {
  std::vector<int>* started;
  std::mutex* guard;
  template <ebb::team T>
  void operator()(T const& t, int item) const {
    if (t.rank() != 0) return;
    std::lock_guard const lock{*guard};
    started->push_back(item);
  }
};

/// Ends only if two items are running at the same time.
struct meeting_body {
  std::atomic<int>* met;
  template <ebb::team T>
  void operator()(T const& t, int) const {
    if (t.rank() != 0) return;
    ++*met;
    while (met->load() < 2) std::this_thread::yield();
  }
};

}  // namespace

TEST_CASE_TEMPLATE("votes count the lanes before this one and all lanes, in every round", S, SPACES) {
  S const space;
  std::vector<std::uint32_t> wrong(9, 0);
  space.run(space.make_stream(), 9, vote_body{wrong.data()});
  CHECK(wrong == std::vector<std::uint32_t>(9, 0));
}

TEST_CASE_TEMPLATE("every lane has a place of its own in a block, and sees what all wrote", S, SPACES) {
  S const space;
  std::vector<std::uint32_t> lanes(9 * 8, 0), words(9 * 8, 0), wrong(1, 0);
  std::vector<std::uint64_t> counts(9, 0);
  space.run(space.make_stream(), 9, places_body{lanes.data(), counts.data(), words.data(), wrong.data()});
  CHECK(wrong[0] == 0);
  auto const width = static_cast<std::size_t>(std::count(lanes.begin(), lanes.end(), 1u)) / 9;
  CHECK(static_cast<std::size_t>(std::count(lanes.begin(), lanes.end(), 0u)) == lanes.size() - 9 * width);
  CHECK(counts == std::vector<std::uint64_t>(9, width * (width - 1) / 2));
}

TEST_CASE_TEMPLATE("what a lane wrote before a collective is there for every lane behind it", S, SPACES) {
  S const space;
  std::vector<std::uint32_t> wrong(9, 0);
  space.run(space.make_stream(), 9, exchange_body{wrong.data()});
  CHECK(wrong == std::vector<std::uint32_t>(9, 0));
}

TEST_CASE_TEMPLATE("shared memory is poisoned before every item", S, SPACES) {
  S const space;
  std::vector<std::uint32_t> wrong(9, 0);
  space.run(space.make_stream(), 9, poison_body{wrong.data()});
  CHECK(wrong == std::vector<std::uint32_t>(9, 0));
}

TEST_CASE_TEMPLATE("words are atomic across the lanes of all teams", S, SPACES) {
  S const space;
  std::uint32_t sum = 0, taken = 0, lock = 0;
  std::uint64_t wide = 0;
  alignas(16) std::byte bytes[32]{std::byte{7}};
  space.run(space.make_stream(), 1, word_body{&sum, &wide, &taken, &lock, bytes});
  auto const lanes = sum / 2;
  CHECK(sum % 2 == 0);
  CHECK(wide == std::uint64_t{lanes} << 40);
  CHECK(taken == 1);
  CHECK(bytes[16] == std::byte{7});
}

TEST_CASE_TEMPLATE("every lane runs every item once, for any number of items", S, SPACES) {
  S const space;
  auto const stream = space.make_stream();
  std::uint32_t width = 0;
  space.run(stream, 1, count_body{&width});
  for (int items : {0, 1, 2, 3, 5, 64}) {
    std::vector<std::uint32_t> lanes(static_cast<std::size_t>(items) + 1, 0);
    space.run(stream, items, count_body{lanes.data()});
    CHECK(std::count(lanes.begin(), lanes.end(), width) == items);
    CHECK(lanes.back() == 0);
  }
  CHECK(space.runs() == 6);
  CHECK_THROWS_WITH_AS(space.run(stream, -1, count_body{nullptr}), "run: items is -1, allowed is 0 or more",
                       std::invalid_argument);
}

TEST_CASE_TEMPLATE("an exception in one lane reaches the caller, and the space runs on", S, SPACES) {
  S const space;
  auto const stream = space.make_stream();
  for (int round = 0; round < 20; ++round) {
    CHECK_THROWS_WITH_AS(space.run(stream, 5, throwing_body{round % 5}), "no such row", std::out_of_range);
    CHECK(space.reached(space.record(stream)));
    std::vector<std::uint32_t> wrong(4, 0);
    space.run(stream, 4, vote_body{wrong.data()});
    CHECK(wrong == std::vector<std::uint32_t>(4, 0));
  }
}

TEST_CASE_TEMPLATE("a deferred space reports an exception to the call that advances", S, SPACES) {
  S const space{ebb::host::deferred{3}};
  auto const stream = space.make_stream();
  space.run(stream, 1, throwing_body{0});
  auto const end = space.record(stream);
  CHECK_THROWS_AS(space.synchronize(end), std::out_of_range);
  space.synchronize(end);
  CHECK(space.reached(end));
}

TEST_CASE_TEMPLATE("the items of a deferred run are all there, in an order that the seed decides", S, serial_space,
                   threads_7) {
  auto const order = [](std::uint64_t seed) {
    S const space{ebb::host::deferred{seed}};
    std::vector<int> started;
    std::mutex guard;
    space.run(space.make_stream(), 6, order_body{&started, &guard});
    CHECK(started.empty());
    space.drain();
    return started;
  };
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    auto started = order(seed);
    CHECK(started == order(seed));
    orders.insert(started);
    std::sort(started.begin(), started.end());
    CHECK(started == std::vector<int>{0, 1, 2, 3, 4, 5});
  }
  CHECK(orders.size() > 30);
}

TEST_CASE("two teams run at once, each with shared memory of its own") {
  ebb::thread_space<2> const space;
  std::atomic<int> met{0};
  space.run(space.make_stream(), 2, meeting_body{&met});
  CHECK(met == 2);
}

TEST_CASE("copies of a thread_space share its threads, and work outlives the copy that enqueued it") {
  ebb::thread_space<4> const space{ebb::host::deferred{1}};
  std::uint32_t lanes = 0;
  auto const stream = space.make_stream();
  {
    auto const copy = space;
    copy.run(stream, 1, count_body{&lanes});
  }
  space.drain();
  CHECK(lanes == 4);
}

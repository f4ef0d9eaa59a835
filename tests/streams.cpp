/// Queues, events, gates, graphs, memory and hooks of the host spaces.
#include <ebb/host/serial_space.hpp>
#include <ebb/host/thread_space.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using ebb::host::deferred;
using serial_space = ebb::serial_space;
using thread_space = ebb::thread_space<3>;
#define SPACES serial_space, thread_space

/// Multiplies and adds, so that the result tells the order of the bodies.
struct step_body {
  std::int64_t* value;
  int digit;
  template <ebb::team T>
  void operator()(T const& t, int) const {
    if (t.rank() == 0) *value = *value * 10 + digit;
  }
};

struct copy_body {
  std::int64_t* to;
  std::int64_t const* from;
  template <ebb::team T>
  void operator()(T const& t, int) const {
    if (t.rank() == 0) *to = *from;
  }
};

}  // namespace

TEST_CASE_TEMPLATE("work runs when it is enqueued", S, SPACES) {
  S const space;
  auto const stream = space.make_stream();
  std::int64_t value = 0;
  space.run(stream, 1, step_body{&value, 1});
  CHECK(value == 1);
  space.call(stream, [&] { value += 100; });
  CHECK(value == 101);
  CHECK(space.reached(space.record(stream)));
  space.zero(stream, &value, sizeof value);
  CHECK(value == 0);
  CHECK(space.runs() == 1);
  CHECK(space.pending() == 0);
  CHECK_FALSE(space.advance());
}

TEST_CASE("a default event is already reached, and waiting for it enqueues nothing") {
  serial_space const space{deferred{1}};
  auto const stream = space.make_stream();
  CHECK(space.reached({}));
  space.synchronize({});
  space.wait(stream, {});
  CHECK(space.pending() == 0);
}

TEST_CASE_TEMPLATE("a closed gate keeps its stream, and those that wait for it, until it opens", S, SPACES) {
  S const space;
  auto const first = space.make_stream(), second = space.make_stream(), other = space.make_stream();
  std::int64_t value = 0, beside = 0;
  space.run(first, 1, step_body{&value, 1});
  auto gate = space.close_gate(first);
  space.run(first, 1, step_body{&value, 2});
  auto const after = space.record(first);
  space.wait(second, after);
  space.run(second, 1, step_body{&value, 3});
  space.run(other, 1, step_body{&beside, 9});
  CHECK(value == 1);
  CHECK(beside == 9);
  CHECK_FALSE(space.reached(after));
  gate.open();
  CHECK(value == 123);
  CHECK(space.reached(after));
  gate.open();
  CHECK(space.pending() == 0);
}

TEST_CASE("gates of one stream open in any order, and all of them count") {
  serial_space const space;
  auto const stream = space.make_stream();
  std::int64_t value = 0;
  auto one = space.close_gate(stream), two = space.close_gate(stream);
  space.run(stream, 1, step_body{&value, 1});
  two.open();
  CHECK(value == 0);
  one.open();
  CHECK(value == 1);
}

TEST_CASE("a gate that is destroyed lets its stream go on with the next call") {
  serial_space const space;
  auto const stream = space.make_stream();
  std::int64_t value = 0;
  {
    auto const gate = space.close_gate(stream);
    space.run(stream, 1, step_body{&value, 1});
  }
  CHECK(value == 0);
  space.synchronize(space.record(stream));
  CHECK(value == 1);
}

TEST_CASE("a gate may outlive its space, and be moved and replaced") {
  std::int64_t value = 0;
  std::optional<serial_space> space{serial_space{}};
  auto const stream = space->make_stream();
  auto gate = space->close_gate(stream);
  auto moved = std::move(gate);
  space->run(stream, 1, step_body{&value, 1});
  gate = std::move(moved);
  gate.open();
  CHECK(value == 1);
  gate = space->close_gate(stream);
  space->run(stream, 1, step_body{&value, 2});
  space.reset();
  CHECK(value == 1);
  gate.open();
  CHECK(value == 12);
}

TEST_CASE_TEMPLATE("synchronize names the closed gate that the event stands behind", S, SPACES) {
  for (bool const later : {false, true}) {
    S const space = later ? S{deferred{5}} : S{};
    auto const first = space.make_stream(), second = space.make_stream();
    auto gate = space.close_gate(first, "backup");
    space.wait(second, space.record(first));
    auto const end = space.record(second);
    CHECK_THROWS_WITH_AS(space.synchronize(end),
                         "synchronize: the event behind operation 2 of stream 1 cannot be reached: stream 0 waits at "
                         "the closed gate 'backup'",
                         std::runtime_error);
    gate.open();
    space.synchronize(end);
    CHECK(space.reached(end));
  }
}

TEST_CASE_TEMPLATE("a deferred space runs nothing until it is advanced, one operation at a time", S, SPACES) {
  S const space{deferred{1}};
  auto const stream = space.make_stream();
  std::int64_t value = 0;
  CHECK_FALSE(space.advance());
  space.run(stream, 1, step_body{&value, 1});
  auto const middle = space.record(stream);
  space.run(stream, 1, step_body{&value, 2});
  CHECK(value == 0);
  CHECK_FALSE(space.reached(middle));
  CHECK(space.pending() == 3);
  CHECK(space.advance());
  CHECK(value == 1);
  CHECK_FALSE(space.reached(middle));
  CHECK(space.advance());
  CHECK(space.reached(middle));
  space.drain();
  CHECK(value == 12);
  CHECK_FALSE(space.advance());
}

TEST_CASE("synchronize runs no more than the seed puts before the event") {
  bool left = false;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    serial_space const space{deferred{seed}};
    auto const stream = space.make_stream(), other = space.make_stream();
    std::int64_t value = 0;
    space.run(stream, 1, step_body{&value, 1});
    auto const end = space.record(stream);
    space.run(stream, 1, step_body{&value, 2});
    for (int i = 0; i < 20; ++i) space.call(other, [] {});
    space.synchronize(end);
    CHECK(space.reached(end));
    CHECK(value == 1);
    left = left || space.pending() > 1;
  }
  CHECK(left);
}

TEST_CASE("streams stay in order, waits are kept, and a seed decides the rest") {
  auto const trace = [](std::uint64_t seed) {
    serial_space const space{deferred{seed}};
    std::vector<int> order;
    std::vector<ebb::host::stream> streams;
    for (int s = 0; s < 3; ++s) streams.push_back(space.make_stream());
    ebb::host::event middle;
    for (int i = 0; i < 8; ++i) {
      for (int s = 0; s < 3; ++s) {
        if (i == 4 && s == 0) middle = space.record(streams[0]);
        if (i == 4 && s == 2) space.wait(streams[2], middle);
        space.call(streams[static_cast<std::size_t>(s)], [&order, s, i] { order.push_back(s * 10 + i); });
      }
    }
    space.drain();
    CHECK(space.pending() == 0);
    return order;
  };
  std::set<std::vector<int>> orders;
  int farthest = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    auto const order = trace(seed);
    CHECK(order == trace(seed));
    orders.insert(order);
    auto const at = [&](int what) { return std::find(order.begin(), order.end(), what) - order.begin(); };
    for (int s = 0; s < 3; ++s) {
      for (int i = 1; i < 8; ++i) CHECK(at(s * 10 + i - 1) < at(s * 10 + i));
    }
    CHECK(at(3) < at(24));
    farthest += at(17) < at(0);
  }
  CHECK(orders.size() > 50);
  CHECK(farthest > 0);  // in some seed a whole stream was done before another one began
}

TEST_CASE("a wait sees what was enqueued before the event, not what came later") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    serial_space const space{deferred{seed}};
    auto const first = space.make_stream(), second = space.make_stream();
    std::int64_t value = 0, seen = 0;
    space.run(first, 1, step_body{&value, 1});
    space.wait(second, space.record(first));
    space.run(second, 1, copy_body{&seen, &value});
    space.wait(first, space.record(second));
    space.run(first, 1, step_body{&value, 2});
    space.drain();
    CHECK(seen == 1);
    CHECK(value == 12);
  }
}

TEST_CASE("work that an operation enqueues or opens runs after it") {
  serial_space const space;
  auto const stream = space.make_stream(), other = space.make_stream();
  std::vector<int> order;
  auto gate = space.close_gate(other);
  space.call(other, [&] { order.push_back(3); });
  space.call(stream, [&] {
    space.call(stream, [&] { order.push_back(2); });
    gate.open();
    CHECK_THROWS_AS(space.synchronize(space.record(stream)), std::runtime_error);
    order.push_back(1);
  });
  std::sort(order.begin() + 1, order.end());  // the two streams are free
  CHECK(order == std::vector<int>{1, 2, 3});
}

TEST_CASE_TEMPLATE("a graph repeats bodies with the arguments they were captured with", S, SPACES) {
  S const space;
  auto const stream = space.make_stream(), elsewhere = space.make_stream();
  std::int64_t value = 0;
  CHECK_FALSE(space.capturing(stream));
  space.begin_capture(stream);
  CHECK(space.capturing(stream));
  CHECK_FALSE(space.capturing(elsewhere));
  for (int digit = 1; digit <= 3; ++digit) space.run(stream, 1, step_body{&value, digit});
  auto const graph = space.end_capture(stream);
  CHECK_FALSE(space.capturing(stream));
  CHECK(value == 0);
  CHECK(space.runs() == 0);
  CHECK(graph.runs() == 3);
  space.launch(stream, graph);
  CHECK(value == 123);
  auto const copy = graph;
  space.launch(elsewhere, copy);
  CHECK(value == 123'123);
  CHECK(space.runs() == 6);
}

TEST_CASE("a launched graph stands in its stream like other work") {
  serial_space const space;
  auto const stream = space.make_stream();
  std::int64_t value = 0;
  space.begin_capture(stream);
  space.zero(stream, &value, sizeof value);
  space.run(stream, 1, step_body{&value, 7});
  auto const graph = space.end_capture(stream);
  auto gate = space.close_gate(stream);
  space.launch(stream, graph);
  space.run(stream, 1, step_body{&value, 8});
  CHECK(value == 0);
  gate.open();
  CHECK(value == 78);
}

TEST_CASE_TEMPLATE("a stream that waits for a captured event joins the capture, and every launch keeps its waits", S,
                   SPACES) {
  std::set<std::int64_t> between;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    S const space{deferred{seed}};
    auto const stream = space.make_stream(), side = space.make_stream();
    std::int64_t main = 0, copied = 0, last = 0, raced = 0;
    space.begin_capture(stream);
    space.run(stream, 1, step_body{&main, 1});
    space.wait(side, space.record(stream));
    CHECK(space.capturing(side));
    space.run(side, 1, copy_body{&copied, &main});
    auto const join = space.record(side);
    space.run(stream, 1, copy_body{&raced, &copied});  // before or after the copy
    space.wait(stream, join);
    space.run(stream, 1, copy_body{&last, &copied});
    auto const graph = space.end_capture(stream);
    CHECK_FALSE(space.capturing(side));
    CHECK(space.pending() == 0);
    for (int launch = 0; launch < 3; ++launch) {
      space.launch(stream, graph);
      if (seed % 2 == 0) space.drain();
    }
    space.drain();
    CHECK(main == 111);
    CHECK(copied == 111);
    CHECK(last == 111);
    between.insert(raced);
    CHECK((raced == 11 || raced == 111));
  }
  CHECK(between.size() == 2);
}

TEST_CASE("graphs launched on several streams at once never block each other for good") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    serial_space const space{deferred{seed}};
    auto const one = space.make_stream(), two = space.make_stream(), side = space.make_stream();
    std::int64_t value = 0;
    space.begin_capture(one);
    space.wait(side, space.record(one));
    space.run(side, 1, step_body{&value, 1});
    space.wait(one, space.record(side));
    auto const graph = space.end_capture(one);
    auto gate = space.close_gate(one);
    space.launch(one, graph);
    space.launch(two, graph);
    space.drain();
    CHECK(value == 0);  // launches of one graph follow each other
    gate.open();
    space.drain();
    CHECK(value == 11);
    CHECK(space.pending() == 0);
  }
}

TEST_CASE("a capture and the world outside it cannot wait for each other") {
  serial_space const space;
  auto const stream = space.make_stream(), side = space.make_stream(), other = space.make_stream();
  auto const outside = space.record(other);
  space.begin_capture(stream);
  auto const inside = space.record(stream);
  space.wait(stream, {});
  CHECK_THROWS_WITH_AS(space.wait(stream, outside),
                       "stream 0 is being captured: it cannot wait for an event that was recorded outside the capture",
                       std::logic_error);
  CHECK_THROWS_AS((void)space.reached(inside), std::logic_error);
  CHECK_THROWS_AS(space.synchronize(inside), std::logic_error);
  CHECK_THROWS_AS((void)space.close_gate(stream), std::logic_error);
  CHECK_THROWS_AS(space.begin_capture(stream), std::logic_error);
  CHECK_THROWS_AS((void)space.end_capture(other), std::logic_error);
  CHECK(space.reached(outside));

  space.begin_capture(other);
  CHECK_THROWS_WITH_AS(space.wait(other, inside), "stream 2 cannot wait for an event of another capture",
                       std::logic_error);
  auto const empty = space.end_capture(other);
  CHECK_THROWS_AS(space.launch(stream, empty), std::logic_error);
  space.launch(other, empty);

  space.wait(side, inside);
  CHECK_THROWS_AS((void)space.end_capture(side), std::logic_error);
  auto const graph = space.end_capture(stream);
  CHECK(graph.runs() == 0);
  CHECK_THROWS_WITH_AS(space.wait(other, inside), "stream 2 cannot wait for an event of a capture that has ended",
                       std::logic_error);
}

TEST_CASE("captured work of a forked stream that is not joined ends the capture with an error") {
  serial_space const space;
  auto const stream = space.make_stream(), side = space.make_stream(), third = space.make_stream();
  std::int64_t value = 0;
  space.begin_capture(stream);
  space.wait(side, space.record(stream));
  space.wait(third, space.record(side));
  space.run(side, 1, step_body{&value, 1});
  space.run(third, 1, step_body{&value, 2});
  space.wait(side, space.record(third));
  space.wait(stream, space.record(side));  // joins the third stream too
  space.run(side, 1, step_body{&value, 3});
  CHECK_THROWS_WITH_AS((void)space.end_capture(stream),
                       "end_capture: stream 1 has captured work that stream 0 does not wait for", std::logic_error);
  CHECK_FALSE(space.capturing(stream));
  CHECK_FALSE(space.capturing(side));
  CHECK_FALSE(space.capturing(third));
  space.run(side, 1, step_body{&value, 4});
  CHECK(value == 4);
}

TEST_CASE_TEMPLATE("memory is zeroed, aligned, counted, and outlives its space", S, SPACES) {
  std::vector<std::shared_ptr<std::byte>> all;
  {
    S const space;
    for (std::size_t const bytes : {std::size_t{0}, std::size_t{1}, std::size_t{257}, std::size_t{3'000'001}}) {
      auto const dirt = space.device_memory(bytes);
      std::memset(dirt.get(), 0x5A, bytes);
      all.push_back(space.device_memory(bytes));
      all.push_back(space.shared_memory(bytes));
      all.push_back(space.history_memory(bytes, ebb::host_kind::managed));
      for (auto i = all.size() - 3; i < all.size(); ++i) {
        CHECK(reinterpret_cast<std::uintptr_t>(all[i].get()) % 256 == 0);
        CHECK(std::all_of(all[i].get(), all[i].get() + bytes, [](std::byte b) { return b == std::byte{0}; }));
      }
    }
    CHECK(space.allocations() == 16);
    std::int64_t from = 5, to = 0;
    space.peek(&to, &from, sizeof to);
    CHECK(to == 5);
  }
  all.back().get()[3'000'000] = std::byte{1};
}

TEST_CASE("history memory beyond the limit is refused with what was wanted and what there is") {
  serial_space const space;
  space.limit_history(1000, "memlock");
  auto held = space.history_memory(600, ebb::host_kind::pinned);
  auto const copy = held;
  CHECK_THROWS_WITH_AS((void)space.history_memory(401, ebb::host_kind::pinned),
                       "history_memory: 401 bytes wanted, 400 available (memlock)", std::runtime_error);
  CHECK(space.history_memory(400, ebb::host_kind::managed));
  held.reset();
  CHECK_THROWS_AS((void)space.history_memory(401, ebb::host_kind::pinned), std::runtime_error);
  space.limit_history(100, "memlock");
  CHECK_THROWS_WITH_AS((void)space.history_memory(1, ebb::host_kind::pinned),
                       "history_memory: 1 bytes wanted, 0 available (memlock)", std::runtime_error);
  space.limit_history(~std::size_t{0}, "");
  CHECK_THROWS_AS((void)space.history_memory(std::size_t{1} << 60, ebb::host_kind::managed), std::runtime_error);
}

TEST_CASE("a test decides which copies are refused, for all copies of the space") {
  serial_space const space;
  auto const copy = space;
  CHECK_FALSE(space.refuses_copy(ebb::copy_kind::backup, 1, 2));
  space.refuse_copies(
      [](ebb::copy_kind kind, int slot, int page) { return kind == ebb::copy_kind::backup && slot == 1 && page == 2; });
  CHECK(copy.refuses_copy(ebb::copy_kind::backup, 1, 2));
  CHECK_FALSE(copy.refuses_copy(ebb::copy_kind::refill, 1, 2));
  space.refuse_copies(nullptr);
  CHECK_FALSE(copy.refuses_copy(ebb::copy_kind::backup, 1, 2));
}

TEST_CASE("a space may be destroyed with work that never ran") {
  auto const witness = std::make_shared<int>(0);
  {
    serial_space const space{deferred{1}};
    auto const stream = space.make_stream();
    space.call(stream, [witness] { ++*witness; });
    CHECK(witness.use_count() == 2);
  }
  CHECK(witness.use_count() == 1);
  CHECK(*witness == 0);
}

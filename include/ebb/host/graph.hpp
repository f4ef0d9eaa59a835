#pragma once
/// Work recorded from queues, to be enqueued again and again.

#include <ebb/host/queue.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ebb::host {

/// A capture in progress: one lane per stream that takes part, the first one is where it began. Waits name a lane by
/// its stream.
struct recording {
  struct lane {
    queue* from;
    std::vector<operation> work{};
  };
  std::uint64_t number;
  std::vector<lane> lanes;

  std::size_t lane_of(queue const* stream) const {
    return static_cast<std::size_t>(
        std::find_if(lanes.begin(), lanes.end(), [=](lane const& l) { return l.from == stream; }) - lanes.begin());
  }

  /// Records an operation of a stream that takes part; the event behind it.
  event add(queue const& stream, operation what) {
    auto& work = lanes[lane_of(&stream)].work;
    work.push_back(std::move(what));
    return {&stream, work.size(), number};
  }

  /// The first stream with work that the end of the first lane does not wait for; null if there is none.
  queue const* not_joined() const {
    std::vector<std::size_t> joined(lanes.size(), 0);
    joined.front() = lanes.front().work.size();
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t l = 0; l < lanes.size(); ++l) {
        for (std::size_t i = 0; i < joined[l]; ++i) {
          operation const& each = lanes[l].work[i];
          if (each.what != act::wait) continue;
          std::size_t& other = joined[lane_of(each.until.in)];
          if (other >= each.until.position) continue;
          other = each.until.position;
          changed = true;
        }
      }
    }
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      for (std::size_t i = joined[l]; i < lanes[l].work.size(); ++i) {
        if (lanes[l].work[i].what == act::run || lanes[l].work[i].what == act::call) return lanes[l].from;
      }
    }
    return nullptr;
  }
};

/// A finished capture: bodies and their arguments by value. Any number of launches, on any stream of the space.
/// Forked streams have queues of the graph's own when it is launched, so launches of one graph follow each other there.
class graph {
 public:
  graph(recording recorded, std::vector<queue*> side) : recorded_{std::move(recorded)}, side_{std::move(side)} {}

  /// Bodies that one launch runs.
  int runs() const {
    int n = 0;
    for (auto const& lane : recorded_.lanes) {
      n += static_cast<int>(
          std::count_if(lane.work.begin(), lane.work.end(), [](operation const& o) { return o.what == act::run; }));
    }
    return n;
  }

  /// Hands every operation to `push(queue&, operation)`, those of the first lane for `onto`, with their waits renamed.
  template <class Push>
  void launch(queue& onto, Push push) const {
    std::vector<event> start;
    for (std::size_t l = 0; l < recorded_.lanes.size(); ++l) {
      queue const& to = l == 0 ? onto : *side_[l - 1];
      start.push_back({&to, to.enqueued()});
    }
    for (std::size_t l = 0; l < recorded_.lanes.size(); ++l) {
      for (operation each : recorded_.lanes[l].work) {
        if (each.what == act::wait) {
          event const& base = start[recorded_.lane_of(each.until.in)];
          each.until = {base.in, base.position + each.until.position};
        }
        push(l == 0 ? onto : *side_[l - 1], std::move(each));
      }
    }
  }

 private:
  recording recorded_;
  std::vector<queue*> side_;
};

}  // namespace ebb::host

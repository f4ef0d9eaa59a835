#pragma once
/// How everything is timed: a graph of calls, or one call at a time behind a swept L2.

#include <algorithm>
#include <vector>

#include "stopwatch.hpp"

namespace bench {

/// Writes `bytes` of device memory through the L2, as a model's layers do between two resolves.
struct sweep_body {
  static constexpr int items = 264;
  static constexpr int threads = 1024;
  std::uint64_t* memory;
  std::int64_t words;

  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    for (std::int64_t i = std::int64_t{item} * T::width + t.rank(); i < words; i += std::int64_t{items} * T::width)
      memory[i] += 1;
  }
};

inline double median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

/// Times calls on one stream. A graph's time is divided by its calls; a call behind a sweep is timed alone, and what an
/// empty kernel takes that way, less what it takes as a graph node, is taken off (`alone_us`).
template <ebb::space S>
class timing {
 public:
  timing(S space, std::size_t sweep_bytes) : space_{space}, on_{space.make_stream()}, bytes_{sweep_bytes} {
    memory_ = space.device_memory(sweep_bytes);
    std::vector<double> alone;
    auto const empty = [&](int) { space_.run(on_, 1, ebb::empty_body{}); };
    each(20, empty);
    graph_us_ = median({as_graph(20, empty), as_graph(20, empty), as_graph(20, empty)});
    alone_us_ = std::max(0.0, median({each(20, empty), each(20, empty), each(20, empty)}) - graph_us_);
  }

  S const& space() const { return space_; }
  typename S::stream on() const { return on_; }
  /// What one timing by events adds to a kernel.
  double alone_us() const { return alone_us_; }
  double empty_us() const { return graph_us_; }

  void sweep() const {
    space_.run(on_, sweep_body::items,
               sweep_body{reinterpret_cast<std::uint64_t*>(memory_.get()), static_cast<std::int64_t>(bytes_ / 8)});
  }
  auto capture(int calls, auto call) const {
    space_.begin_capture(on_);
    for (int c = 0; c < calls; ++c) call(c);
    return space_.end_capture(on_);
  }
  /// Time of one call of a captured graph of `calls`.
  template <class Graph>
  double launch(Graph const& graph, int calls) {
    sweep();
    watch_.start(space_, on_);
    space_.launch(on_, graph);
    watch_.stop(space_, on_);
    finish(space_, on_);
    return watch_.us() / calls;
  }
  double as_graph(int calls, auto call) { return launch(capture(calls, call), calls); }
  /// Time of one call, each alone behind a sweep; the mean.
  double swept(int calls, auto call) { return std::max(0.0, each(calls, call) - alone_us_); }
  /// Calls enqueued one by one, not captured, back to back.
  double eager(int calls, auto call) {
    sweep();
    watch_.start(space_, on_);
    for (int c = 0; c < calls; ++c) call(c);
    watch_.stop(space_, on_);
    finish(space_, on_);
    return watch_.us() / calls;
  }

 private:
  double each(int calls, auto call) {
    std::vector<stopwatch<S>> watches(static_cast<std::size_t>(calls));
    for (int c = 0; c < calls; ++c) {
      sweep();
      watches[static_cast<std::size_t>(c)].start(space_, on_);
      call(c);
      watches[static_cast<std::size_t>(c)].stop(space_, on_);
    }
    finish(space_, on_);
    double sum = 0;
    for (auto const& w : watches) sum += w.us();
    return sum / calls;
  }

  S space_;
  typename S::stream on_;
  std::size_t bytes_;
  std::shared_ptr<std::byte> memory_;
  stopwatch<S> watch_;
  double graph_us_ = 0;
  double alone_us_ = 0;
};

}  // namespace bench

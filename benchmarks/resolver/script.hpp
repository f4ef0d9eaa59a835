#pragma once
/// Selections of one pass: a few calls that warm the tables, then the calls of the graph.

#include <cstdint>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "cell.hpp"
#include "parallel.hpp"
#include "recorded.hpp"

namespace bench {

/// `[warm + calls][batch][queries][k]`.
struct script {
  int batch, queries, k, warm, calls;
  std::vector<std::int32_t> positions;

  int entries() const { return batch * queries * k; }
  std::int32_t* call(int c) { return positions.data() + std::int64_t{c} * entries(); }
  std::int32_t const* call(int c) const { return positions.data() + std::int64_t{c} * entries(); }
};

/// The numbers 0 … n − 1 in an order of its own for each seed, without a table: a Feistel network, walked until it
/// stays below n.
class shuffled {
 public:
  shuffled(std::uint32_t n, std::uint32_t seed) : n_{n}, seed_{seed} {
    while ((1ull << (2 * half_)) < n) ++half_;
  }
  std::uint32_t operator()(std::uint64_t i) const {
    std::uint32_t x = static_cast<std::uint32_t>(i % n_);
    do x = once(x);
    while (x >= n_);
    return x;
  }

 private:
  std::uint32_t once(std::uint32_t x) const {
    std::uint32_t const mask = (1u << half_) - 1;
    std::uint32_t left = x >> half_, right = x & mask;
    for (std::uint32_t round = 0; round < 4; ++round) {
      std::uint32_t h = (right ^ seed_) * 0x9e3779b1u + round * 0x85ebca77u;
      h = (h ^ (h >> 15)) * 0xc2b2ae3du;
      std::uint32_t const next = left ^ ((h ^ (h >> 13)) & mask);
      left = right;
      right = next;
    }
    return left << half_ | right;
  }
  std::uint32_t n_;
  std::uint32_t seed_;
  int half_ = 1;
};

/// Writes the scripts of a cell, pass after pass: no pass fetches a row that the one before fetched, as far as the
/// history goes.
class script_writer {
 public:
  /// `selectable`: positions 0 … selectable − 1 may be selected. Throws: std::runtime_error for a recorded pattern
  /// without recordings of this top-k.
  script_writer(setting const& s, cell const& c, int selectable, std::vector<recording> const& recorded)
      : cell_{c},
        k_{s.top_k},
        selectable_{selectable},
        recorded_{recorded},
        next_(static_cast<std::size_t>(c.batch), 0) {
    bool const recordings = c.select == pattern::recorded || c.select == pattern::gemma;
    if (recordings && (recorded.empty() || recorded.front().k < k_))
      throw std::runtime_error("recorded selections: none with top-k " + std::to_string(k_) + " was given");
    warm_ = s.whole ? 1 : recordings ? 4 : std::max(1, s.hot() / k_);
    std::int64_t const fresh = std::max(1, most_fresh());
    std::int64_t const room =
        (selectable - std::int64_t{warm_} * k_ * (c.select == pattern::disjoint ? c.queries : 1)) / fresh;
    std::int64_t const bytes = std::max<std::int64_t>(1, total_fresh()) * s.row_bytes;
    std::int64_t const all_calls = std::min<std::int64_t>({20, room, (std::int64_t{3} << 30) / bytes});
    calls_ = recordings ? 20 : static_cast<int>(std::clamp<std::int64_t>(all_calls, 4, 20));
  }
  int warm() const { return warm_; }
  int calls() const { return calls_; }

  script next() {
    script out{cell_.batch, cell_.queries, k_, warm_, calls_, {}};
    out.positions.resize(static_cast<std::size_t>(warm_ + calls_) * static_cast<std::size_t>(out.entries()));
    parallel_for(cell_.batch, [&](int r) {
      if (cell_.select == pattern::recorded || cell_.select == pattern::gemma) {
        play(out, r);
      } else {
        make(out, r);
      }
    });
    ++pass_;
    return out;
  }

 private:
  /// Rows of a request's call that were not used before.
  int fresh_of(int request) const {
    switch (cell_.select) {
      case pattern::fresh:
        return static_cast<int>(k_ * cell_.miss + 0.5);
      case pattern::disjoint:
        return k_ * cell_.queries;
      case pattern::skew:
        return request > 0 ? 0 : std::min(k_, static_cast<int>(k_ * cell_.miss * cell_.batch + 0.5));
      default:
        return 0;
    }
  }
  int most_fresh() const { return fresh_of(0); }
  std::int64_t total_fresh() const {
    std::int64_t n = 0;
    for (int r = 0; r < cell_.batch; ++r) n += fresh_of(r);
    return n;
  }

  void make(script& out, int request) {
    std::size_t const r = static_cast<std::size_t>(request);
    bool const apart = cell_.select == pattern::disjoint;
    int const width = apart ? k_ * cell_.queries : k_;
    shuffled const order{static_cast<std::uint32_t>(selectable_), static_cast<std::uint32_t>(request) * 977 + 3};
    std::mt19937 random{static_cast<std::uint32_t>(request * 131 + pass_)};
    std::vector<std::int32_t> now(static_cast<std::size_t>(width));
    for (int c = 0; c < warm_ + calls_; ++c) {
      int const fresh = c < warm_ || apart ? width : cell_.select == pattern::resident ? width : fresh_of(request);
      for (int i = 0; i < width; ++i) {
        int const j = i + static_cast<int>(random() % static_cast<std::uint32_t>(width - i));
        std::swap(now[static_cast<std::size_t>(i)], now[static_cast<std::size_t>(j)]);
        if (i < fresh) now[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(order(next_[r]++));
      }
      // The fresh ones go anywhere, too: real selections are not ordered by where a row is.
      for (int i = 0; i < fresh && fresh < width; ++i)
        std::swap(now[static_cast<std::size_t>(i)], now[random() % static_cast<std::uint32_t>(width)]);
      std::int32_t* const to = out.call(c) + std::int64_t{request} * cell_.queries * k_;
      for (int q = 0; q < cell_.queries; ++q)
        std::copy_n(now.data() + (apart ? q * k_ : 0), k_, to + std::int64_t{q} * k_);
    }
  }

  /// Requests play different layers, from different steps on; past the last step backwards, then forwards again.
  void play(script& out, int request) {
    recording const& from = recorded_[static_cast<std::size_t>(request) % recorded_.size()];
    stretch const place{from, selectable_};
    int const first = static_cast<int>(static_cast<std::size_t>(request) / recorded_.size()) * 5 + pass_ * 17;
    for (int c = 0; c < warm_ + calls_; ++c) {
      for (int q = 0; q < cell_.queries; ++q) {
        int const turn = (first + c * cell_.queries + q) % (2 * from.steps);
        auto const step = from.step(turn < from.steps ? turn : 2 * from.steps - 1 - turn);
        std::int32_t* const to = out.call(c) + (std::int64_t{request} * cell_.queries + q) * k_;
        for (int i = 0; i < k_; ++i) to[i] = place(step[static_cast<std::size_t>(i)]);
      }
    }
  }

  cell cell_;
  int k_;
  int selectable_;
  std::vector<recording> const& recorded_;
  std::vector<std::uint64_t> next_;
  int warm_ = 1;
  int calls_ = 1;
  int pass_ = 0;
};

}  // namespace bench

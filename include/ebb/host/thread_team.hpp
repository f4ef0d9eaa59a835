#pragma once
/// Real threads as the lanes of one team.

#include <ebb/team.hpp>

#include <atomic>
#include <barrier>
#include <optional>
#include <utility>

namespace ebb {

/// What the lanes of a thread_team have in common.
template <int W>
class team_board {
 public:
  /// Thrown out of a collective that another lane will never reach because its body threw.
  struct broken {};

  void sync() {
    barrier_->arrive_and_wait();
    if (broken_.load(std::memory_order_relaxed)) throw broken{};
  }

  /// Votes alternate between two places, so that one barrier is enough: who writes a place again has passed the barrier
  /// behind its readers.
  vote prefix(int rank, bool p) {
    int const turn = lanes_[rank].turn ^= 1;
    lanes_[rank].voted[turn] = p;
    sync();
    vote result{0, 0};
    for (int i = 0; i < W; ++i) {
      int const voted = lanes_[i].voted[turn];
      result.all += voted;
      if (i < rank) result.before += voted;
    }
    return result;
  }

  /// This lane is gone; the others leave their bodies at the next collective.
  void leave() {
    broken_.store(true, std::memory_order_relaxed);
    barrier_->arrive_and_drop();
  }

  /// As new. Requires: no lane is inside.
  void reset() {
    barrier_.emplace(W);
    for (lane& each : lanes_) each = {};
    broken_.store(false, std::memory_order_relaxed);
  }

 private:
  struct alignas(64) lane {
    int voted[2]{};
    int turn = 0;
  };
  std::optional<std::barrier<>> barrier_{std::in_place, W};
  lane lanes_[W]{};
  std::atomic<bool> broken_{false};
};

/// One lane of W. Concurrency: each lane is a thread of its own; collectives are barriers, everything else is
/// host_words.
template <int W>
class thread_team : public host_words {
 public:
  static constexpr int width = W;
  thread_team(team_board<W>& board, int rank) : board_{&board}, rank_{rank} {}

  int rank() const { return rank_; }
  void sync() const { board_->sync(); }
  vote prefix(bool p) const { return board_->prefix(rank_, p); }
  bool any(bool p) const { return prefix(p).all > 0; }

 private:
  team_board<W>* board_;
  int rank_;
};
static_assert(team<thread_team<4>>);

}  // namespace ebb

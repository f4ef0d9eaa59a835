#pragma once
/// Real threads as the lanes of one team.

#include <ebb/team.hpp>

#include <atomic>
#include <barrier>
#include <optional>
#include <utility>

namespace ebb {

/// What the lanes of a thread_team have in common: W lanes in `Blocks` blocks.
template <int W, int Blocks>
class team_board {
  static_assert(W % Blocks == 0, "ebb team: blocks of a team have equal width");

 public:
  team_board() { reset(); }

  /// Thrown out of a collective that another lane will never reach because its body threw.
  struct broken {};

  void sync() { wait(*barrier_); }
  void block_sync(int block) { wait(*block_barriers_[block]); }

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
  void leave(int block) {
    broken_.store(true, std::memory_order_relaxed);
    barrier_->arrive_and_drop();
    block_barriers_[block]->arrive_and_drop();
  }

  /// As new. Requires: no lane is inside.
  void reset() {
    barrier_.emplace(W);
    for (auto& each : block_barriers_) each.emplace(W / Blocks);
    for (lane& each : lanes_) each = {};
    broken_.store(false, std::memory_order_relaxed);
  }

 private:
  struct alignas(64) lane {
    int voted[2]{};
    int turn = 0;
  };
  void wait(std::barrier<>& at) {
    at.arrive_and_wait();
    if (broken_.load(std::memory_order_relaxed)) throw broken{};
  }

  std::optional<std::barrier<>> barrier_{};
  std::optional<std::barrier<>> block_barriers_[Blocks]{};
  lane lanes_[W]{};
  std::atomic<bool> broken_{false};
};

/// One lane of W, in one of `Blocks` blocks: lanes go round them. Concurrency: each lane is a thread of its own;
/// collectives are barriers, everything else is host_words.
template <int W, int Blocks = 1>
class thread_team : public host_words {
 public:
  static constexpr int width = W, blocks = Blocks, block_width = W / Blocks;
  thread_team(team_board<W, Blocks>& board, int rank) : board_{&board}, rank_{rank} {}

  int rank() const { return rank_; }
  int block() const { return rank_ % Blocks; }
  int block_rank() const { return rank_ / Blocks; }
  void sync() const { board_->sync(); }
  void sync_or_leave(bool) const { sync(); }
  void block_sync() const { board_->block_sync(block()); }
  vote prefix(bool p) const { return board_->prefix(rank_, p); }
  bool any(bool p) const { return prefix(p).all > 0; }

 private:
  team_board<W, Blocks>* board_;
  int rank_;
};
static_assert(team<thread_team<4>> && team<thread_team<4, 2>>);

}  // namespace ebb

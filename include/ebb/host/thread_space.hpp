#pragma once
/// Bodies on real threads: several teams at once, so that a thread sanitizer sees lanes and blocks race.

#include <ebb/host/queue_space.hpp>
#include <ebb/host/thread_team.hpp>
#include <ebb/space.hpp>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace ebb::host {

/// Teams of W threads that wait for work. Concurrency: one thread calls `run`.
template <int W, int Teams, int Blocks>
class team_pool {
 public:
  using job = std::function<void(int team, thread_team<W, Blocks> const&)>;

  team_pool() {
    for (int i = 0; i < W * Teams; ++i) threads_.emplace_back([this, i] { serve(i / W, i % W); });
  }
  team_pool(team_pool const&) = delete;
  team_pool& operator=(team_pool const&) = delete;
  ~team_pool() {
    std::lock_guard const lock{mutex_};
    stop_ = true;
    start_.notify_all();
  }

  /// Every lane of every team does the job; returns when all are done. Throws: the first exception of a lane.
  void run(job const& each) {
    std::unique_lock lock{mutex_};
    job_ = &each;
    working_ = W * Teams;
    ++round_;
    start_.notify_all();
    end_.wait(lock, [this] { return working_ == 0; });
    if (!failure_) return;
    for (auto& board : boards_) board.reset();
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  void serve(int team, int rank) {
    auto& board = boards_[static_cast<std::size_t>(team)];
    for (std::uint64_t seen = 0;; ++seen) {
      job const* now = nullptr;
      {
        std::unique_lock lock{mutex_};
        start_.wait(lock, [&] { return stop_ || round_ != seen; });
        if (stop_) return;
        now = job_;
      }
      thread_team<W, Blocks> const t{board, rank};
      try {
        (*now)(team, t);
      } catch (typename team_board<W, Blocks>::broken const&) {
        board.leave(t.block());
      } catch (...) {
        {
          std::lock_guard const lock{mutex_};
          if (!failure_) failure_ = std::current_exception();
        }
        board.leave(t.block());
      }
      std::lock_guard const lock{mutex_};
      if (--working_ == 0) end_.notify_one();
    }
  }

  std::array<team_board<W, Blocks>, Teams> boards_{};
  std::mutex mutex_{};
  std::condition_variable start_{}, end_{};
  job const* job_ = nullptr;
  int working_ = 0;
  std::uint64_t round_ = 0;
  bool stop_ = false;
  std::exception_ptr failure_{};
  std::vector<std::jthread> threads_{};  // last: joined before anything else goes
};

}  // namespace ebb::host

namespace ebb {

/// `Teams` teams of W threads, kept between runs, each in `Blocks` blocks as a cluster of a GPU. A body runs when its
/// operation takes place, while the control thread waits.
template <int W, int Teams = 2, int Blocks = 1>
class thread_space : public host::queue_space {
 public:
  thread_space() = default;
  explicit thread_space(host::deferred mode) : queue_space{mode} {}

  template <class Body>
  void run(stream on, int items, Body const& body) const {
    enqueue_run(on, items, [pool = pool_, items, body](host::generator* shuffle) {
      using shared_type = typename shared_of<Body>::type;
      auto const order = item_order(items, shuffle);
      std::array<host::shared_storage<shared_type>, static_cast<std::size_t>(Teams) * Blocks> shared;
      pool->run([&](int team, thread_team<W, Blocks> const& t) {
        auto& mine = shared[static_cast<std::size_t>(team * Blocks + t.block())];
        for (std::size_t i = static_cast<std::size_t>(team); i < order.size(); i += Teams) {
          if (t.block_rank() == 0) mine.poison();
          t.sync();
          ebb::call(body, t, order[i], mine.value);
          t.sync();
        }
      });
    });
  }

 private:
  std::shared_ptr<host::team_pool<W, Teams, Blocks>> pool_ = std::make_shared<host::team_pool<W, Teams, Blocks>>();
};
static_assert(space<thread_space<4>>);

}  // namespace ebb

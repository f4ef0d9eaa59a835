#pragma once
/// What the streams and events of a host space are made of: an in-order queue of operations.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

namespace ebb::host {

struct queue;
struct recording;

/// Seeded numbers (splitmix64), the same on every machine.
/// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
class generator {
 public:
  explicit constexpr generator(std::uint64_t seed) : state_{seed} {}
  constexpr std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E37'79B9'7F4A'7C15;
    z = (z ^ z >> 30) * 0xBF58'476D'1CE4'E5B9;
    z = (z ^ z >> 27) * 0x94D0'49BB'1331'11EB;
    return z ^ z >> 31;
  }
  /// A number 0 … n − 1. Requires: n > 0.
  constexpr int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }

 private:
  std::uint64_t state_;
};

/// A handle of a queue, valid while a copy of its space lives.
class stream {
 public:
  explicit stream(queue& of) : queue_{&of} {}
  queue& operator*() const { return *queue_; }
  queue* operator->() const { return queue_; }
  friend bool operator==(stream, stream) = default;

 private:
  queue* queue_;
};

/// A point in a queue: reached once that many of its operations are done. Default-constructed: already reached.
struct event {
  queue const* in = nullptr;
  std::uint64_t position = 0;
  std::uint64_t capture = 0;  ///< the capture that it belongs to; 0: none
};

/// `run`: a body for its items; `call`: other work; `mark`: an event; `wait`, `gate`: nothing behind them starts before
/// they are passed.
enum class act { run, call, mark, wait, gate };

/// Work of an operation. The generator orders what has no order on a device; null: in the order of the numbers.
using work = std::function<void(generator*)>;

struct operation {
  act what;
  host::work work{};           ///< of `run` and `call`
  event until{};               ///< of `wait`
  char const* name = nullptr;  ///< of `gate`
  bool open = false;           ///< of `gate`
};

struct queue {
  int number;
  std::deque<operation> pending{};        ///< its first operation stays here while it runs
  std::uint64_t done = 0;                 ///< operations done since the beginning
  std::shared_ptr<recording> recorded{};  ///< the capture that takes what is enqueued; null: none

  std::uint64_t enqueued() const { return done + pending.size(); }

  /// The first operation can take place now.
  bool ready() const {
    if (pending.empty()) return false;
    operation const& first = pending.front();
    if (first.what == act::wait) return first.until.in->done >= first.until.position;
    return first.what != act::gate || first.open;
  }

  /// Takes the first operation, which counts as done even if its work throws. Requires: ready().
  void advance(generator* order) {
    struct finished {
      queue& of;
      ~finished() {
        of.pending.pop_front();
        ++of.done;
      }
    } const at_end{*this};
    if (auto const now = std::move(pending.front().work)) now(order);
  }
};

}  // namespace ebb::host

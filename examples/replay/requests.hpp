#pragma once
/// The sessions of a run: where each stands, and the queue that the engine keeps.

#include <ebb/ids.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "oracle.hpp"
#include "workload.hpp"

namespace replay {

/// A call waits for its time, then for room, then for its input; it decodes; between calls the session is preempted.
enum class stage { pausing, queued, arriving, decoding, over };

/// One session on its way through its calls.
struct live {
  play const* plays;
  std::uint32_t number = 0;  ///< of the session
  stage at = stage::pausing;
  std::size_t call = 0;
  double due = 0;       ///< when the call may start
  bool waited = false;  ///< the call found no room at its first try
  bool admitted = false;
  bool reserved = false;  ///< the call's input has room
  ebb::request_id id{};
  ebb::ticket room = ebb::ticket::none;  ///< and may be written there once this is reached
  std::int64_t decoded = 0;
  write_history written{};
  stretched_selection selection{};

  replay::call const& now() const { return plays->calls[call]; }
  std::int64_t tokens() const { return now().in_tokens + decoded; }
  void next_call(double ended) {
    ++call;
    at = stage::pausing;
    due = ended + now().pause;
    waited = reserved = false;
    decoded = 0;
  }
  bool last_call() const { return call + 1 == plays->calls.size(); }
};

/// Calls that are due and have no room yet, first come, first served. Calls of admitted sessions go before new
/// sessions: they hold host pages, so that nobody else could finish without them.
class waiting_line {
 public:
  void add(live* s) { (s->admitted ? resuming_ : admitting_).push_back(s); }
  int size() const { return static_cast<int>(resuming_.size() + admitting_.size()); }

  /// Offers each its place, in order, until `start` refuses one of the resuming ones and one of the new ones.
  template <class Start>
  void serve(Start start) {
    for (auto* line : {&resuming_, &admitting_}) {
      while (!line->empty() && start(*line->front())) line->pop_front();
    }
  }

 private:
  std::deque<live*> resuming_;
  std::deque<live*> admitting_;
};

/// How many of q queries are accepted: the first always, each next one with probability `rate` if all before it were.
/// A function of session and position, so that every policy sees the same.
inline int accepted_of(std::uint32_t session, std::int64_t position, int queries, double rate) {
  int accepted = 1;
  while (accepted < queries) {
    std::uint64_t const dice =
        row_seed({session, 62, static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(accepted)});
    if (static_cast<double>(dice >> 11) * 0x1p-53 >= rate) break;
    ++accepted;
  }
  return accepted;
}

}  // namespace replay

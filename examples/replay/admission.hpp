#pragma once
/// The engine's side of admission: the queue, who goes first, and the history that a call brings along.

#include <ebb/residency.hpp>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "numbers.hpp"
#include "requests.hpp"
#include "step_rows.hpp"

namespace replay {

template <class P, ebb::space S>
class admission {
  static constexpr ebb::source_id source{0};

 public:
  admission(S space, ebb::residency<P, S>& kv, std::vector<live>& sessions, numbers& count,
            std::uint32_t requests_before)
      : kv_{kv}, sessions_{sessions}, numbers_{count}, incoming_{space, P::row.total()}, requests_{requests_before} {}

  /// Calls that are due get a place in the queue, then room as far as there is any, then the rest of their input.
  void serve() {
    for (live& s : sessions_) {
      if (s.at != stage::pausing || s.due > numbers_.now()) continue;
      s.at = stage::queued;
      line_.add(&s);
    }
    line_.serve([&](live& s) { return s.admitted ? resume(s) : admit(s); });
    bring_in_history();
  }
  int waiting() const { return line_.size(); }
  bool arriving() const { return std::ranges::count(sessions_, stage::arriving, &live::at) > 0; }

  /// Nothing runs and nothing is on its way: the next event is a call that becomes due.
  void skip_idle_time() {
    drop_hold();
    double next = std::numeric_limits<double>::infinity();
    for (live const& s : sessions_) {
      if (s.at == stage::pausing) next = std::min(next, s.due);
    }
    if (next == std::numeric_limits<double>::infinity()) give_up();
    numbers_.skip_to(next);
  }
  [[noreturn]] void give_up() const {
    throw std::runtime_error{std::string{P::name} + ": " + std::to_string(line_.size()) +
                             " calls wait and nothing gets on: " + shortage_.message()};
  }

 private:
  /// True when the session needs its place in the queue no more.
  bool admit(live& s) {
    auto const id = kv_.admit(s.plays->tokens_max, s.now().in_tokens, hold_);
    if (id) {
      hold_ = {};
      s.id = *id;
      s.admitted = true;
      s.written = write_history{++requests_};
      s.at = stage::arriving;
      return true;
    }
    if (!id.error().ever) {
      s.at = stage::over;
      if (numbers_.of().requests_refused++ == 0) {
        numbers_.of().refusal = "session " + s.plays->name + " of " + std::to_string(s.plays->tokens_max) +
                                " tokens can never be admitted: " + id.error().message();
      }
      return true;
    }
    wait(s, id.error());
    // Frames that come back are for the head of the queue. Host pages come back only when others get on, so nothing is
    // held for them.
    bool const for_frames = id.error().pool == ebb::pool::frames;
    if (!for_frames) {
      drop_hold();
    } else if (hold_ == ebb::hold_id{}) {
      if (auto const hold = kv_.hold(s.plays->tokens_max)) hold_ = *hold;
    }
    return false;
  }
  /// The next call of a preempted session: back to the common prefix, then onto the GPU.
  bool resume(live& s) {
    if (s.now().prefix < kv_.tokens(s.id)) kv_.truncate(s.id, s.now().prefix);
    auto const resumed = kv_.resume(s.id, s.now().in_tokens);
    if (!resumed) {
      wait(s, resumed.error());
      return false;
    }
    s.at = stage::arriving;
    return true;
  }
  void wait(live& s, ebb::shortage const& why) {
    shortage_ = why;
    if (!s.waited) ++numbers_.of().admission_waits;
    s.waited = true;
  }
  void drop_hold() {
    if (hold_ != ebb::hold_id{}) kv_.release(hold_);
    hold_ = {};
  }

  /// Whoever has room gets the rest of its call's input, and may decode from the next step on.
  void bring_in_history() {
    for (live& s : sessions_) {
      if (s.at != stage::arriving || !kv_.ready(s.id)) continue;
      std::int64_t const from = s.now().prefix;
      std::int64_t const to = s.now().in_tokens;
      if (to > from) {
        if (!s.reserved) s.room = kv_.reserve_import(s.id, to);
        s.reserved = true;
        if (!kv_.reached(s.room)) continue;
        kv_.wait(kv_.import(s.id, source, {incoming_.fill(s.written, from, to)}));
        kv_.publish(s.id, to);
      }
      s.selection = {*s.plays->selections, to};
      s.at = stage::decoding;
    }
  }

  ebb::residency<P, S>& kv_;
  std::vector<live>& sessions_;
  numbers& numbers_;
  import_buffer<S> incoming_;
  waiting_line line_;
  ebb::hold_id hold_{};
  ebb::shortage shortage_{};
  std::uint32_t requests_;  ///< so far: the oracle's count of incarnations
};

}  // namespace replay

#pragma once
/// Tickets, the events behind them, and what may be concluded from both.

#include <ebb/ids.hpp>
#include <ebb/space.hpp>

#include <deque>
#include <utility>

namespace ebb {

/// The jobs of an instance in the order of their tickets. A ticket counts as done when it and all before it are: what
/// finished out of order decides nothing. Host only.
template <space S, class Payload>
class ticket_log {
 public:
  explicit ticket_log(S const& space) : space_{space} {}

  void add(ticket t, typename S::event e, Payload payload) { jobs_.push_back({t, e, std::move(payload)}); }

  /// The largest ticket whose job and all earlier ones are done.
  ticket done() const {
    ticket t = taken_;
    for (auto const& j : jobs_) {
      if (!space_.reached(j.event)) break;
      t = j.number;
    }
    return t;
  }
  /// Jobs of several streams share the numbers, so a ticket's own event says nothing about earlier ones: every wait is
  /// for all jobs up to it.
  bool reached(ticket t) const {
    for (auto const& j : jobs_) {
      if (j.number <= t && !space_.reached(j.event)) return false;
    }
    return true;
  }
  void wait(typename S::stream on, ticket t) const {
    for (auto const& j : jobs_) {
      if (j.number <= t) space_.wait(on, j.event);
    }
  }
  void synchronize(ticket t) const {
    for (auto const& j : jobs_) {
      if (j.number <= t) space_.synchronize(j.event);
    }
  }
  /// Waits for tickets up to `t` and hands their payloads to `f`, in order.
  template <class F>
  void take_until(ticket t, F f) {
    while (!jobs_.empty() && jobs_.front().number <= t) {
      space_.synchronize(jobs_.front().event);
      taken_ = jobs_.front().number;
      f(jobs_.front().payload);
      jobs_.pop_front();
    }
  }

 private:
  struct job {
    ticket number;
    typename S::event event;
    Payload payload;
  };
  S space_;
  std::deque<job> jobs_;
  ticket taken_ = ticket::none;
};

}  // namespace ebb

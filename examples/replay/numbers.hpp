#pragma once
/// From the library's counters to the result of a policy, step by step.

#include <ebb/counters.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "cost.hpp"
#include "results.hpp"

namespace replay {

/// Follows the counters of one instance over its steps, and keeps the replay's clock.
class numbers {
 public:
  explicit numbers(char const* policy) { result_.policy = policy; }

  result& of() { return result_; }
  result const& of() const { return result_; }
  double now() const { return now_; }
  /// Lets time pass until `then`: nobody wants anything before.
  void skip_to(double then) { now_ = std::max(now_, then); }

  /// A call that was due at `due` found a place in a step.
  void started(double due) { waits_.push_back(now_ - due); }

  /// Counts a step of `requests` requests. With `measured` the library's calls took `taken` seconds, else the model
  /// says what they take.
  void step(ebb::counters const& c, ebb::gauges const& g, int requests, int waiting, cost_model const& cost,
            bool measured, double taken) {
    auto const since = [&](std::uint64_t ebb::counters::* which) {
      return static_cast<long long>(c.*which - before_.*which);
    };
    using from = ebb::counters;
    step_work const work{.requests = requests,
                         .fetches = since(&from::fetched_rows) > 0,
                         .fetched_bytes = since(&from::fetched_bytes),
                         .refilled_bytes = since(&from::refilled_bytes) + since(&from::restored_bytes),
                         .imported_bytes = since(&from::imported_bytes),
                         .backed_up_bytes = since(&from::backed_up_bytes)};
    double const seconds = measured ? taken + cost.model_seconds(requests) : cost.step_seconds(work);
    now_ += seconds;
    before_ = c;
    ++steps_;
    if (requests > 0) {
      ++result_.steps;
      step_seconds_.push_back(seconds);
      in_flight_.push_back(requests);
      result_.in_flight_peak = std::max(result_.in_flight_peak, requests);
    }
    if (!sampler_.due(steps_)) return;
    long long const selected = selected_rows(c) - selected_rows(sampled_);
    long long const missed = static_cast<long long>(c.misses - sampled_.misses);
    sampled_ = c;
    sampler_.add(result_.series, {now_, requests, waiting, g.frames_free, g.frames_required, g.frames_lent,
                                  g.frames_filling + g.frames_revoking,
                                  selected == 0 ? 0.0 : static_cast<double>(missed) / static_cast<double>(selected)});
  }

  /// Everything ended.
  result finish(ebb::counters const& c, double wall_seconds) {
    auto const n = [](std::uint64_t value) { return static_cast<long long>(value); };
    result_.seconds = now_;
    result_.step_p50 = quantile(step_seconds_, 0.5);
    result_.step_p99 = quantile(step_seconds_, 0.99);
    result_.in_flight_median = quantile(in_flight_, 0.5);
    result_.wait_p50 = quantile(waits_, 0.5);
    result_.wait_p99 = quantile(waits_, 0.99);
    result_.rows_selected = selected_rows(c);
    if (result_.rows_selected != result_.rows_checked) {
      throw std::runtime_error{result_.policy + ": the library counted " + std::to_string(result_.rows_selected) +
                               " selected rows, the replay " + std::to_string(result_.rows_checked)};
    }
    result_.rows_missed = n(c.misses);
    result_.rows_fetched = n(c.fetched_rows);
    result_.bytes_fetched = n(c.fetched_bytes);
    result_.pages_lent = n(c.pages.lent);
    result_.pages_revoked = n(c.pages.revoked);
    result_.pages_refilled = n(c.pages.refilled);
    result_.pages_restored = n(c.pages.restored);
    result_.pages_backed_up = n(c.pages.backed_up);
    result_.wall_seconds = wall_seconds;
    return result_;
  }

 private:
  static long long selected_rows(ebb::counters const& c) {
    return static_cast<long long>(c.tail_hits + c.lent_hits + c.hot_hits + c.misses);
  }

  result result_;
  double now_ = 0;
  long long steps_ = 0;
  ebb::counters before_{};
  ebb::counters sampled_{};
  sampler sampler_;
  std::vector<double> waits_;
  std::vector<double> step_seconds_;
  std::vector<int> in_flight_;
};

}  // namespace replay

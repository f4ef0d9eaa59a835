#pragma once
/// What one policy did: the numbers of the table and the lines of the report.

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace replay {

/// One moment of a run.
struct sample {
  double time = 0;    ///< seconds on the replay's clock
  int in_flight = 0;  ///< requests in the step
  int waiting = 0;    ///< calls that are due and have no room yet
  int free = 0;       ///< frames by state
  int required = 0;
  int lent = 0;
  int moving = 0;            ///< filling, or on their way back
  double fetched_share = 0;  ///< of the rows selected since the sample before
};

struct result {
  std::string policy;
  int requests_finished = 0;  ///< sessions whose last call ended
  int requests_refused = 0;   ///< sessions that can never fit
  std::string refusal;        ///< why the first of them cannot
  int calls_finished = 0;
  long long steps = 0;
  double seconds = 0;   ///< of the replay's clock, until the last call ended
  double step_p50 = 0;  ///< seconds
  double step_p99 = 0;
  double in_flight_median = 0;
  int in_flight_peak = 0;
  long long rows_selected = 0;  ///< valid positions of all selections
  long long rows_missed = 0;    ///< of them, not on the GPU when they were selected
  long long rows_fetched = 0;   ///< copied from the host store for them, once each
  long long bytes_fetched = 0;
  long long pages_lent = 0;
  long long pages_revoked = 0;
  long long pages_refilled = 0;
  long long pages_restored = 0;
  long long pages_backed_up = 0;
  long long admission_waits = 0;  ///< calls that found no room when they were due
  double wait_p50 = 0;            ///< seconds from due to the first step, all calls
  double wait_p99 = 0;
  long long rows_checked = 0;
  long long rows_wrong = 0;
  double wall_seconds = 0;  ///< of this machine
  std::vector<sample> series;

  double fetched_share() const {
    return rows_selected == 0 ? 0.0 : static_cast<double>(rows_missed) / static_cast<double>(rows_selected);
  }
};

/// The value below which `share` of the values lie; sorts them. 0 for none.
template <class T>
double quantile(std::vector<T>& values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return static_cast<double>(
      values[std::min(values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size())))]);
}

/// Takes samples at even distances although nobody knows how long the run will be: when there are too many, every other
/// one goes.
class sampler {
 public:
  static constexpr std::size_t most = 400;

  bool due(long long step) const { return step % every_ == 0; }
  void add(std::vector<sample>& series, sample const& s) {
    series.push_back(s);
    if (series.size() < most) return;
    every_ *= 2;
    for (std::size_t i = 0; 2 * i + 1 < series.size(); ++i) series[i] = series[2 * i + 1];
    series.resize(series.size() / 2);
  }

 private:
  long long every_ = 1;
};

inline nlohmann::json to_json(result const& r) {
  nlohmann::json out{{"policy", r.policy},
                     {"requests_finished", r.requests_finished},
                     {"requests_refused", r.requests_refused},
                     {"calls_finished", r.calls_finished},
                     {"steps", r.steps},
                     {"seconds", r.seconds},
                     {"step_p50", r.step_p50},
                     {"step_p99", r.step_p99},
                     {"in_flight_median", r.in_flight_median},
                     {"in_flight_peak", r.in_flight_peak},
                     {"fetched_share", r.fetched_share()},
                     {"rows_selected", r.rows_selected},
                     {"rows_missed", r.rows_missed},
                     {"rows_fetched", r.rows_fetched},
                     {"bytes_fetched", r.bytes_fetched},
                     {"pages_lent", r.pages_lent},
                     {"pages_revoked", r.pages_revoked},
                     {"pages_refilled", r.pages_refilled},
                     {"pages_restored", r.pages_restored},
                     {"pages_backed_up", r.pages_backed_up},
                     {"admission_waits", r.admission_waits},
                     {"wait_p50", r.wait_p50},
                     {"wait_p99", r.wait_p99},
                     {"rows_checked", r.rows_checked},
                     {"rows_wrong", r.rows_wrong},
                     {"wall_seconds", r.wall_seconds}};
  auto const column = [&](auto member) {
    auto values = nlohmann::json::array();
    for (sample const& s : r.series) values.push_back(s.*member);
    return values;
  };
  out["series"] = {{"time", column(&sample::time)},         {"in_flight", column(&sample::in_flight)},
                   {"waiting", column(&sample::waiting)},   {"free", column(&sample::free)},
                   {"required", column(&sample::required)}, {"lent", column(&sample::lent)},
                   {"moving", column(&sample::moving)},     {"fetched_share", column(&sample::fetched_share)}};
  return out;
}

}  // namespace replay

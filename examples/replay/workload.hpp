#pragma once
/// What is played: sessions of the trace, started at arrival times, each with a recorded selection.

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrivals.hpp"
#include "selections.hpp"
#include "trace.hpp"

namespace replay {

/// How the inputs are put together.
struct workload_options {
  int sessions = 96;           ///< how many, spread evenly over the trace
  int calls = 3;               ///< consecutive calls of each, around its middle
  std::int64_t max_out = 96;   ///< a call decodes at most this many tokens
  double max_pause = 2;        ///< seconds between two calls of a session, at most
  double arrivals_from = 180;  ///< seconds of the arrival trace that are skipped
  int arrivals_every = 10;     ///< every n-th arrival starts a session
  double arrivals_speed = 12;  ///< the arrival clock runs this many times faster
  std::int64_t max_tokens = 1 << 20;
  int queries = 1;  ///< queries of a request in one step
};

/// One session to play.
struct play {
  std::string name;
  double arrival;           ///< seconds
  std::vector<call> calls;  ///< prefix of the first one is 0: its whole input arrives with it
  recording const* selections;
  std::int64_t tokens_max;  ///< the longest history it reaches, rejected rows included
};

struct workload {
  std::vector<play> plays;
  int too_long = 0;  ///< calls left out because they exceed max_tokens
};

/// The calls of `s` that are played: `n` around its middle, up to the first that does not fit.
inline std::vector<call> pick_calls(session const& s, workload_options const& o, int& too_long) {
  std::size_t const n = std::min<std::size_t>(static_cast<std::size_t>(o.calls), s.calls.size());
  std::size_t const first = (s.calls.size() - n) / 2;
  std::vector<call> out;
  for (std::size_t i = first; i < first + n; ++i) {
    call c = s.calls[i];
    c.out_tokens = std::min(c.out_tokens, o.max_out);
    c.pause = std::min(c.pause, o.max_pause);
    if (c.in_tokens + c.out_tokens + o.queries > o.max_tokens) {
      too_long += static_cast<int>(first + n - i);
      break;
    }
    if (out.empty()) c.prefix = 0;
    if (!out.empty()) c.prefix = std::min(c.prefix, out.back().in_tokens + out.back().out_tokens);
    out.push_back(c);
  }
  return out;
}

/// Puts sessions, arrivals and selections together. Throws std::invalid_argument where there are too few.
inline workload compose(std::vector<session> const& sessions, arrival_times const& arrivals,
                        std::vector<recording> const& selections, workload_options const& o) {
  workload out;
  auto const wanted = std::min<std::size_t>(static_cast<std::size_t>(o.sessions), sessions.size());
  auto arrival = std::lower_bound(arrivals.seconds.begin(), arrivals.seconds.end(), o.arrivals_from);
  for (std::size_t i = 0; i < wanted; ++i) {
    session const& s = sessions[i * sessions.size() / wanted];
    auto calls = pick_calls(s, o, out.too_long);
    if (calls.empty()) continue;
    if (arrival >= arrivals.seconds.end()) {
      throw std::invalid_argument("the arrival trace ends after " + std::to_string(i) + " of " +
                                  std::to_string(wanted) +
                                  " sessions; start it earlier, take more of its arrivals, or play fewer sessions");
    }
    std::int64_t longest = 0;
    for (call const& c : calls) longest = std::max(longest, c.in_tokens + c.out_tokens + o.queries);
    out.plays.push_back({s.name, (*arrival - o.arrivals_from) / o.arrivals_speed, std::move(calls),
                         &selections[i % selections.size()], longest});
    arrival += std::min<std::ptrdiff_t>(o.arrivals_every, arrivals.seconds.end() - arrival);
  }
  if (out.plays.empty())
    throw std::invalid_argument("no session is short enough for max_tokens " + std::to_string(o.max_tokens));
  return out;
}

}  // namespace replay

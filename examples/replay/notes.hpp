#pragma once
/// What stands above the table: how the inputs were put together, and what is assumed.

#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"
#include "output.hpp"

namespace replay {

/// What a reader must know about the numbers.
inline std::vector<std::string> notes(workload const& work, arrival_times const& arrivals, options const& o) {
  std::size_t calls = 0;
  std::vector<std::int64_t> lengths;
  for (play const& p : work.plays) {
    calls += p.calls.size();
    for (call const& c : p.calls) lengths.push_back(c.in_tokens);
  }
  double const median = quantile(lengths, 0.5);
  std::vector<std::string> out;
  out.push_back(
      "Model: DeepSeek-V4.1-Flash (FP4 rows) cut to one of its 4 sources and one of its 8 groups, so that real lengths "
      "fit: 288 bytes a row, pages of 128 tokens, top-k 512, " +
      std::to_string(o.work.queries) + " quer" + (o.work.queries == 1 ? "y" : "ies") + " a step.");
  out.push_back("Load: " + std::to_string(work.plays.size()) + " real coding sessions (Weka), " +
                std::to_string(calls) + " calls around each one's middle, history " +
                with_commas(static_cast<long long>(median)) + " tokens in the median, " + with_commas(lengths.back()) +
                " at most; " + std::to_string(work.too_long) + " calls left out as too long; calls decode at most " +
                std::to_string(o.work.max_out) + " tokens and follow each other within " +
                fixed_point(o.work.max_pause, 0) + " s.");
  out.push_back("Arrivals: sessions carry clocks of their own and are started at " + arrivals.title +
                " times, one arrival in " + std::to_string(o.work.arrivals_every) + " from second " +
                fixed_point(o.work.arrivals_from, 0) + " on, the clock " + fixed_point(o.work.arrivals_speed, 0) +
                " times faster. The combination is ours.");
  out.push_back(
      "Selections: recorded from real decoders and stretched to each history: the newest 1,024 positions keep their "
      "distance, older 64-row pages are spread evenly over the rest.");
  out.push_back("Pool: " + with_commas(o.frames) + " frames (" +
                fixed_point(o.frames * static_cast<double>(page_bytes) / (1 << 20), 0) + " MiB), " +
                with_commas(o.host_pages) + " host pages (" +
                fixed_point(o.host_pages * static_cast<double>(page_bytes) / (1 << 20), 0) + " MiB), " +
                with_commas(o.hot_rows) + " hot rows a request.");
  out.push_back(o.space == "cuda"
                    ? "Clock: measured time of the library's calls on the GPU, plus " +
                          fixed_point(o.cost.base_us / 1e3, 1) + " ms a step and " +
                          fixed_point(o.cost.per_request_us / 1e3, 2) + " ms a request for the model, which is assumed."
                    : "Clock: modelled. A step takes " + fixed_point(o.cost.base_us / 1e3, 1) + " ms and " +
                          fixed_point(o.cost.per_request_us / 1e3, 2) + " ms a request (assumed), launches of " +
                          fixed_point(o.cost.launch_us, 1) + " us and gathers of " + fixed_point(o.cost.gather_gbs, 0) +
                          " GB/s (measured on an H200) in each of " + fixed_point(o.cost.groups, 0) +
                          " groups, and no less than the link needs: " + fixed_point(o.cost.copy_in_gbs, 0) +
                          " GB/s in, " + fixed_point(o.cost.copy_out_gbs, 1) + " out.");
  return out;
}

}  // namespace replay

#pragma once
/// Arrival times of the Azure and Mooncake traces.

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "text.hpp"

namespace replay {

/// Times in seconds since the first arrival, and what to call them in the output.
struct arrival_times {
  std::string title;
  std::vector<double> seconds;
};

namespace detail {

/// "2023-11-16 18:17:03.9799600" in seconds.
inline double azure_seconds(text_file const& file, std::string_view text) {
  auto const wrong = [&] { file.fail("expected a time like 2023-11-16 18:17:03.9799600, found " + quoted(text)); };
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[10] != ' ' || text[13] != ':' || text[16] != ':')
    wrong();
  auto const number = [&](std::size_t at, std::size_t n, int least, int most) {
    return file.number<int>("part of the time", text.substr(at, n), least, most);
  };
  std::chrono::year_month_day const day{std::chrono::year{number(0, 4, 1970, 9999)},
                                        std::chrono::month{static_cast<unsigned>(number(5, 2, 1, 12))},
                                        std::chrono::day{static_cast<unsigned>(number(8, 2, 1, 31))}};
  if (!day.ok()) wrong();
  double const days = static_cast<double>(std::chrono::sys_days{day}.time_since_epoch().count());
  return days * 86'400 + number(11, 2, 0, 23) * 3'600 + number(14, 2, 0, 59) * 60 +
         file.number<double>("seconds of the time", text.substr(17), 0.0, 61.0);
}

inline double mooncake_seconds(text_file const& file, std::string_view line) {
  auto const object = nlohmann::json::parse(line, nullptr, false);
  if (!object.is_object() || !object.contains("timestamp") || !object["timestamp"].is_number() ||
      object["timestamp"] < 0) {
    file.fail("expected a JSON object with a \"timestamp\" in milliseconds, found " + quoted(line));
  }
  return object["timestamp"].get<double>() / 1'000;
}

/// Mooncake's clock ticks every three seconds: requests of one tick are spread evenly over it.
inline void spread_ticks(std::vector<double>& seconds, double tick) {
  for (std::size_t first = 0; first < seconds.size();) {
    std::size_t last = first;
    while (last < seconds.size() && seconds[last] == seconds[first]) ++last;
    for (std::size_t i = first + 1; i < last; ++i) {
      seconds[i] += tick * static_cast<double>(i - first) / static_cast<double>(last - first);
    }
    first = last;
  }
}

}  // namespace detail

/// Reads an Azure LLM inference trace (`.csv`) or a Mooncake trace (`.jsonl`), either gzipped or not, told apart by the
/// first line. Throws input_error at the first line that is not as described or goes back in time.
inline arrival_times read_arrivals(std::string const& path) {
  constexpr std::string_view azure_header = "TIMESTAMP,ContextTokens,GeneratedTokens";
  text_file file{path};
  std::string_view line;
  if (!file.next(line)) file.fail("expected arrival times, found an empty file");
  bool const mooncake = line.starts_with('{');
  if (!mooncake && line != azure_header) {
    file.fail("expected the header '" + std::string{azure_header} + "' or a line of JSON, found " + quoted(line));
  }
  arrival_times out{mooncake ? "Mooncake" : "Azure", {}};
  for (bool more = mooncake || file.next(line); more; more = file.next(line)) {
    double at = 0;
    if (mooncake) {
      at = detail::mooncake_seconds(file, line);
    } else {
      auto const f = split(line, ',');
      if (f.size() != 3) file.fail("expected 3 comma-separated fields, found " + std::to_string(f.size()));
      at = detail::azure_seconds(file, f[0]);
      file.number<std::int64_t>("ContextTokens", f[1], 0, 1LL << 31);
      file.number<std::int64_t>("GeneratedTokens", f[2], 0, 1LL << 31);
    }
    if (!out.seconds.empty() && at < out.seconds.back())
      file.fail("expected a time not before the line above, found " + quoted(line));
    out.seconds.push_back(at);
  }
  if (out.seconds.empty()) file.fail("expected at least one arrival");
  if (mooncake) detail::spread_ticks(out.seconds, 3.0);
  double const first = out.seconds.front();
  for (double& s : out.seconds) s -= first;
  return out;
}

}  // namespace replay

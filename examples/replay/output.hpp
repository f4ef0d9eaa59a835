#pragma once
/// What the replay says: the table, the JSON, and files that are whole or absent.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iomanip>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#include "results.hpp"

namespace replay {

/// Throws std::runtime_error unless a file can be written at `path`: asked before the work, not after it.
inline void require_writable(std::filesystem::path const& path) {
  auto const folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path{"."};
  if (std::filesystem::is_directory(path) || access(folder.c_str(), W_OK) != 0) {
    throw std::runtime_error{path.string() +
                             ": cannot be written; expected a file name in a folder that exists and may be written to"};
  }
}

/// Writes a file under another name and renames it when it is whole.
inline void write_whole(std::filesystem::path const& path, std::string const& text) {
  auto part = path;
  part += ".part";
  {
    std::ofstream out{part, std::ios::binary};
    out << text << std::flush;
    if (!out) {
      std::error_code ignored;
      std::filesystem::remove(part, ignored);
      throw std::runtime_error{path.string() + ": cannot be written"};
    }
  }
  std::filesystem::rename(part, path);
}

inline std::string with_commas(long long n) {
  std::string digits = std::to_string(n);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > (n < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}
inline std::string fixed_point(double value, int digits, char const* unit = "") {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value << unit;
  return out.str();
}

/// One line a number, one column a policy.
inline void write_table(std::ostream& out, std::vector<result> const& results) {
  struct line {
    char const* title;
    std::function<std::string(result const&)> value;
  };
  auto const count = [](auto member) {
    return [member](result const& r) { return with_commas(static_cast<long long>(r.*member)); };
  };
  std::vector<line> const lines{
      {"", [](result const& r) { return r.policy.starts_with("adaptive-") ? std::string{"adaptive:"} : r.policy; }},
      {"", [](result const& r) { return r.policy.starts_with("adaptive-") ? r.policy.substr(9) : std::string{}; }},
      {"requests finished", count(&result::requests_finished)},
      {"requests that never fit", count(&result::requests_refused)},
      {"calls finished", count(&result::calls_finished)},
      {"in flight, median", [](result const& r) { return fixed_point(r.in_flight_median, 0); }},
      {"in flight, peak", count(&result::in_flight_peak)},
      {"admission waits", count(&result::admission_waits)},
      {"wait for room, p99", [](result const& r) { return fixed_point(r.wait_p99, 1, " s"); }},
      {"time until all ended", [](result const& r) { return fixed_point(r.seconds, 1, " s"); }},
      {"step, p50", [](result const& r) { return fixed_point(r.step_p50 * 1e3, 2, " ms"); }},
      {"step, p99", [](result const& r) { return fixed_point(r.step_p99 * 1e3, 2, " ms"); }},
      {"rows selected", count(&result::rows_selected)},
      {"fetched from the host", [](result const& r) { return fixed_point(100 * r.fetched_share(), 2, " %"); }},
      {"rows fetched", count(&result::rows_fetched)},
      {"bytes fetched", count(&result::bytes_fetched)},
      {"pages lent", count(&result::pages_lent)},
      {"pages revoked", count(&result::pages_revoked)},
      {"pages refilled", count(&result::pages_refilled)},
      {"pages backed up", count(&result::pages_backed_up)},
      {"rows checked", count(&result::rows_checked)},
      {"rows wrong", count(&result::rows_wrong)},
  };
  for (line const& l : lines) {
    out << std::left << std::setw(24) << l.title << std::right;
    for (result const& r : results) out << std::setw(16) << l.value(r);
    out << '\n';
  }
}

}  // namespace replay

#pragma once
/// What the replay says: the table, the JSON, and files that are whole or absent.

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iomanip>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "process.hpp"
#include "results.hpp"

namespace replay {

/// Where the symbolic links of `path` lead, whether there is something or not.
inline std::filesystem::path target_of(std::filesystem::path path) {
  for (int links = 0; links < 40 && std::filesystem::is_symlink(path); ++links)
    path = path.parent_path() / std::filesystem::read_symlink(path);
  return std::filesystem::weakly_canonical(std::filesystem::absolute(path));
}

/// The standard stream that `path` is, as /dev/stdout may be; null for another file.
inline std::FILE* standard_stream(std::filesystem::path const& path) {
  struct stat named{};
  struct stat open{};
  for (std::FILE* stream : {stdout, stderr}) {
    if (stat(path.c_str(), &named) == 0 && fstat(fileno(stream), &open) == 0 && named.st_dev == open.st_dev &&
        named.st_ino == open.st_ino)
      return stream;
  }
  return nullptr;
}

/// True for pipes and devices: they are written into, never replaced.
inline bool no_regular_file(std::filesystem::path const& path) {
  return std::filesystem::exists(path) && !std::filesystem::is_regular_file(path);
}

/// Throws std::runtime_error unless `path` can be written: asked before the work, not after it.
inline void require_writable(std::filesystem::path const& path) {
  if (standard_stream(path) != nullptr) return;
  bool const itself =
      !std::filesystem::exists(path) || (!std::filesystem::is_directory(path) && access(path.c_str(), W_OK) == 0);
  if (!itself || (!no_regular_file(path) && access(target_of(path).parent_path().c_str(), W_OK | X_OK) != 0)) {
    throw std::runtime_error{path.string() +
                             ": cannot be written; expected a file name in a folder that exists and may be written to"};
  }
}

/// Writes a file under a name of its own and renames it when it is whole; writes into what is no regular file.
/// Throws std::runtime_error, and leaves a file as it was.
inline void write_whole(std::filesystem::path const& path, std::string const& text) {
  auto const require = [&](bool done) {
    if (!done) throw std::runtime_error{path.string() + ": cannot be written: " + std::strerror(errno)};
  };
  auto const write = [&](std::FILE* to) {
    return std::fwrite(text.data(), 1, text.size(), to) == text.size() && std::fflush(to) == 0;
  };
  if (std::FILE* const stream = standard_stream(path)) return require(write(stream));
  if (no_regular_file(path)) {
    file_pointer const there{std::fopen(path.c_str(), "we")};
    return require(there && write(there.get()));
  }
  auto const target = target_of(path);
  std::string part;
  file_pointer file;
  for (int n = getpid(); !file && (part.empty() || errno == EEXIST); ++n) {
    part = target.string() + "." + std::to_string(n) + ".part";
    file.reset(std::fopen(part.c_str(), "wxe"));
  }
  require(file != nullptr);
  struct stat before{};
  bool const kept = stat(target.c_str(), &before) != 0 || fchmod(fileno(file.get()), before.st_mode & 07777) == 0;
  bool const done = kept && write(file.get()) && std::rename(part.c_str(), target.c_str()) == 0;
  if (int const error = errno; !done) {
    unlink(part.c_str());
    errno = error;
  }
  require(done);
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

#pragma once
/// The report: a script plots what the replay wrote.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <unistd.h>

#include "output.hpp"
#include "process.hpp"

namespace replay {

/// What runs the script: EBB_PYTHON in the environment, else python3.
inline std::string python() {
  char const* const set = std::getenv("EBB_PYTHON");
  return set != nullptr ? set : "python3";
}

/// Throws std::runtime_error naming what a report lacks: asked before the work, not after it.
inline void require_plotting(std::string const& script) {
  if (access(script.c_str(), R_OK) != 0 || std::filesystem::is_directory(script))
    throw std::runtime_error{"--report-script " + script + ": no such file, or it cannot be read"};
  auto const runs = [](char const* code) {
    file_pointer ignored;
    return process{{python(), "-c", code}, &ignored}.wait();
  };
  if (runs("import matplotlib")) return;
  throw std::runtime_error{"no report: " + python() + (runs("") ? " has no matplotlib" : " cannot be run") +
                           "; EBB_PYTHON names another Python, --no-report does without"};
}

/// Lets the script plot `json`, and writes the report.
/// Throws std::runtime_error where the script fails, whose own words are on standard error, or a file is not written.
inline void write_report(std::string const& report, std::string const& script, std::string const& json) {
  struct folder {
    std::string path = (std::filesystem::temp_directory_path() / "replay_XXXXXX").string();
    folder() {
      if (mkdtemp(path.data()) == nullptr) throw std::runtime_error{path + ": no folder can be made there"};
    }
    ~folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  } const scratch;
  auto const data = scratch.path + "/replay.json";
  auto const page = scratch.path + "/replay.html";
  write_whole(data, json);
  bool const done = process{{python(), script, data, page}}.wait();
  std::ifstream in{page, std::ios::binary};
  if (!done || !in) throw std::runtime_error{report + ": no report: " + python() + " " + script + " failed"};
  write_whole(report, {std::istreambuf_iterator<char>{in}, {}});
}

}  // namespace replay

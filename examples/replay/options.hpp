#pragma once
/// The command line.

#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "cost.hpp"
#include "policies.hpp"
#include "workload.hpp"

namespace replay {

struct options {
  std::string trace;
  std::string arrivals;
  std::vector<std::string> selections;
  workload_options work{};
  std::vector<std::string> policies;
  int frames = 8'192;
  int host_pages = 98'304;
  int requests = 0;
  int max_batch = 64;
  int hot_rows = 4 * cut_model::top_k;
  double acceptance = 0.7;
  int spoil = 0;
  int disorder = 0;
  std::string space = "host";
  std::string json;
  std::string report;  ///< empty: none
  std::string report_script;
  bool quiet = false;
  cost_model cost{.groups = whole_model::groups, .sources = whole_model_sources()};
};

/// The folder of `data` and `replay/report.py`: EBB_EXAMPLES in the environment, else as built, else from the root of
/// the project.
inline std::filesystem::path examples_folder() {
  if (char const* set = std::getenv("EBB_EXAMPLES")) return set;
#ifdef EBB_EXAMPLES
  return EBB_EXAMPLES;
#else
  return "examples";
#endif
}

/// Where the report goes unless told: beside the program.
inline std::filesystem::path beside_program(char const* name) {
  std::error_code error;
  auto const program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path{name} : program.parent_path() / name;
}

inline void define(CLI::App& app, options& o) {
  auto const data = examples_folder() / "data";
  o.trace = data / "weka_sessions.csv.gz";
  o.arrivals = data / "azure_code.csv";
  o.selections = {data / "smollm2_8k_code.json", data / "smollm2_8k_docs.json"};
  o.report = beside_program("replay.html");
  o.report_script = examples_folder() / "replay" / "report.py";

  char const* group = "Input";
  auto const plain = [&](char const* name, auto& value, char const* text) {
    return app.add_option(name, value, text)->group(group)->capture_default_str();
  };
  auto const ranged = [&](char const* name, auto& value, auto least, auto most, char const* text) {
    plain(name, value, text)->check(CLI::Range(least, most))->check([](std::string const& given) {
      return std::isnan(std::strtod(given.c_str(), nullptr)) ? "expected a number, found " + given : std::string{};
    });
  };
  constexpr int many = 1'000'000;
  plain("--trace", o.trace, "sessions: the Weka trace, .csv or .csv.gz");
  plain("--arrivals", o.arrivals, "when sessions start: an Azure .csv or a Mooncake .jsonl, gzipped or not");
  plain("--selections", o.selections, "recorded selections, NAME.json beside NAME.u16; several");
  ranged("--sessions", o.work.sessions, 1, many, "sessions to play, spread evenly over the trace");
  ranged("--calls", o.work.calls, 1, many, "consecutive calls of each, around its middle");
  ranged("--max-out", o.work.max_out, 1, many, "tokens that a call decodes at most");
  ranged("--max-pause", o.work.max_pause, 0.0, 1e9, "seconds between two calls of a session at most");
  ranged("--arrivals-from", o.work.arrivals_from, 0.0, 1e9, "seconds of the arrivals that are skipped");
  ranged("--arrivals-every", o.work.arrivals_every, 1, many, "every n-th arrival starts a session");
  ranged("--arrivals-speed", o.work.arrivals_speed, 1e-6, 1e6, "the clock of the arrivals runs this much faster");

  group = "Pool";
  std::vector<std::string> names;
  std::apply([&](auto... p) { (names.emplace_back(decltype(p)::name), ...); }, all_policies{});
  app.add_option("--policy", o.policies, "only these")->group(group)->check(CLI::IsMember(names));
  ranged("--frames", o.frames, 1, 1 << 24, "pages of the GPU's pool, 36,864 bytes each");
  ranged("--host-pages", o.host_pages, 1, 1 << 24, "pages of the host store, as large");
  ranged("--requests", o.requests, 0, 1 << 20, "sessions open at once, preempted ones too; 0: all of them");
  ranged("--max-batch", o.max_batch, 1, 4'096, "requests in one step at most");
  ranged("--max-tokens", o.work.max_tokens, 1, 1 << 22, "longest history");
  ranged("--hot-rows", o.hot_rows, 0, 1 << 20, "rows of each request's row cache");
  ranged("--queries", o.work.queries, 1, cut_model::max_queries, "queries of a request in a step");
  ranged("--acceptance", o.acceptance, 0.0, 1.0, "share of further queries that are accepted");
  ranged("--spoil", o.spoil, 0, 1 << 30, "write every n-th decoded row wrong, to see that the check finds it");
  ranged("--disorder", o.disorder, 0, 1 << 30,
         "host: work of different streams interleaves as this seed says; 0: in order");

  group = "Clock";
  plain("--space", o.space, "host: modelled time; cuda: measured time")->check(CLI::IsMember({"host", "cuda"}));
  ranged("--step-us", o.cost.base_us, 0.0, 1e9, "a step of the model without the library, microseconds");
  ranged("--request-us", o.cost.per_request_us, 0.0, 1e9, "more of it for each request");
  ranged("--launch-us", o.cost.launch_us, 0.0, 1e9, "one launch inside a graph");
  ranged("--read-us", o.cost.read_us, 0.0, 1e9, "latency of a read from the host");
  ranged("--gather-gbs", o.cost.gather_gbs, 1e-3, 1e6, "scattered rows from the host, GB/s");
  ranged("--in-gbs", o.cost.copy_in_gbs, 1e-3, 1e6, "pages to the GPU, GB/s");
  ranged("--out-gbs", o.cost.copy_out_gbs, 1e-3, 1e6, "pages to the host, GB/s");
  ranged("--groups", o.cost.groups, 1.0, 1e4, "resolves of a step that the replayed one stands for");
  ranged("--sources", o.cost.sources, 1.0, 1e4, "bytes of history that one replayed byte stands for");

  group = "Output";
  app.add_option("--json", o.json, "write the table here as JSON")->group(group);
  plain("--report", o.report, "write the report here, HTML with plots; \"\": no report");
  plain("--report-script", o.report_script, "what plots it, run by $EBB_PYTHON or python3");
  app.add_flag_callback("--no-report", [&o] { o.report.clear(); }, "no report")->group(group);
  app.add_flag("--quiet", o.quiet, "no progress")->group(group);
}

}  // namespace replay

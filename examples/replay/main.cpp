/// replay: real sessions share a small GPU pool, policy by policy, and every resolved row is compared with an
/// independent oracle.
///
///   replay                      the shipped slice on the host, on a modelled clock
///   replay --space cuda         on the GPU, with measured time
///   replay --trace weka_agentic_requests.csv.gz --arrivals conversation_trace.jsonl.gz --sessions 200 --arrivals-from 0
///
/// Ends with 0 when every row was right, 1 when one was wrong, 2 when it could not run or not write what it found.

#include <ebb/host/serial_space.hpp>

#include <cstdio>
#include <iostream>
#include <new>
#include <sys/resource.h>
#include <unistd.h>

#if defined(__CUDACC__)
#include <ebb/cuda/cuda_space.cuh>
#endif

#include "driver.hpp"
#include "notes.hpp"
#include "options.hpp"
#include "output.hpp"
#include "report.hpp"

namespace replay {

/// Progress on standard error: one line that is rewritten on a terminal, else a line every ten seconds.
class progress_line {
 public:
  progress_line(bool quiet, int total) : quiet_{quiet}, terminal_{isatty(STDERR_FILENO) != 0}, total_{total} {}

  void operator()(result const& r, int in_flight, int waiting) {
    auto const now = clock::now();
    if (quiet_ || now - last_ < (terminal_ ? std::chrono::milliseconds{200} : std::chrono::milliseconds{10'000}))
      return;
    last_ = now;
    print(r, std::to_string(in_flight) + " in flight, " + std::to_string(waiting) + " waiting");
  }
  void finish(result const& r) {
    if (quiet_) return;
    print(r, "done in " + fixed_point(r.wall_seconds, 1, " s"));
    if (terminal_) std::fputc('\n', stderr);
    last_ = clock::now();
  }

 private:
  using clock = std::chrono::steady_clock;
  void print(result const& r, std::string const& now) const {
    std::fprintf(stderr, "%s%-24s %d of %d sessions, %s rows checked, %lld wrong, %s%s", terminal_ ? "\r" : "",
                 r.policy.c_str(), r.requests_finished, total_, with_commas(r.rows_checked).c_str(), r.rows_wrong,
                 now.c_str(), terminal_ ? "   " : "\n");
    std::fflush(stderr);
  }
  bool quiet_;
  bool terminal_;
  int total_;
  clock::time_point last_ = clock::now();
};

template <ebb::space S>
std::vector<result> run_policies(S const& space, workload const& work, options const& o) {
  driver_options d;
  d.sizes.frames = o.frames;
  d.sizes.host_pages = o.host_pages;
  d.sizes.requests = o.requests > 0 ? o.requests : static_cast<int>(work.plays.size());
  d.sizes.max_batch = std::min(o.max_batch, d.sizes.requests);
  d.sizes.max_tokens = o.work.max_tokens;
  d.cost = o.cost;
  d.measured = o.space == "cuda";
  d.queries = o.work.queries;
  d.acceptance = o.acceptance;
  d.spoil = o.spoil;
  progress_line progress{o.quiet, static_cast<int>(work.plays.size())};
  d.progress = [&](auto const&... at) { progress(at...); };

  // One host store for all policies, one after another: what the ones before left there must not be taken for one's own.
  std::size_t const store_bytes = static_cast<std::size_t>(o.host_pages) * page_bytes;
  auto const store = [&] {
    try {
      return space.history_memory(store_bytes, d.sizes.host);
    } catch (std::runtime_error const& e) {
      throw std::runtime_error{"--host-pages " + std::to_string(o.host_pages) + ": " + e.what()};
    }
  }();
  d.sizes.host_memory = {store.get(), store_bytes};

  std::vector<result> results;
  auto const run = [&]<class P>() {
    if (!o.policies.empty() && std::ranges::find(o.policies, P::name) == o.policies.end()) return;
    d.sizes.hot_rows = P::tiers::caches ? o.hot_rows : 0;
    results.push_back(driver<P, S>{space, work, d}.run());
    d.requests_before += static_cast<std::uint32_t>(work.plays.size());
    progress.finish(results.back());
  };
  std::apply([&](auto... p) { (run.template operator()<decltype(p)>(), ...); }, all_policies{});
  if (std::ranges::all_of(results, [](result const& r) { return r.requests_finished == 0; }))
    throw std::runtime_error{"no policy can play anything; " + results.back().policy + ": " + results.back().refusal};
  return results;
}

std::vector<result> run_space(workload const& work, options const& o) try {
  if (o.space == "host") {
    auto const seed = static_cast<std::uint64_t>(o.disorder);
    return run_policies(seed > 0 ? ebb::serial_space{ebb::host::deferred{seed}} : ebb::serial_space{}, work, o);
  }
#if defined(__CUDACC__)
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
    throw std::runtime_error{"--space cuda: there is no GPU here"};
  return run_policies(ebb::cuda_space{}, work, o);
#else
  throw std::runtime_error{"--space cuda: this program was built without CUDA"};
#endif
} catch (std::bad_alloc const&) {
  std::string sizes;
  auto const add = [&](char const* name, long long value) { sizes += name + std::to_string(value); };
  add("--frames ", o.frames);
  add(", --host-pages ", o.host_pages);
  add(", --requests ", o.requests);
  add(", --max-batch ", o.max_batch);
  add(", --max-tokens ", o.work.max_tokens);
  add(" and --hot-rows ", o.hot_rows);
  throw std::runtime_error{"not enough memory for " + sizes};
}

int run(options const& o) {
  if (!o.json.empty()) require_writable(o.json);
  if (!o.report.empty()) {
    require_writable(o.report);
    if (!o.json.empty() && target_of(o.json) == target_of(o.report))
      throw std::invalid_argument{"--json and --report are the same file, " + o.report};
    require_plotting(o.report_script);
  }
  auto const sessions = read_sessions(o.trace);
  auto const arrivals = read_arrivals(o.arrivals);
  std::vector<recording> selections;
  for (auto const& path : o.selections) {
    for (auto& layer : read_selections(path)) {
      if (layer.k < cut_model::top_k)
        throw input_error{path, 0, "expected at least " + std::to_string(cut_model::top_k) + " positions a step"};
      selections.push_back(std::move(layer));
    }
  }
  auto const work = compose(sessions, arrivals, selections, o.work);
  auto const results = run_space(work, o);

  auto const told = notes(work, arrivals, o);
  for (auto const& note : told) std::cout << note << '\n';
  std::cout << '\n';
  write_table(std::cout, results);
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  std::cout << "\nMost memory in use: " << fixed_point(static_cast<double>(used.ru_maxrss) / (1 << 20), 2) << " GiB.\n";

  nlohmann::json all{{"notes", told}, {"frames", o.frames}, {"policies", nlohmann::json::array()}};
  long long wrong = 0;
  for (result const& r : results) {
    all["policies"].push_back(to_json(r));
    wrong += r.rows_wrong;
  }
  if (!o.json.empty()) write_whole(o.json, all.dump(1) + "\n");
  if (!o.report.empty()) {
    write_report(o.report, o.report_script, all.dump());
    std::cout << "Report: " << o.report << '\n';
  }
  if (wrong > 0) std::cerr << "replay: " << wrong << " rows were wrong\n";
  return wrong > 0 ? 1 : 0;
}

}  // namespace replay

int main(int argc, char** argv) {
  try {
    CLI::App app{"Real sessions share a small GPU pool; every resolved row is checked."};
    replay::options o;
    replay::define(app, o);
    int status = 0;
    try {
      app.parse(argc, argv);
      status = replay::run(o);
    } catch (CLI::Success const& help) {
      status = app.exit(help);
    }
    if (!std::cout.flush() && status == 0) throw std::runtime_error{"standard output cannot be written"};
    return status;
  } catch (std::exception const& e) {
    std::cerr << "replay: " << e.what() << '\n';
    return 2;
  }
}

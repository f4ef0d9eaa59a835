/// replay: real sessions share a small GPU pool, policy by policy, and every resolved row is compared with an
/// independent oracle.
///
///   replay                      the shipped slice on the host, on a modelled clock
///   replay --space cuda         on the GPU, with measured time
///   replay --trace weka_agentic_requests.csv.gz --arrivals conversation_trace.jsonl.gz --sessions 200 --arrivals-from
///   0
///
/// Ends with 0 when every row was right, 1 when one was wrong, 2 when it could not run.

#include <ebb/host/serial_space.hpp>

#include <cstdio>
#include <iostream>
#include <sys/resource.h>
#include <unistd.h>

#if defined(__CUDACC__)
#include <ebb/cuda/cuda_space.cuh>
#endif

#include "driver.hpp"
#include "notes.hpp"
#include "options.hpp"
#include "output.hpp"

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
  auto const store = space.history_memory(store_bytes, d.sizes.host);
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
  return results;
}

std::vector<result> run_space(workload const& work, options const& o) {
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
}

void write_report(std::string const& json, options const& o) {
  char const* const python = std::getenv("EBB_PYTHON");
  auto const data = o.report + ".json.part";
  write_whole(data, json);
  bool const done = process{{python != nullptr ? python : "python3", o.report_script, data, o.report}}.wait();
  std::filesystem::remove(data);
  if (!done)
    throw std::runtime_error{o.report + ": no report: " + (python != nullptr ? python : "python3") +
                             " with matplotlib is needed, or --no-report"};
}

int run(options const& o) {
  if (!o.json.empty()) require_writable(o.json);
  if (!o.no_report) require_writable(o.report);
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
  if (!o.no_report) {
    write_report(all.dump(), o);
    std::cout << "Report: " << o.report << '\n';
  }
  if (wrong > 0) std::cerr << "replay: " << wrong << " rows were wrong\n";
  return wrong > 0 ? 1 : 0;
}

}  // namespace replay

int main(int argc, char** argv) {
  CLI::App app{"Real sessions share a small GPU pool; every resolved row is checked."};
  replay::options o;
  replay::define(app, o);
  CLI11_PARSE(app, argc, argv);
  try {
    return replay::run(o);
  } catch (std::exception const& e) {
    std::cerr << "replay: " << e.what() << '\n';
    return 2;
  }
}

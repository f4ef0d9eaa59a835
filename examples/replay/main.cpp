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

inline constexpr std::size_t page_bytes = static_cast<std::size_t>(ebb::geometry_of<cut_model>::layout(0).stride);
static_assert(page_bytes == 36'864);

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
  auto const store = space.history_memory(static_cast<std::size_t>(o.host_pages) * page_bytes, d.sizes.host);
  d.sizes.host_memory = store.get();

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

/// What a reader must know about the numbers.
std::vector<std::string> notes(workload const& work, arrival_times const& arrivals, options const& o) {
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
      "fit: 288 bytes "
      "a row, pages of 128 tokens, top-k 512, " +
      std::to_string(o.work.queries) + " quer" + (o.work.queries == 1 ? "y" : "ies") + " a step.");
  out.push_back("Load: " + std::to_string(work.plays.size()) + " real coding sessions (Weka), " +
                std::to_string(calls) + " calls around each one's middle, history " +
                with_commas(static_cast<long long>(median)) + " tokens in the median, " + with_commas(lengths.back()) +
                " at most; " + std::to_string(work.too_long) + " calls left out as too long; calls decode at most " +
                std::to_string(o.work.max_out) + " tokens and follow each other within " +
                fixed_point(o.work.max_pause, 0) + " s.");
  out.push_back("Arrivals: sessions carry clocks of their own and are started at " + arrivals.title + " times, every " +
                std::to_string(o.work.arrivals_every) + ". from second " + fixed_point(o.work.arrivals_from, 0) +
                " on, clock × " + fixed_point(o.work.arrivals_speed, 0) + ". The combination is ours.");
  out.push_back(
      "Selections: recorded from a real decoder over 8,192 tokens and stretched to each history: the newest 1,024 "
      "positions keep "
      "their distance, older 64-row pages are spread evenly.");
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

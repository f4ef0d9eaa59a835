/// Cells of the resolver's grid under Google Benchmark: on the GPU when nvcc compiles it, with any C++20 compiler
/// (g++ -x c++) on the CPU. What is timed is one graph of resolves, divided by its calls; an iteration is a pass with
/// selections of its own, checked row by row before.
///
///   resolver_cells [--benchmark_filter=…]      EBB_GRID: quick (default on a GPU), full or tiny (default on a CPU)

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>

#include "resolver/stores.hpp"

namespace bench {

/// Groups are made one after another: only one has its instance.
class cells {
 public:
  explicit cells(std::string const& grid) {
    options_.grid = grid;
    options_.passes = 1;
    options_.reference = options_.floor = false;
    groups_ = merged(cells_of_grid(options_));
    std::erase_if(groups_, [](group_of_cells& g) {
      std::erase_if(g.cells, [](cell const& c) { return c.select == pattern::recorded || c.select == pattern::gemma; });
      return g.cells.empty() || part_for(g.s) == nullptr;
    });
    history_ = std::make_unique<stores>(space_, groups_);
  }
  void add_all() {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (cell const& c : groups_[g].cells) {
        setting const& s = groups_[g].s;
        std::string const name = c.axis + "/" + name_of(c.select) + "/batch:" + std::to_string(c.batch) +
                                 "/miss:" + std::to_string(c.miss).substr(0, 4) + "/top_k:" + std::to_string(s.top_k) +
                                 "/hot:" + std::to_string(s.hot()) + "/row:" + std::to_string(s.row_bytes) +
                                 "/queries:" + std::to_string(c.queries) + "/history:" + std::to_string(s.history) +
                                 (s.pinned ? "/pinned" : "") + (c.swept ? "/swept" : "");
        benchmark::RegisterBenchmark(name.c_str(), [this, g, c](benchmark::State& state) { run(state, g, c); })
            ->UseManualTime()
            ->Iterations(3)
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }

 private:
  void run(benchmark::State& state, std::size_t g, cell const& c) {
    if (made_ != g || !measure_) {
      measure_.reset();
      setting const& s = groups_[g].s;
      measure_ = part_for(s)->make(clock_, s, history_->of(s.pinned), options_);
      made_ = g;
    }
    double rows = 0, bytes = 0;
    for (auto _ : state) {
      measured const m = measure_->of(c, {});
      if (m.wrong > 0) state.SkipWithError("rows with wrong bytes were returned");
      state.SetIterationTime(1e-6 * m.us);
      rows += m.fetched_rows;
      bytes += m.fetched_rows * static_cast<double>(m.row_bytes);
    }
    state.SetBytesProcessed(static_cast<std::int64_t>(bytes));
    state.counters["fetched_rows"] = benchmark::Counter(rows, benchmark::Counter::kAvgIterations);
  }

  home space_{};
  options options_;
  std::vector<group_of_cells> groups_;
  std::unique_ptr<stores> history_;
  timing<home> clock_{space_, options_.grid == "tiny" ? std::size_t{1} << 20 : std::size_t{300} << 20};
  std::unique_ptr<any_measure> measure_;
  std::size_t made_ = 0;
};

}  // namespace bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
#if defined(__CUDACC__)
  char const* const usual = "quick";
  if (int devices = 0; cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "resolver_cells: there is no GPU here\n");
    return 77;
  }
#else
  char const* const usual = "tiny";
#endif
  char const* const asked = std::getenv("EBB_GRID");
  bench::cells all{asked != nullptr ? asked : usual};
  all.add_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}

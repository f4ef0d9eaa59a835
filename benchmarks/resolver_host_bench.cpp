/// The resolver on the host space: what a look, a claim and a copy cost a CPU. The same selections as on the GPU.
///
///   resolver_host_bench [--benchmark_filter=…]

#include <benchmark/benchmark.h>

#include "resolver/lookups.hpp"

namespace {

using policy = bench::subject_policy<576, 0, 512, 1>;

/// Arguments: requests of the batch, missing rows in per cent, hot rows as a multiple of top-k (0: all resident), rows
/// of a request's history. Every iteration is one resolve; steps, warming and checks are outside.
void resolve(benchmark::State& state) {
  bench::setting s{.top_k = policy::top_k,
                   .history = static_cast<int>(state.range(3)),
                   .requests = static_cast<int>(state.range(0))};
  s.whole = state.range(2) == 0;
  s.hot_factor = s.whole ? 2 : static_cast<int>(state.range(2));
  bench::cell c{.batch = s.requests, .miss = static_cast<double>(state.range(1)) / 100};
  c.select = s.whole ? bench::pattern::resident : bench::pattern::fresh;
  bench::lookups<policy> run{s, c};

  std::uint64_t wrong = 0;
  ebb::counters total{};
  auto const add = [&](ebb::counters const& from, ebb::counters const& to) {
    total.hot_hits += to.hot_hits - from.hot_hits + to.lent_hits - from.lent_hits;
    total.misses += to.misses - from.misses;
    total.fetched_bytes += to.fetched_bytes - from.fetched_bytes;
  };
  int call = 0;
  ebb::counters before{};
  for (auto _ : state) {
    if (call == 0) {
      state.PauseTiming();
      if (!s.whole) run.restart();
      before = run.counts();
      run.begin();
      state.ResumeTiming();
    }
    run.resolve(run.warm() + call);
    if (++call == run.calls()) {
      state.PauseTiming();
      wrong += run.wrong(run.warm() + call - 1);
      run.end();
      add(before, run.counts());
      call = 0;
      state.ResumeTiming();
    }
  }
  if (call > 0) {
    wrong += run.wrong(run.warm() + call - 1);
    run.end();
    add(before, run.counts());
  }
  if (wrong > 0) state.SkipWithError("rows with wrong bytes were returned");
  state.SetItemsProcessed(state.iterations() * run.entries());
  state.SetBytesProcessed(static_cast<std::int64_t>(total.fetched_bytes));
  state.counters["hit_share"] =
      static_cast<double>(total.hot_hits) / static_cast<double>(total.hot_hits + total.misses);
  state.counters["fetched_bytes"] =
      benchmark::Counter(static_cast<double>(total.fetched_bytes), benchmark::Counter::kAvgIterations);
}
BENCHMARK(resolve)
    ->ArgNames({"batch", "miss", "hot", "history"})
    ->ArgsProduct({{1, 8}, {0, 1, 14, 50}, {2, 4}, {32'768}})
    ->ArgsProduct({{1}, {0, 14}, {2}, {8'192, 131'072}})
    ->ArgsProduct({{1, 8}, {0}, {0}, {32'768}})
    ->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();

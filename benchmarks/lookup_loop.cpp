/// A fixed number of host lookups, for counting instructions: 20 resolves of 512 positions in one request, of which a
/// share is missing. Nothing else differs between two counts of different N.
///
///   lookup_loop N [MISS]      N rounds; MISS in per cent, default 0
///
/// Prints how many positions were looked up; ends with 1 when a row was wrong.

#include <cstdio>
#include <cstdlib>

#include "resolver/lookups.hpp"

int main(int argc, char** argv) {
  int const rounds = argc > 1 ? std::atoi(argv[1]) : 1;
  double const miss = argc > 2 ? std::atof(argv[2]) / 100 : 0;
  using policy = bench::subject_policy<576, 0, 512, 1>;
  bench::lookups<policy> run{{.top_k = policy::top_k, .history = 16'384, .requests = 1}, {.batch = 1, .miss = miss}};
  std::uint64_t wrong = 0;
  for (int r = 0; r < rounds; ++r) {
    run.begin();
    for (int c = 0; c < run.calls(); ++c) run.resolve(run.warm() + c);
    if (r == 0) wrong += run.wrong(run.warm() + run.calls() - 1);
    run.end();
    if (r + 1 < rounds && miss > 0) run.restart();
  }
  std::printf("%d\n", run.calls() * run.entries());
  return wrong == 0 ? 0 : 1;
}

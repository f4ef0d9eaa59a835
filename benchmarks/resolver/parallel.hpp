#pragma once
/// Host threads over a range.

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace bench {

/// Calls f(i) for i in 0 … n − 1, on as many threads as the machine has.
template <class F>
void parallel_for(int n, F f) {
  int const threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, std::min(n, 16));
  std::atomic<int> next{0};
  auto const work = [&] {
    for (int i; (i = next.fetch_add(1)) < n;) f(i);
  };
  std::vector<std::jthread> helpers;
  for (int k = 1; k < threads; ++k) helpers.emplace_back(work);
  work();
}

}  // namespace bench

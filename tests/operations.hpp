#pragma once
// What a random sequence is made of: small operations that stay meaningful when others are left out.

#include <ebb/host/queue.hpp>

#include <cstdint>
#include <vector>

namespace ebb::testing {

using host::generator;

enum class call : std::uint8_t {
  step,
  admit,
  finish,
  preempt,
  resume,
  truncate,
  reserve,
  import,
  publish,
  hold,
  take,
  collect,
  give,
  adopt,
  whole,
  refuse,
  wrong,
  advance,
  gate,
  quiesce,
  look,
  number
};
inline constexpr char const* call_names[] = {"step",   "admit",   "finish", "preempt", "resume",  "truncate", "reserve",
                                             "import", "publish", "hold",   "take",    "collect", "give",     "adopt",
                                             "whole",  "refuse",  "wrong",  "advance", "gate",    "quiesce",  "look"};

/// One call of a sequence. Its arguments come from the seed and the state that it finds, so that others may be left out.
struct operation {
  call what;
  std::uint32_t seed;
};

/// How an instance is made and used; the same seed makes the same.
struct setting {
  std::uint64_t seed = 0;
  bool deferred = false;
};

/// How often each call is made, in a mood that the seed decides.
inline std::vector<operation> random_operations(std::uint64_t seed, int n, bool deferred) {
  generator g{seed ^ 0x5EED};
  int weight[static_cast<int>(call::number)] = {
      100, 5, 2, 2, 3, 1, 8, 8, 8, 1, 1, 2, 2, 2, 1, 1, 2, deferred ? 20 : 0, deferred ? 2 : 0, 0, 1};
  for (int i = 1; i < static_cast<int>(call::quiesce); ++i) {
    int const mood = g.below(8);
    weight[i] = mood == 0 ? weight[i] / 2 : mood == 1 ? weight[i] * 4 : weight[i];
  }
  if (g.below(3) != 0) weight[static_cast<int>(call::refuse)] = 0;
  int all = 0;
  for (int w : weight) all += w;
  std::vector<operation> out;
  for (int i = 0; i < n; ++i) {
    int k = g.below(all * 300);
    call what = call::quiesce;
    if (k >= all) {
      k %= all;
      int c = 0;
      while (k >= weight[c]) k -= weight[c++];
      what = static_cast<call>(c);
    }
    out.push_back({what, static_cast<std::uint32_t>(g.next())});
  }
  return out;
}

}  // namespace ebb::testing

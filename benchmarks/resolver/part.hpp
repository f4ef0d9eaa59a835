#pragma once
/// The benchmark in parts that compile at the same time: one file of `parts/` for each policy.

#include <ebb/host/serial_space.hpp>

#include <memory>
#include <vector>

#include "measure.hpp"
#include "policies.hpp"

namespace bench {

/// Where this build of the benchmark runs: on the GPU when nvcc compiles it, else on the CPU.
#if defined(__CUDACC__)
using home = ebb::cuda_space;
#else
using home = ebb::serial_space;
#endif

/// What a part offers: cells of settings with these three numbers.
struct part {
  int row_bytes, top_k, max_queries;
  std::size_t (*store_bytes)(setting const&);
  std::unique_ptr<any_measure> (*make)(timing<home>&, setting const&, std::byte* store, options const&);

  bool serves(setting const& s) const {
    return row_bytes == s.row_bytes && top_k == s.top_k && max_queries == s.max_queries;
  }
};
/// Parts that were linked in.
inline std::vector<part>& parts() {
  static std::vector<part> all;
  return all;
}
inline part const* part_for(setting const& s) {
  for (part const& p : parts())
    if (p.serves(s)) return &p;
  return nullptr;
}

template <class P>
bool offer() {
  parts().push_back(
      {P::row.total(), P::top_k, P::max_queries, &subject<P, home>::store_bytes,
       [](timing<home>& clock, setting const& s, std::byte* store, options const& o) -> std::unique_ptr<any_measure> {
         return std::make_unique<measure<P, home>>(clock, s, store, o);
       }});
  return true;
}

}  // namespace bench

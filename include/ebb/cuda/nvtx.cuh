#pragma once
/// Named ranges for Nsight Systems, in the domain "ebb". Without NVTX's headers they are nothing.

#if __has_include(<nvtx3/nvtx3.hpp>)
#include <nvtx3/nvtx3.hpp>
#endif

namespace ebb {

#if __has_include(<nvtx3/nvtx3.hpp>)
struct nvtx_domain {
  static constexpr char const* name{"ebb"};
};
/// Marks the host's time from construction to destruction. Cost: a few nanoseconds without a profiler.
struct nvtx_range {
  explicit nvtx_range(char const* name) : range{name} {}
  nvtx3::scoped_range_in<nvtx_domain> range;
};
#else
struct nvtx_range {
  explicit nvtx_range(char const*) {}
  nvtx_range(nvtx_range const&) = delete;
};
#endif

}  // namespace ebb

#pragma once
/// Time of enqueued work: the stream's own clock on a GPU, the host's on a host space.

#include <ebb/space.hpp>

#include <chrono>
#include <cstring>

#if defined(__CUDACC__)
#include <ebb/cuda/cuda_space.cuh>
#endif

namespace bench {

/// Marks two points of a stream and says how long the work between them took.
template <ebb::space S>
class stopwatch {
 public:
  void start(S const& space, typename S::stream on) {
    space.synchronize(space.record(on));
    start_ = clock::now();
  }
  void stop(S const& space, typename S::stream on) {
    space.synchronize(space.record(on));
    stop_ = clock::now();
  }
  /// Requires: the stream has reached both points.
  double us() const { return std::chrono::duration<double, std::micro>(stop_ - start_).count(); }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point start_, stop_;
};

/// Copies that wait, between host memory and a space's device memory.
template <ebb::space S>
void copy_in(S const&, void* to, void const* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
template <ebb::space S>
void copy_out(S const& space, void* to, void const* from, std::size_t bytes) {
  if (bytes > 0) space.peek(to, from, bytes);
}

#if defined(__CUDACC__)
template <>
class stopwatch<ebb::cuda_space> {
 public:
  stopwatch() {
    ebb::check(cudaEventCreate(&start_));
    ebb::check(cudaEventCreate(&stop_));
  }
  stopwatch(stopwatch&& other) noexcept
      : start_{std::exchange(other.start_, nullptr)}, stop_{std::exchange(other.stop_, nullptr)} {}
  ~stopwatch() {
    if (start_ != nullptr) cudaEventDestroy(start_);
    if (stop_ != nullptr) cudaEventDestroy(stop_);
  }
  void start(ebb::cuda_space const&, ebb::cuda_stream on) { ebb::check(cudaEventRecord(start_, on.get())); }
  void stop(ebb::cuda_space const&, ebb::cuda_stream on) { ebb::check(cudaEventRecord(stop_, on.get())); }
  double us() const {
    float ms = 0;
    ebb::check(cudaEventElapsedTime(&ms, start_, stop_));
    return 1e3 * ms;
  }

 private:
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};
template <>
inline void copy_in(ebb::cuda_space const&, void* to, void const* from, std::size_t bytes) {
  ebb::check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  ebb::check(cudaStreamSynchronize(
      nullptr));  // of pageable memory the end may still be on its way, and our stream waits for nobody
}
#endif

template <ebb::space S>
void finish(S const& space, typename S::stream on) {
  space.synchronize(space.record(on));
}

}  // namespace bench

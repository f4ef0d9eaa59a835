#pragma once
// The spaces that a test is instantiated with: `TEST_CASE_TEMPLATE("…", S, EBB_SPACES)`, and `make_space<S>()` in it.
// Bodies of a test live in a namespace, not in a function: nvcc cannot launch local types.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#if defined(__CUDACC__)
#include <ebb/cuda/cuda_space.cuh>

#include <cstdlib>

#define EBB_SPACES ebb::cuda_space
#else
#include <ebb/host/serial_space.hpp>
#include <ebb/host/thread_space.hpp>

#define EBB_SPACES ebb::serial_space, ebb::thread_space<4>
#endif

namespace ebb::testing {

#if defined(__CUDACC__)
// A kernel that is loaded at its first launch would wait for the device, which a closed gate keeps busy.
inline int const kernels_are_loaded_at_start = setenv("CUDA_MODULE_LOADING", "EAGER", 1);

template <class S>
S make_space() {
  return S{};
}
/// Work takes place in an order that the seed decides; on a GPU in its own.
template <class S>
S make_deferred_space(std::uint64_t) {
  return S{};
}
#else
template <class S>
S make_space() {
  return S{};
}
template <class S>
S make_deferred_space(std::uint64_t seed) {
  return S{host::deferred{seed}};
}
#endif

/// How often a test repeats something: real threads take their time, a GPU has its own.
template <class S>
constexpr int times([[maybe_unused]] int serial, [[maybe_unused]] int threads, [[maybe_unused]] int device) {
#if defined(__CUDACC__)
  return device;
#else
  return std::is_base_of_v<serial_space, S> ? serial : threads;
#endif
}
template <class S>
constexpr int times(int serial, int threads) {
  return times<S>(serial, threads, serial);
}
/// In real threads a part of the variants is enough: they take the same paths between bodies.
template <class S>
inline constexpr bool all_variants = times<S>(1, 0, 1) == 1;

/// Waits until everything enqueued on `stream` is done.
template <class S>
void finish(S const& space, typename S::stream const& stream) {
  space.synchronize(space.record(stream));
}

/// `n` values of T in memory that bodies and the test both read and write.
template <class T>
struct shared_array {
  template <class S>
  shared_array(S const& space, std::size_t n) : memory{space.shared_memory(n * sizeof(T))}, size{n} {}
  T* data() const { return reinterpret_cast<T*>(memory.get()); }
  T& operator[](std::size_t i) const { return data()[i]; }
  T* begin() const { return data(); }
  T* end() const { return data() + size; }

  std::shared_ptr<std::byte> memory;
  std::size_t size;
};

}  // namespace ebb::testing

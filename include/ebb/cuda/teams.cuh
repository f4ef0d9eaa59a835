#pragma once
/// Teams of a GPU: a thread block. (A cluster of blocks, `cluster_team<N, Blocks>`, belongs here beside it: rank over
/// all of its blocks, `sync` = cluster barrier, `prefix` and `any` through distributed shared memory; `team_for` then
/// chooses it.)

#include <ebb/team.hpp>

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace ebb {

/// What one lane copies at once: `Bytes` bytes in as few registers as hold them.
template <int Bytes>
using piece = std::conditional_t<
    Bytes == 16, uint4,
    std::conditional_t<
        Bytes == 8, uint2,
        std::conditional_t<Bytes == 4, unsigned, std::conditional_t<Bytes == 2, unsigned short, unsigned char>>>>;

/// The word operations of every device team. Words and counters may lie in device, host-mapped or shared memory; sets
/// and copies in the first two. Atomic operations are relaxed and of device scope: two blocks see each other's, the
/// host does not until the stream says so.
struct device_words {
  __device__ std::uint32_t load(std::uint32_t const* word) const {
    std::uint32_t value;
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
  }
  __device__ bool cas(std::uint32_t* word, std::uint32_t old, std::uint32_t now) const {
    return atomicCAS(word, old, now) == old;
  }

  template <std::unsigned_integral I>
  __device__ I add(I* counter, I n) const {
    static_assert(sizeof(I) == 4 || sizeof(I) == 8, "ebb team: `add` counts in 32 or 64 bits");
    using word = std::conditional_t<sizeof(I) == 4, unsigned, unsigned long long>;
    return static_cast<I>(atomicAdd(reinterpret_cast<word*>(counter), static_cast<word>(n)));
  }

  /// Four words a load where the set allows it, never from the first-level cache. Requires: `words` in device or mapped
  /// memory. Cost: a constant n keeps `out` in registers; `__builtin_assume_aligned(words, 16)` drops the way for sets
  /// that are not.
  __device__ void load_set(std::uint32_t const* words, int n, std::uint32_t* out) const {
    if (n % 4 == 0 && reinterpret_cast<std::uintptr_t>(words) % 16 == 0) {
#pragma unroll
      for (int i = 0; i < n; i += 4) {
        asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[i]), "=r"(out[i + 1]), "=r"(out[i + 2]), "=r"(out[i + 3])
                     : "l"(__cvta_generic_to_global(words + i))
                     : "memory");
      }
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i) out[i] = load(words + i);
    }
  }

  template <int Bytes>
  __device__ void copy(std::byte* to, std::byte const* from) const {
    __stcs(reinterpret_cast<piece<Bytes>*>(to), __ldcs(reinterpret_cast<piece<Bytes> const*>(from)));
  }
  /// All loads before the first store: this is what keeps the link busy.
  template <int Bytes, int K>
  __device__ void copy(std::byte* const (&to)[K], std::byte const* const (&from)[K]) const {
    piece<Bytes> held[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (from[k] != nullptr) held[k] = __ldcs(reinterpret_cast<piece<Bytes> const*>(from[k]));
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (from[k] != nullptr) __stcs(reinterpret_cast<piece<Bytes>*>(to[k]), held[k]);
    }
  }
};

/// The N threads of a block.
template <int N>
class block_team : public device_words {
  static_assert(N % 32 == 0 && N >= 32 && N <= 1024, "ebb team: a block has 32, 64, 96, … or 1024 threads");
  static constexpr int warps = N / 32;

 public:
  static constexpr int width = N;

  block_team() = default;
  block_team(block_team const&) = delete;
  block_team& operator=(block_team const&) = delete;

  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ void sync() const { __syncthreads(); }
  __device__ bool any(bool p) const { return __syncthreads_or(p) != 0; }

  __device__ vote prefix(bool p) const {
    unsigned const votes = __ballot_sync(~0u, p);
    unsigned const lane = threadIdx.x % 32;
    int const before_in_warp = __popc(votes & ((1u << lane) - 1));
    // One barrier a call: a lane that is still reading the totals of this call cannot meet the writes of the next,
    // which go to the other half, nor those of the next but one, which come after the next one's barrier.
    __shared__ alignas(16) int totals[2][warps];
    int (&now)[warps] = totals[turn_];
    turn_ ^= 1;
    if (lane == 0) now[threadIdx.x / 32] = __popc(votes);
    __syncthreads();
    vote answer{before_in_warp, 0};
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      int const n = now[w];
      answer.before += w < static_cast<int>(threadIdx.x / 32) ? n : 0;
      answer.all += n;
    }
    return answer;
  }

 private:
  mutable int turn_ = 0;  // the same in every lane, because every lane reaches every collective
};
static_assert(team<block_team<256>> && team<block_team<32>>);

/// Threads a block of `Body` has: `Body::threads`, or 256.
template <class Body>
inline constexpr int threads_of = 256;
template <class Body>
  requires requires { Body::threads; }
inline constexpr int threads_of<Body> = Body::threads;

/// The team that runs `Body`.
template <class Body>
using team_for = block_team<threads_of<Body>>;

}  // namespace ebb

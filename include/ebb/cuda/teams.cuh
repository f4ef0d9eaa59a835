#pragma once
/// Teams of a GPU: a thread block, or a cluster of them.

#include <ebb/team.hpp>

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace ebb {

/// What one load or store moves: `Bytes` bytes in as few registers as hold them.
template <int Bytes>
using vector_of = std::conditional_t<
    Bytes == 16, uint4,
    std::conditional_t<
        Bytes == 8, uint2,
        std::conditional_t<Bytes == 4, unsigned, std::conditional_t<Bytes == 2, unsigned short, unsigned char>>>>;

/// The word operations of every device team. Words, sets and counters may lie in device, host-mapped or shared memory;
/// copies in the first two. Atomic operations are relaxed and of device scope: two blocks see each other's, the
/// host does not until the stream says so.
struct device_words {
  /// A word in shared memory concerns its block alone, and is read there without the way through the memory system.
  __device__ std::uint32_t load(std::uint32_t const* word) const {
    std::uint32_t value;
    if (__isShared(word)) {
      asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];"
                   : "=r"(value)
                   : "l"(__cvta_generic_to_shared(word))
                   : "memory");
    } else {
      asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    }
    return value;
  }
  __device__ void store(std::uint32_t* word, std::uint32_t value) const {
    asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
  }
  __device__ std::uint32_t exchange(std::uint32_t* word, std::uint32_t old, std::uint32_t now) const {
    return atomicCAS(word, old, now);
  }

  template <std::unsigned_integral I>
  __device__ I add(I* counter, I n) const {
    static_assert(sizeof(I) == 4 || sizeof(I) == 8, "ebb team: `add` counts in 32 or 64 bits");
    using word = std::conditional_t<sizeof(I) == 4, unsigned, unsigned long long>;
    return static_cast<I>(atomicAdd(reinterpret_cast<word*>(counter), static_cast<word>(n)));
  }

  /// Four words a load where the set allows it, never from the first-level cache. Cost: a constant n keeps `out` in
  /// registers; `__builtin_assume_aligned(words, 16)` drops the way for sets that are not.
  __device__ void load_set(std::uint32_t const* words, int n, std::uint32_t* out) const {
    if (n % 4 == 0 && reinterpret_cast<std::uintptr_t>(words) % 16 == 0) {
#pragma unroll
      for (int i = 0; i < n; i += 4) {
        asm volatile("ld.relaxed.gpu.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[i]), "=r"(out[i + 1]), "=r"(out[i + 2]), "=r"(out[i + 3])
                     : "l"(words + i)
                     : "memory");
      }
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i) out[i] = load(words + i);
    }
  }

  __device__ int lowest(std::uint32_t bits) const { return __ffs(static_cast<int>(bits)) - 1; }

  template <int Bytes, int K>
  __device__ void read(piece<Bytes> (&held)[K], std::byte const* const (&from)[K]) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (from[k] != nullptr) {
        reinterpret_cast<vector_of<Bytes>&>(held[k]) = __ldcs(reinterpret_cast<vector_of<Bytes> const*>(from[k]));
      }
    }
  }
  template <int Bytes, int K>
  __device__ void write(std::byte* const (&to)[K], piece<Bytes> const (&held)[K]) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (to[k] != nullptr) {
        __stcs(reinterpret_cast<vector_of<Bytes>*>(to[k]), reinterpret_cast<vector_of<Bytes> const&>(held[k]));
      }
    }
  }
  template <int Bytes>
  __device__ void copy(std::byte* to, std::byte const* from) const {
    __stcs(reinterpret_cast<vector_of<Bytes>*>(to), __ldcs(reinterpret_cast<vector_of<Bytes> const*>(from)));
  }
  /// All loads before the first store: this is what keeps the link busy.
  template <int Bytes, int K>
  __device__ void copy(std::byte* const (&to)[K], std::byte const* const (&from)[K]) const {
    piece<Bytes> held[K];
    read(held, from);
    std::byte* targets[K];
#pragma unroll
    for (int k = 0; k < K; ++k) targets[k] = from[k] != nullptr ? to[k] : nullptr;
    write(targets, held);
  }

  static constexpr int bundle = 8;
  __device__ int bundle_rank() const { return static_cast<int>(threadIdx.x) % bundle; }
  __device__ std::uint32_t least(std::uint32_t v) const {
#pragma unroll
    for (int step = 1; step < bundle; step *= 2) v = min(v, __shfl_xor_sync(~0u, v, step));
    return v;
  }
  __device__ bool some(bool p) const {
    __syncwarp();  // what lanes read before it, others may change behind it
    return __any_sync(~0u, p) != 0;
  }

  /// One atomic a warp.
  __device__ void add_all(std::uint64_t* counter, std::uint32_t n) const {
    std::uint32_t const all = __reduce_add_sync(~0u, n);
    if (threadIdx.x % 32 == 0 && all > 0) {
      asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(counter)),
                   "l"(std::uint64_t{all})
                   : "memory");
    }
  }
};

/// The N threads of a block.
template <int N>
class block_team : public device_words {
  static_assert(N % 32 == 0 && N >= 32 && N <= 1024, "ebb team: a block has 32, 64, 96, … or 1024 threads");
  static constexpr int warps = N / 32;

 public:
  static constexpr int width = N, blocks = 1, block_width = N;

  block_team() = default;
  block_team(block_team const&) = delete;
  block_team& operator=(block_team const&) = delete;

  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int block() const { return 0; }
  __device__ int block_rank() const { return rank(); }
  __device__ void sync() const { __syncthreads(); }
  __device__ void sync_or_leave(bool) const { __syncthreads(); }
  __device__ void block_sync() const { __syncthreads(); }
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

/// The N threads of each of `Blocks` blocks that run at the same time, near each other. Ranks go from warp to warp of
/// different blocks, so that the first lanes of a team are in all of its blocks.
template <int N, int Blocks>
class cluster_team : public device_words {
  static_assert(N % 32 == 0 && N >= 32 && N <= 1024, "ebb team: a block has 32, 64, 96, … or 1024 threads");
  static_assert(Blocks >= 2 && Blocks <= 8, "ebb team: a cluster has 2 to 8 blocks");
  static constexpr int warps = N / 32;

 public:
  static constexpr int width = N * Blocks, blocks = Blocks, block_width = N;

  cluster_team() = default;
  cluster_team(cluster_team const&) = delete;
  cluster_team& operator=(cluster_team const&) = delete;

  __device__ int rank() const {
    int const thread = static_cast<int>(threadIdx.x);
    return (thread / 32 * Blocks + block()) * 32 + thread % 32;
  }
  __device__ int block() const {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return static_cast<int>(rank);
  }
  __device__ int block_rank() const { return static_cast<int>(threadIdx.x); }
  __device__ void sync() const { sync_or_leave(false); }
  __device__ void sync_or_leave(bool leave) const {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    if (!leave) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
  __device__ void block_sync() const { __syncthreads(); }
  __device__ bool any(bool p) const { return prefix(p).all > 0; }

  /// Every warp tells all blocks its total, once all of them are running.
  __device__ vote prefix(bool p) const {
    if (!met_) sync();
    met_ = true;
    unsigned const votes = __ballot_sync(~0u, p);
    unsigned const lane = threadIdx.x % 32;
    int const mine = static_cast<int>(threadIdx.x / 32) * Blocks + block();
    __shared__ alignas(16) int totals[2][warps * Blocks];  // one barrier a call, as in block_team
    int (&now)[warps * Blocks] = totals[turn_];
    turn_ ^= 1;
    if (lane < Blocks) {
      unsigned place;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                   : "=r"(place)
                   : "r"(static_cast<unsigned>(__cvta_generic_to_shared(now + mine))), "r"(lane));
      asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(place), "r"(__popc(votes)) : "memory");
    }
    sync();
    int before = 0, all = 0;
    for (int w = static_cast<int>(lane); w < warps * Blocks; w += 32) {
      before += w < mine ? now[w] : 0;
      all += now[w];
    }
    return {__reduce_add_sync(~0u, before) + __popc(votes & ((1u << lane) - 1)), __reduce_add_sync(~0u, all)};
  }

 private:
  mutable int turn_ = 0;  // these are the same in every lane, because every lane reaches every collective
  mutable bool met_ = false;
};
static_assert(team<cluster_team<256, 8>>);

/// Threads a block of `Body` has: `Body::threads`, a number or a function of the blocks that work for an item, or 256.
template <class Body, int Blocks = 1>
constexpr int threads_of() {
  if constexpr (requires { Body::threads(Blocks); }) {
    return Body::threads(Blocks);
  } else if constexpr (requires { Body::threads; }) {
    return Body::threads;
  } else {
    return 256;
  }
}

/// Blocks that may work for one item of `Body`: `Body::most_blocks`, or 1.
template <class Body>
inline constexpr int most_blocks_of = 1;
template <class Body>
  requires requires { Body::most_blocks; }
inline constexpr int most_blocks_of<Body> = Body::most_blocks;

/// The team of `Blocks` blocks that runs `Body`.
template <class Body, int Blocks = 1>
using team_for = std::conditional_t<Blocks == 1, block_team<threads_of<Body, Blocks>()>,
                                    cluster_team<threads_of<Body, Blocks>(), Blocks == 1 ? 2 : Blocks>>;
}  // namespace ebb

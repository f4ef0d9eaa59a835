#pragma once
/// The only macros and the only defaults of the library.

#include <cassert>

#define EBB_VERSION_MAJOR 0
#define EBB_VERSION_MINOR 1

/// EBB_FN marks what runs on the host and in a kernel; EBB_BODY goes before a templated body operator, whose team
/// decides where it runs; EBB_UNROLL goes before a loop whose arrays a kernel is to keep in registers, EBB_ROLL before
/// one whose machine code is to stay small.
#if defined(__CUDACC__)
#define EBB_FN __host__ __device__
#define EBB_BODY _Pragma("nv_exec_check_disable")
#else
#define EBB_FN
#define EBB_BODY
#endif
#if defined(__CUDA_ARCH__)
#define EBB_UNROLL _Pragma("unroll")
#define EBB_ROLL _Pragma("unroll 1")
#else
#define EBB_UNROLL
#define EBB_ROLL
#endif

/// An internal invariant of host code. Bad input never reaches one: it is refused by an exception, a result or a
/// counter.
#define EBB_ASSERT(condition) assert(condition)

namespace ebb::defaults {
/// Bytes of history that one begin_step hands back at most.
inline constexpr long long refill_bytes = 32LL << 20;
/// A request whose loans were revoked is not refilled for this many steps.
inline constexpr int refill_pause = 10;
/// One selected row in this many is counted for `most_selected`.
inline constexpr int use_sample = 16;
/// Steps between two readings of the use counts.
inline constexpr int use_period = 16;
/// Host pages are handed out in runs of about this many bytes per request and source.
inline constexpr long long run_bytes = 2LL << 20;
}  // namespace ebb::defaults

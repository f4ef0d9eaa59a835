#pragma once
/// Memory of the host store: large, in host memory, read and written by bodies at the link's rate.

#include <ebb/cuda/check.cuh>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace ebb {

/// Bytes of host memory that can be had without swapping, as the kernel estimates it; the largest number where it does
/// not say.
inline std::size_t free_host_memory() {
  std::ifstream lines{"/proc/meminfo"};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("MemAvailable:")) return std::stoull(line.substr(13)) * 1024;
  }
  return std::numeric_limits<std::size_t>::max();
}

/// The host's memory node next to `device`; −1 where there is no choice or the device does not say.
inline int nearest_node(int device) {
  int node = -1;
  if (!std::filesystem::exists("/sys/devices/system/node/node1")) return -1;
  if (cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, device) != cudaSuccess) cudaGetLastError();
  return node;
}

/// Writes zeros into fresh memory from several threads, which is what makes it exist; unless `trusting`, in slices, as
/// long as the host has memory for the next one. Throws: std::runtime_error with wanted and free bytes where the host
/// stays short of memory for five seconds.
inline void touch(std::byte* memory, std::size_t bytes, bool trusting) {
  constexpr std::size_t unit = std::size_t{2} << 20;
  std::size_t const slice = trusting ? std::max(bytes, unit) : std::size_t{512} << 20;
  std::size_t const threads = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  for (std::size_t from = 0; from < bytes; from += slice) {
    std::size_t const to = std::min(bytes, from + slice);
    for (int tries = 0; !trusting && free_host_memory() < to - from + (slice >> 1); ++tries) {
      if (tries == 500) {
        throw std::runtime_error("ebb: history memory: wanted " + std::to_string(bytes) +
                                 " bytes of host memory, free " + std::to_string(free_host_memory()) +
                                 " after the first " + std::to_string(from));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{10});
    }
    std::size_t const share = ((to - from) / threads / unit + 1) * unit;
    std::vector<std::jthread> workers;
    for (std::size_t mine = from; mine < to; mine += share) {
      workers.emplace_back([=] { std::memset(memory + mine, 0, std::min(share, to - mine)); });
    }
  }
}

inline void advise(void* memory, std::size_t bytes, cudaMemoryAdvise advice, cudaMemLocation location) {
#if CUDART_VERSION >= 13000
  check(cudaMemAdvise(memory, bytes, advice, location));
#else
  check(cudaMemAdvise_v2(memory, bytes, advice, location));
#endif
}

/// Managed memory that lives on the host, on the node next to the device, and that the device maps in large pages.
/// `taken` counts what this space has of it. Throws: std::runtime_error where the device cannot share it with a running
/// host, where it would exceed the device's free memory (unless `above_device`: tried up to there only, and a driver in
/// trouble can hang the GPU), or where the host is short of memory.
inline std::shared_ptr<std::byte> managed_history(int device, std::size_t bytes,
                                                  std::shared_ptr<std::atomic<std::size_t>> taken, bool above_device,
                                                  bool trusting) {
  current_device const scope{device};
  int concurrent = 0;
  check(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, device));
  if (concurrent == 0) {
    throw std::runtime_error("ebb: history memory: device " + std::to_string(device) +
                             " has no concurrent managed access; ask for host_kind::pinned");
  }
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total));
  if (*taken + bytes > free && !above_device) {
    throw std::runtime_error("ebb: history memory: wanted " + std::to_string(bytes) +
                             " bytes of managed memory beside " + std::to_string(*taken) +
                             " already taken, free on device " + std::to_string(device) + ": " + std::to_string(free) +
                             "; set allow_managed_above_device, or ask for host_kind::pinned");
  }
  void* memory = nullptr;
  check(cudaMallocManaged(&memory, std::max<std::size_t>(bytes, 1), cudaMemAttachGlobal));
  *taken += bytes;
  std::shared_ptr<std::byte> owner{static_cast<std::byte*>(memory), [taken, bytes](std::byte* p) {
                                     cudaFree(p);
                                     *taken -= bytes;
                                   }};
  if (bytes == 0) return owner;
  int const node = nearest_node(device);
  cudaMemLocation const host =
      node < 0 ? cudaMemLocation{cudaMemLocationTypeHost, 0} : cudaMemLocation{cudaMemLocationTypeHostNuma, node};
  advise(memory, bytes, cudaMemAdviseSetPreferredLocation, host);
  advise(memory, bytes, cudaMemAdviseSetAccessedBy, {cudaMemLocationTypeDevice, device});
  touch(owner.get(), bytes, trusting);
  return owner;
}

/// Host memory that was mapped, touched and then registered with every device.
class pinned_pages {
 public:
  /// Throws: std::runtime_error with wanted and free bytes and the memlock limit.
  pinned_pages(int device, std::size_t wanted, bool trusting) : mapped_{wanted + 2 * huge_page} {
    std::size_t const bytes = std::max<std::size_t>(wanted, 1);
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) throw std::runtime_error(refusal(bytes, "the address space has no room"));
    data_ =
        reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(base_) + huge_page - 1) / huge_page * huge_page);
    try {
      fill(device, bytes, trusting);
    } catch (...) {
      munmap(base_, mapped_);
      throw;
    }
  }
  pinned_pages(pinned_pages const&) = delete;
  pinned_pages& operator=(pinned_pages const&) = delete;
  ~pinned_pages() {
    cudaHostUnregister(data_);
    munmap(base_, mapped_);
  }
  std::byte* data() const { return data_; }

 private:
  static constexpr std::size_t huge_page = std::size_t{2} << 20;

  void fill(int device, std::size_t bytes, bool trusting) {
    madvise(data_, bytes, MADV_HUGEPAGE);  // faults and registers faster; a refusal costs only that
    if (int const node = nearest_node(device); node >= 0 && node < 1024) {
      constexpr int bits = std::numeric_limits<unsigned long>::digits;
      constexpr int preferred = 1;  // MPOL_PREFERRED: a full node is not a failure
      unsigned long nodes[1024 / bits]{};
      nodes[node / bits] = 1ul << node % bits;
      syscall(SYS_mbind, data_, bytes, preferred, nodes, 1024ul, 0u);
    }
    touch(data_, bytes, trusting);
    current_device const scope{device};
    cudaError_t const result = cudaHostRegister(data_, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (result != cudaSuccess) {
      cudaGetLastError();
      throw std::runtime_error(refusal(bytes, cudaGetErrorString(result)));
    }
    void* seen = nullptr;
    if (cudaHostGetDevicePointer(&seen, data_, 0) != cudaSuccess || seen != data_) {
      cudaGetLastError();
      cudaHostUnregister(data_);
      throw std::runtime_error("ebb: history memory: device " + std::to_string(device) + " cannot use host addresses");
    }
  }
  static std::string refusal(std::size_t bytes, std::string const& why) {
    rlimit limit{};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    return "ebb: history memory: wanted " + std::to_string(bytes) + " bytes of pinned memory, free " +
           std::to_string(free_host_memory()) + ", memlock limit " +
           (limit.rlim_cur == RLIM_INFINITY ? "none" : std::to_string(limit.rlim_cur)) + ": " + why +
           "; raise the limit with `ulimit -l unlimited`, LimitMEMLOCK=infinity in a service, --ulimit memlock=-1 in a "
           "container";
  }

  std::size_t mapped_;
  void* base_;
  std::byte* data_;
};

}  // namespace ebb

#pragma once
/// Device memory and small mapped host memory. The host store's memory is in `history.cuh`.

#include <ebb/cuda/check.cuh>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

namespace ebb {

/// Zeroed memory of device `device`, cleared on `beside`, a stream of that device with nothing else in it. Freeing it
/// waits for the device. Throws: std::runtime_error with wanted and free bytes. Stream: waits.
inline std::shared_ptr<std::byte> device_memory(int device, cudaStream_t beside, std::size_t bytes) {
  current_device const scope{device};
  beside_captures const allowed;
  void* memory = nullptr;
  if (cudaError_t const result = cudaMalloc(&memory, std::max<std::size_t>(bytes, 1));
      result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total));
    throw std::runtime_error("ebb: device memory: wanted " + std::to_string(bytes) + " bytes, free " +
                             std::to_string(free) + " of " + std::to_string(total) + " on device " +
                             std::to_string(device));
  } else {
    check(result);
  }
  std::shared_ptr<std::byte> owner{static_cast<std::byte*>(memory), [](std::byte* p) { cudaFree(p); }};
  check(cudaMemsetAsync(memory, 0, bytes, beside));
  check(cudaStreamSynchronize(beside));
  return owner;
}

/// Zeroed pinned host memory that every device reads and writes at the same address. For control words, not for
/// history. Throws: std::runtime_error.
inline std::shared_ptr<std::byte> mapped_memory(int device, std::size_t bytes) {
  current_device const scope{device};
  beside_captures const allowed;
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, std::max<std::size_t>(bytes, 1), cudaHostAllocMapped | cudaHostAllocPortable));
  std::memset(memory, 0, bytes);
  return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFreeHost(p); }};
}

}  // namespace ebb

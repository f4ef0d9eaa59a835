#pragma once
/// CUDA calls that fail become exceptions, and the two things of a thread that a call may have to set aside.

#include <cuda_runtime.h>

#include <source_location>
#include <stdexcept>
#include <string>

namespace ebb {

/// Passes a successful CUDA call.
/// Throws: std::runtime_error with the error's name and text and the place of the call. An error of earlier
/// asynchronous work is reported by whichever call comes next and stays with the device; any other is forgotten, so
/// that later calls are not blamed for it.
inline void check(cudaError_t result, std::source_location where = std::source_location::current()) {
  if (result == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();
  throw std::runtime_error(std::string{cudaGetErrorName(result)} + ": " + cudaGetErrorString(result) + " (" +
                           where.file_name() + ":" + std::to_string(where.line()) + ", " + where.function_name() + ")");
}

/// Makes `device` the thread's current device for a scope.
class current_device {
 public:
  explicit current_device(int device) {
    check(cudaGetDevice(&before_));
    if (before_ == device) {
      before_ = -1;
    } else {
      check(cudaSetDevice(device));
    }
  }
  current_device(current_device const&) = delete;
  current_device& operator=(current_device const&) = delete;
  ~current_device() {
    if (before_ >= 0) cudaSetDevice(before_);
  }

 private:
  int before_ = -1;
};

/// For a scope, calls that a capture elsewhere would forbid (queries, waits, allocations) are allowed: nothing here is
/// part of a capture.
class beside_captures {
 public:
  beside_captures() { check(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  beside_captures(beside_captures const&) = delete;
  beside_captures& operator=(beside_captures const&) = delete;
  ~beside_captures() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace ebb

#pragma once
/// Handles of streams and events of a GPU.

#include <ebb/cuda/check.cuh>

#include <cstddef>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

namespace ebb {

/// A stream of a GPU: one that a space owns (`make_stream`) or the engine's own `cudaStream_t`, which it names without
/// owning it. Default-constructed it names none, and every use throws. The default stream is refused: it can neither be
/// captured nor run beside others.
class cuda_stream {
 public:
  constexpr cuda_stream() = default;
  /// Throws: std::invalid_argument for the default (null or legacy) stream.
  cuda_stream(cudaStream_t stream) : stream_{stream} {
    if (stream == nullptr || stream == cudaStreamLegacy) {
      throw std::invalid_argument("ebb: stream: the default stream was given; create one, cudaStreamNonBlocking say");
    }
  }
  cuda_stream(std::nullptr_t) = delete;
  cuda_stream(int) = delete;

  /// Throws: std::invalid_argument where the handle names no stream.
  cudaStream_t get() const {
    if (stream_ == nullptr)
      throw std::invalid_argument("ebb: stream: a default-constructed handle was used; it names no stream");
    return stream_;
  }
  friend constexpr bool operator==(cuda_stream, cuda_stream) = default;

 private:
  cudaStream_t stream_ = nullptr;
};

/// A point in a stream. Copies name the same point; default-constructed: already reached.
class cuda_event {
 public:
  cuda_event() = default;
  explicit cuda_event(std::shared_ptr<CUevent_st> event) : event_{std::move(event)} {}

  explicit operator bool() const { return event_ != nullptr; }
  cudaEvent_t get() const { return event_.get(); }

 private:
  std::shared_ptr<CUevent_st> event_;
};

/// Events of one device that are used again: recording a point creates none once as many exist as are held at a time.
/// Concurrency: any thread.
class event_pool : public std::enable_shared_from_this<event_pool> {
 public:
  explicit event_pool(int device) : device_{device} {}
  event_pool(event_pool const&) = delete;
  event_pool& operator=(event_pool const&) = delete;
  ~event_pool() {
    for (cudaEvent_t event : free_) cudaEventDestroy(event);
  }

  /// An event nobody else holds; it returns to the pool with its last copy. (A stream that was told to wait for it
  /// keeps the point it was told, so the event may be recorded again at once.)
  cuda_event take() {
    std::scoped_lock lock{mutex_};
    if (free_.empty()) {
      free_.reserve(++created_);  // so that giving back cannot fail
      current_device const scope{device_};
      beside_captures const allowed;
      cudaEvent_t event;
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      free_.push_back(event);
    }
    cudaEvent_t const event = free_.back();
    free_.pop_back();
    return cuda_event{{event, [pool = shared_from_this()](cudaEvent_t e) {
                         std::scoped_lock back{pool->mutex_};
                         pool->free_.push_back(e);
                       }}};
  }

 private:
  int device_;
  std::mutex mutex_;
  std::size_t created_ = 0;
  std::vector<cudaEvent_t> free_;
};

}  // namespace ebb

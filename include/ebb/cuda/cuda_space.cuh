#pragma once
/// Runs bodies on a GPU.

#include <ebb/cuda/check.cuh>
#include <ebb/cuda/gate.cuh>
#include <ebb/cuda/graph.cuh>
#include <ebb/cuda/history.cuh>
#include <ebb/cuda/memory.cuh>
#include <ebb/cuda/nvtx.cuh>
#include <ebb/cuda/stream.cuh>
#include <ebb/cuda/teams.cuh>
#include <ebb/space.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace ebb {

/// The one kernel of the library: a block of N threads runs `body` for item `blockIdx.x`.
template <int N, class Body>
__global__ void __launch_bounds__(N) launch(__grid_constant__ Body const body) {
  using shared = typename shared_of<Body>::type;
  static_assert(
      sizeof(shared) + 2 * sizeof(int) * (N / 32) + 16 <= 48 * 1024,
      "ebb body: `shared` and the team's own words exceed 48 KB, what a block may declare; make `shared` smaller");
  static_assert(
      std::is_trivially_default_constructible_v<shared>,
      "ebb body: `shared` is initialised by its constructor; a team's memory starts uninitialised, let lanes set it");
  static_assert(N == team_for<Body>::width);
  team_for<Body> const team;
  if constexpr (std::is_same_v<shared, no_shared>) {
    no_shared none;
    call(body, team, static_cast<int>(blockIdx.x), none);
  } else {
    __shared__ shared memory;
    call(body, team, static_cast<int>(blockIdx.x), memory);
  }
}

struct cuda_options {
  int device = -1;                          ///< −1: the thread's current device
  bool allow_managed_above_device = false;  ///< managed history beyond the device's free memory: untried
  bool trust_host_memory = false;           ///< history is touched without asking the host how much memory is free
};

/// The GPU as a space; satisfies `space`, whose table says what each member means. Copies share one state. Streams it
/// made live as long as the state. Errors of CUDA calls, of earlier asynchronous work too, are thrown as
/// std::runtime_error by whichever call meets them. Concurrency: one control thread; events may be dropped by any.
class cuda_space {
 public:
  using stream = cuda_stream;
  using event = cuda_event;
  using graph = cuda_graph;
  using gate = cuda_gate;

  explicit cuda_space(cuda_options const& options = {}) : state_{std::make_shared<state>(options)} {}

  int device() const { return state_->options.device; }

  stream make_stream() const {
    current_device const scope{device()};
    return state_->add_stream();
  }

  /// Throws: std::invalid_argument for less than no items. Stream: enqueues one kernel of `items` blocks; nothing for
  /// no items.
  template <class Body>
  void run(stream const& on, int items, Body const& body) const {
    static_assert(std::is_trivially_copyable_v<Body>,
                  "ebb body: a body is copied to the GPU as bytes; keep refs and numbers in it, no owners");
    if (items < 0) throw std::invalid_argument("run: items is " + std::to_string(items) + ", allowed is 0 or more");
    if (items == 0) return;
    current_device const scope{device()};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(items));
    config.blockDim = dim3(threads_of<Body>);
    config.stream = on.get();
    check(cudaLaunchKernelEx(&config, ebb::launch<threads_of<Body>, Body>, body));
  }

  event record(stream const& on) const {
    event point = state_->events->take();
    check(cudaEventRecord(point.get(), on.get()));
    return point;
  }
  /// Stream: inside a capture, `point` must have been recorded in it.
  void wait(stream const& on, event const& point) const {
    if (point) check(cudaStreamWaitEvent(on.get(), point.get(), 0));
  }
  /// Requires: `point` was not recorded in a capture.
  bool reached(event const& point) const {
    if (!point) return true;
    beside_captures const allowed;
    cudaError_t const result = cudaEventQuery(point.get());
    if (result != cudaErrorNotReady) {
      check(result);
      return true;
    }
    cudaGetLastError();
    return false;
  }
  /// Requires: `point` was not recorded in a capture.
  void synchronize(event const& point) const {
    if (!point) return;
    beside_captures const allowed;
    check(cudaEventSynchronize(point.get()));
  }

  bool capturing(stream const& on) const {
    cudaStreamCaptureStatus status;
    check(cudaStreamIsCapturing(on.get(), &status));
    return status != cudaStreamCaptureStatusNone;
  }
  void begin_capture(stream const& on) const {
    check(cudaStreamBeginCapture(on.get(), cudaStreamCaptureModeThreadLocal));
  }
  graph end_capture(stream const& on) const {
    cudaGraph_t captured = nullptr;
    check(cudaStreamEndCapture(on.get(), &captured));
    return graph{captured};
  }
  void launch(stream const& on, graph const& work) const { check(cudaGraphLaunch(work.get(), on.get())); }

  std::shared_ptr<std::byte> device_memory(std::size_t bytes) const {
    return ebb::device_memory(device(), state_->beside.get(), bytes);
  }
  std::shared_ptr<std::byte> shared_memory(std::size_t bytes) const { return mapped_memory(device(), bytes); }
  std::shared_ptr<std::byte> history_memory(std::size_t bytes, host_kind kind) const {
    cuda_options const& o = state_->options;
    if (kind == host_kind::managed) {
      return managed_history(o.device, bytes, state_->managed, o.allow_managed_above_device, o.trust_host_memory);
    }
    auto const pages = std::make_shared<pinned_pages>(o.device, bytes, o.trust_host_memory);
    return {pages, pages->data()};
  }
  void zero(stream const& on, void* memory, std::size_t bytes) const {
    current_device const scope{device()};
    if (bytes > 0) check(cudaMemsetAsync(memory, 0, bytes, on.get()));
  }
  /// Waits for the copy, for nothing else.
  void peek(void* to, void const* from, std::size_t bytes) const {
    beside_captures const allowed;
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, state_->beside.get()));
    check(cudaStreamSynchronize(state_->beside.get()));
  }
  /// An error of earlier asynchronous work, which stays with the device.
  bool broken() const {
    beside_captures const allowed;
    cudaError_t const result = cudaStreamQuery(state_->beside.get());
    if (result == cudaErrorNotReady) cudaGetLastError();
    return result != cudaSuccess && result != cudaErrorNotReady;
  }
  bool refuses_copy(copy_kind, int, int) const { return false; }

  /// A gate for tests of order: later work of `on` starts once it is opened. Kernels that are launched meanwhile must
  /// be loaded already (CUDA_MODULE_LOADING=EAGER), and nothing that waits for the whole device, such as freeing its
  /// memory, may be called.
  [[nodiscard]] gate close_gate(stream const& on, char const* = "unnamed") const {
    gate closed = state_->next_gate();
    run(on, 1, closed.body());
    return closed;
  }
  /// Names the calling thread's time until the answer dies, for a profiler.
  [[nodiscard]] nvtx_range range(char const* name) const { return nvtx_range{name}; }

 private:
  struct state {
    explicit state(cuda_options const& given) : options{given} {
      if (options.device < 0) check(cudaGetDevice(&options.device));
      current_device const scope{options.device};
      events = std::make_shared<event_pool>(options.device);
      beside = add_stream();
    }
    state(state const&) = delete;
    state& operator=(state const&) = delete;
    ~state() {
      for (cudaStream_t s : streams) cudaStreamDestroy(s);
    }
    stream add_stream() {
      std::scoped_lock lock{mutex};
      cudaStream_t made = nullptr;
      streams.reserve(streams.size() + 1);
      check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
      streams.push_back(made);
      return made;
    }
    gate next_gate() {
      constexpr std::uint32_t words = 1024;
      std::scoped_lock lock{mutex};
      if (gates == nullptr) gates = mapped_memory(options.device, words * sizeof(std::uint32_t));
      std::uint32_t const number = gates_closed++;
      return {gates, static_cast<int>(number % words), number / words + 1};
    }

    cuda_options options;
    std::shared_ptr<event_pool> events;
    std::shared_ptr<std::atomic<std::size_t>> managed = std::make_shared<std::atomic<std::size_t>>(0);
    std::mutex mutex;
    std::vector<cudaStream_t> streams;
    stream beside;  ///< for looks and clearing: nobody else's work is ever in it
    std::shared_ptr<std::byte> gates;
    std::uint32_t gates_closed = 0;
  };
  std::shared_ptr<state> state_;
};
static_assert(space<cuda_space>);

}  // namespace ebb

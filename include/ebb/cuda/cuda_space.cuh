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

/// What a block may declare, and what it may ask for at launch.
inline constexpr int declared_memory = 48 * 1024;
inline constexpr int most_memory = 160 * 1024;
/// Bytes of `Body::shared` that a launch asks for: all of them where a block may not declare so much.
template <class Body, int Blocks>
inline constexpr int asked_memory =
    sizeof(typename shared_of<Body>::type) + 2 * sizeof(int) * (threads_of<Body, Blocks>() / 32) * Blocks + 16 <=
            declared_memory
        ? 0
        : sizeof(typename shared_of<Body>::type);

/// The one kernel of the library: `Blocks` blocks of N threads run `body` for item `blockIdx.x / Blocks`.
template <int N, int Blocks, class Body>
__global__ void __launch_bounds__(N, 1) launch(__grid_constant__ Body const body) {
  using shared = typename shared_of<Body>::type;
  static_assert(sizeof(shared) <= most_memory,
                "ebb body: `shared` exceeds 160 KB, what a block may ask for; make `shared` smaller");
  static_assert(
      std::is_trivially_default_constructible_v<shared>,
      "ebb body: `shared` is initialised by its constructor; a team's memory starts uninitialised, let lanes set it");
#if __CUDA_ARCH__ >= 900
  constexpr bool built = true;
#else
  constexpr bool built = Blocks == 1;
#endif
  if constexpr (built) {
    team_for<Body, Blocks> const team;
    int const item = static_cast<int>(blockIdx.x) / Blocks;
    if constexpr (std::is_same_v<shared, no_shared>) {
      no_shared none;
      call(body, team, item, none);
    } else if constexpr (asked_memory<Body, Blocks> == 0) {
      __shared__ shared memory;
      call(body, team, item, memory);
    } else {
      extern __shared__ __align__(16) unsigned char memory[];
      call(body, team, item, *reinterpret_cast<shared*>(memory));
    }
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
    // Clusters need multiprocessors of one group that are free together, so large ones leave some unused.
    if constexpr (most_blocks_of<Body> >= 8) {
      if (items * 8 <= state_->multiprocessors * 3 / 4 && has_clusters<Body, 8>()) return enqueue<8>(on, items, body);
    }
    if constexpr (most_blocks_of<Body> >= 4) {
      if (items * 4 <= state_->multiprocessors * 3 / 4 && has_clusters<Body, 4>()) return enqueue<4>(on, items, body);
    }
    if constexpr (most_blocks_of<Body> >= 2) {
      if (items * 2 <= state_->multiprocessors && has_clusters<Body, 2>()) return enqueue<2>(on, items, body);
    }
    enqueue<1>(on, items, body);
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
  template <int Blocks, class Body>
  void enqueue(stream const& on, int items, Body const& body) const {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {Blocks, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(items) * Blocks);
    config.blockDim = dim3(threads_of<Body, Blocks>());
    config.stream = on.get();
    config.attrs = &cluster;
    config.numAttrs = Blocks > 1 ? 1 : 0;
    config.dynamicSmemBytes = asked_memory<Body, Blocks>;
    if constexpr (asked_memory<Body, Blocks> > 0) allow_memory<Body, Blocks>();
    check(cudaLaunchKernelEx(&config, ebb::launch<threads_of<Body, Blocks>(), Blocks, Body>, body));
  }
  /// Once for each device, which has an attribute of its own.
  template <class Body, int Blocks>
  void allow_memory() const {
    static std::atomic<std::uint64_t> allowed{0};
    std::uint64_t const mine = std::uint64_t{1} << (device() % 64);
    if ((allowed.load(std::memory_order_relaxed) & mine) != 0) return;
    check(cudaFuncSetAttribute(ebb::launch<threads_of<Body, Blocks>(), Blocks, Body>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, asked_memory<Body, Blocks>));
    allowed.fetch_or(mine, std::memory_order_relaxed);
  }
  /// The device has clusters, and this build has the kernel for them.
  template <class Body, int Blocks>
  bool has_clusters() const {
    static int const built = [] {
      cudaFuncAttributes attributes{};
      check(cudaFuncGetAttributes(&attributes, ebb::launch<threads_of<Body, Blocks>(), Blocks, Body>));
      return attributes.ptxVersion;
    }();
    return state_->clusters && built >= 90;
  }

  struct state {
    explicit state(cuda_options const& given) : options{given} {
      if (options.device < 0) check(cudaGetDevice(&options.device));
      current_device const scope{options.device};
      int flag = 0;
      check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, options.device));
      check(cudaDeviceGetAttribute(&flag, cudaDevAttrClusterLaunch, options.device));
      clusters = flag != 0;
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
    int multiprocessors = 0;
    bool clusters = false;
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

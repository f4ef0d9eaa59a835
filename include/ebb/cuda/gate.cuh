#pragma once
/// A gate in a stream of a GPU, for tests of order: what was enqueued behind it starts once it is opened.

#include <ebb/team.hpp>

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace ebb {

/// Waits until the host has opened a gate. After 20 s it gives up, and the device with it, rather than hold a machine
/// for ever.
struct gate_body {
  static constexpr int threads = 32;
  static constexpr std::uint64_t patience_ns = 20'000'000'000;
  std::uint32_t const* opened;
  std::uint32_t turn;

  template <team T>
  __device__ void operator()(T const& t, int) const {
    if (t.rank() != 0) return;
    std::uint64_t const start = clock_ns();
    while (load_from_host() < turn) {
      __nanosleep(1000);
      if (clock_ns() - start > patience_ns) __trap();
    }
  }

 private:
  __device__ std::uint32_t load_from_host() const {
    std::uint32_t value;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(opened) : "memory");
    return value;
  }
  __device__ static std::uint64_t clock_ns() {
    std::uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
  }
};

/// The host's side of a gate; opens at the latest when it dies.
class [[nodiscard]] cuda_gate {
 public:
  /// Word `word` of `words`, mapped host memory, opens the gate once it is at least `turn`.
  cuda_gate(std::shared_ptr<std::byte> words, int word, std::uint32_t turn)
      : words_{std::move(words)}, word_{word}, turn_{turn} {}
  cuda_gate(cuda_gate&&) = default;
  cuda_gate& operator=(cuda_gate&& other) noexcept {
    std::swap(words_, other.words_);
    std::swap(word_, other.word_);
    std::swap(turn_, other.turn_);
    return *this;
  }
  ~cuda_gate() { open(); }

  void open() {
    if (words_ == nullptr) return;
    std::atomic_ref<std::uint32_t> now{reinterpret_cast<std::uint32_t*>(words_.get())[word_]};
    if (now.load(std::memory_order_relaxed) < turn_) now.store(turn_, std::memory_order_release);
  }
  gate_body body() const { return {reinterpret_cast<std::uint32_t const*>(words_.get()) + word_, turn_}; }

 private:
  std::shared_ptr<std::byte> words_;
  int word_;
  std::uint32_t turn_;
};

}  // namespace ebb

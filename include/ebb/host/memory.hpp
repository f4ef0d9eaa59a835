#pragma once
/// Zeroed memory of host spaces.

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <unistd.h>
#include <vector>

namespace ebb::host {

/// Bytes of memory in this machine: more is never asked for.
inline std::size_t installed_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// Zeroed memory aligned to 256 bytes, touched first by `threads` threads. Throws: std::bad_alloc.
inline std::shared_ptr<std::byte> zeroed_memory(std::size_t bytes, int threads = 1) {
  if (bytes > installed_memory()) throw std::bad_alloc{};
  std::size_t const whole = (bytes + 255) / 256 * 256 + (bytes == 0 ? 256 : 0);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(256, whole));
  if (memory == nullptr) throw std::bad_alloc{};
  std::shared_ptr<std::byte> owner{memory, [](std::byte* p) { std::free(p); }};
  if (threads == 1) {
    std::memset(memory, 0, whole);
    return owner;
  }
  std::size_t const slice = whole / static_cast<std::size_t>(threads) + 1;
  std::vector<std::jthread> touching;
  for (std::size_t at = 0; at < whole; at += slice) {
    touching.emplace_back([=] { std::memset(memory + at, 0, at + slice < whole ? slice : whole - at); });
  }
  return owner;  // after every jthread has joined
}

}  // namespace ebb::host

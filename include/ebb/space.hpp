#pragma once
/// Where bodies run and memory lives.

#include <ebb/team.hpp>

#include <concepts>
#include <cstddef>
#include <memory>

namespace ebb {

/// Which host memory the store asks for. `managed`: mapped by the GPU in 2 MB pages, the fast kind; `pinned`:
/// registered memory.
enum class host_kind { managed, pinned };

/// What a page is copied for.
enum class copy_kind { backup, refill, restore, import };

/// A body that does nothing, for the concept below.
struct empty_body {
  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const&, int) const {}
};

/// A space runs bodies on streams and owns two kinds of memory. On host spaces both are ordinary buffers.
///
/// | expression | returns | meaning |
/// |---|---|---|
/// | `typename S::stream` | – | a cheap, copyable handle of an in-order queue |
/// | `typename S::event` | – | a copyable point in a stream; default-constructed: already reached |
/// | `s.make_stream()` | stream | a stream owned by the space |
/// | `s.run(stream, items, body)` | – | enqueues `body` for items 0 … items − 1, one team each; never waits |
/// | `s.record(stream)` | event | reached once everything enqueued before is done |
/// | `s.wait(stream, event)` | – | later work of `stream` starts after `event`; the caller does not wait |
/// | `s.reached(event)` | bool | without waiting |
/// | `s.synchronize(event)` | – | the caller waits |
/// | `s.capturing(stream)` | bool | the stream is being captured into a graph |
/// | `s.device_memory(bytes)`, `s.shared_memory(bytes)` | memory | zeroed; `shared` is host memory that bodies can read and write |
/// | `s.history_memory(bytes, kind)` | memory | the host store: touched by several threads, throws `std::runtime_error` with the numbers |
/// | `s.zero(stream, pointer, bytes)` | – | enqueues clearing |
/// | `s.peek(to, from, bytes)` | – | reads device memory as it is at the moment, beside all streams |
/// | `s.broken()` | bool | enqueued work failed: memory and streams are not what they should be |
/// | `s.refuses_copy(kind, slot, page)` | bool | this page's copy cannot be enqueued (host spaces let a test decide; false elsewhere) |
template <class S>
concept space = std::copy_constructible<S> &&
                requires(S const s, typename S::stream q, typename S::event e, std::size_t n, void* p) {
                  requires std::copyable<typename S::stream> && std::default_initializable<typename S::event> &&
                               std::copyable<typename S::event>;
                  { s.make_stream() } -> std::same_as<typename S::stream>;
                  s.run(q, 1, empty_body{});
                  { s.record(q) } -> std::same_as<typename S::event>;
                  s.wait(q, e);
                  { s.reached(e) } -> std::same_as<bool>;
                  s.synchronize(e);
                  { s.capturing(q) } -> std::same_as<bool>;
                  { s.device_memory(n) } -> std::same_as<std::shared_ptr<std::byte>>;
                  { s.shared_memory(n) } -> std::same_as<std::shared_ptr<std::byte>>;
                  { s.history_memory(n, host_kind::managed) } -> std::same_as<std::shared_ptr<std::byte>>;
                  s.zero(q, p, n);
                  s.peek(p, p, n);
                  { s.broken() } -> std::same_as<bool>;
                  { s.refuses_copy(copy_kind::backup, 0, 0) } -> std::same_as<bool>;
                };

/// A range that no profiler sees.
struct [[maybe_unused]] unnamed_range {};

/// Names the calling thread's time until the answer dies, where the space has a profiler to tell: `auto const step =
/// named_range(s, "step");`
template <space S>
[[nodiscard]] auto named_range(S const& s, char const* name) {
  if constexpr (requires { s.range(name); }) {
    return s.range(name);
  } else {
    return unnamed_range{};
  }
}

}  // namespace ebb

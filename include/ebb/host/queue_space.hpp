#pragma once
/// What host spaces have in common: streams, memory, and the hooks of a test. Only `run` differs.

#include <ebb/host/memory.hpp>
#include <ebb/host/scheduler.hpp>
#include <ebb/space.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace ebb::host {

/// Copies share their streams, memory limits and counters. Concurrency: one control thread.
class queue_space {
 public:
  using stream = host::stream;
  using event = host::event;

  stream make_stream() const { return queues().make_stream(); }
  event record(stream on) const { return queues().enqueue(on, {.what = act::mark}); }
  void wait(stream on, event until) const { queues().wait(on, until); }
  bool reached(event e) const { return queues().reached(e); }
  /// Throws: std::runtime_error naming the closed gate, where one keeps the event from being reached.
  void synchronize(event e) const { queues().synchronize(e); }
  /// Any function, as an operation of a stream.
  void call(stream on, std::function<void()> what) const {
    queues().enqueue(on, {.what = act::call, .work = [what = std::move(what)](generator*) { what(); }});
  }

  bool capturing(stream on) const { return on->recorded != nullptr; }
  void begin_capture(stream on) const { queues().begin_capture(on); }
  graph end_capture(stream on) const { return queues().end_capture(on); }
  void launch(stream on, graph const& what) const { queues().launch(on, what); }

  /// What is enqueued from now on stays in its queue until the gate is opened. `name`: a literal, for messages.
  gate close_gate(stream on, char const* name = "unnamed") const {
    return {std::shared_ptr<scheduler>{state_, &state_->queues}, queues().close_gate(on, name)};
  }
  /// Deferred: one operation that can take place, chosen by the seed; false if there is none.
  bool advance() const { return queues().advance(); }
  /// Deferred: until nothing can take place.
  void drain() const { queues().drain(); }
  /// Operations that are not done, on all streams.
  long long pending() const { return queues().pending(); }

  std::shared_ptr<std::byte> device_memory(std::size_t bytes) const { return allocated(zeroed_memory(bytes)); }
  std::shared_ptr<std::byte> shared_memory(std::size_t bytes) const { return allocated(zeroed_memory(bytes)); }
  std::shared_ptr<std::byte> history_memory(std::size_t bytes, host_kind) const {
    std::size_t const installed = installed_memory();
    std::size_t const limit = std::min(state_->history_limit, installed);
    std::size_t const available = limit - std::min(limit, state_->history_used);
    if (bytes > available) {
      throw std::runtime_error{"history_memory: " + std::to_string(bytes) + " bytes wanted, " +
                               std::to_string(available) + " available (" +
                               (limit < installed ? state_->history_reason : "memory of this machine") + ")"};
    }
    auto const memory = allocated(zeroed_memory(bytes, 4));
    state_->history_used += bytes;
    return {memory.get(), [memory, bytes, state = state_](std::byte*) { state->history_used -= bytes; }};
  }
  void zero(stream on, void* p, std::size_t n) const {
    queues().enqueue(on, {.what = act::call, .work = [=](generator*) { std::memset(p, 0, n); }});
  }
  /// An enqueued operation threw.
  bool broken() const { return queues().broken(); }
  void peek(void* to, void const* from, std::size_t n) const { std::memcpy(to, from, n); }

  bool refuses_copy(copy_kind kind, int slot, int page) const {
    return state_->refuse && state_->refuse(kind, slot, page);
  }
  /// What `refuses_copy` answers from now on.
  void refuse_copies(std::function<bool(copy_kind, int slot, int page)> which) const {
    state_->refuse = std::move(which);
  }
  /// history_memory gives at most this many bytes at a time, all calls together; the reason goes into the message of a
  /// refusal.
  void limit_history(std::size_t bytes, std::string reason) const {
    state_->history_limit = bytes;
    state_->history_reason = std::move(reason);
  }

  /// Bodies enqueued so far; those of a graph count at each launch, not when they are captured.
  long long runs() const { return queues().runs(); }
  /// Calls of the three kinds of memory so far.
  long long allocations() const { return state_->allocations; }

 protected:
  queue_space() : state_{std::make_shared<state>()} {}
  explicit queue_space(deferred mode) : state_{std::make_shared<state>(mode)} {}

  /// `items`: the number of teams; nothing is enqueued for none. Throws: std::invalid_argument.
  void enqueue_run(stream on, int items, work what) const {
    if (items < 0) throw std::invalid_argument{"run: items is " + std::to_string(items) + ", allowed is 0 or more"};
    if (items > 0) queues().enqueue(on, {.what = act::run, .work = std::move(what)});
  }

  /// Items in the order they start: as numbered, or shuffled, since a device promises none.
  static std::vector<int> item_order(int items, generator* shuffle) {
    std::vector<int> order(static_cast<std::size_t>(items));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t left = order.size(); shuffle != nullptr && left > 1; --left) {
      std::swap(order[left - 1], order[static_cast<std::size_t>(shuffle->below(static_cast<int>(left)))]);
    }
    return order;
  }

 private:
  struct state {
    state() = default;
    explicit state(deferred mode) : queues{mode} {}
    scheduler queues{};
    long long allocations = 0;
    std::size_t history_limit = std::numeric_limits<std::size_t>::max();
    std::size_t history_used = 0;
    std::string history_reason{};
    std::function<bool(copy_kind, int, int)> refuse{};
  };

  scheduler& queues() const { return state_->queues; }
  std::shared_ptr<std::byte> allocated(std::shared_ptr<std::byte> memory) const {
    ++state_->allocations;
    return memory;
  }

  std::shared_ptr<state> state_;
};

/// Room for what a team shares, filled with 0xA5 before every item, so that reads of what no lane wrote show.
template <class Shared>
struct shared_storage {
  static_assert(std::is_trivially_default_constructible_v<Shared> && std::is_trivially_destructible_v<Shared>,
                "Body::shared is uninitialised memory on a device: it must have no member initialisers, constructors "
                "or destructors");
  Shared value;
  Shared& poison() {
    std::memset(static_cast<void*>(&value), 0xA5, sizeof(Shared));
    return value;
  }
};

}  // namespace ebb::host

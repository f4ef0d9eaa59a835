#pragma once
/// Drives the queues of a host space: at once, or one operation at a time in an order that a seed decides.

#include <ebb/host/graph.hpp>
#include <ebb/host/queue.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ebb::host {

/// Nothing runs until the caller advances; the seed chooses among what can run.
struct deferred {
  std::uint64_t seed = 0;
};

/// All queues of a space. Concurrency: one control thread.
class scheduler {
 public:
  scheduler() = default;
  explicit scheduler(deferred mode) : deferred_{true}, choice_{mode.seed}, burst_{1 + choice_.below(12)} {}
  scheduler(scheduler const&) = delete;
  scheduler& operator=(scheduler const&) = delete;

  stream make_stream() { return stream{queues_.emplace_back(queue{static_cast<int>(queues_.size())})}; }

  /// Into the queue, or into the capture that the stream takes part in.
  event enqueue(stream on, operation what) {
    if (on->recorded) return on->recorded->add(*on, std::move(what));
    push(*on, std::move(what));
    event const end{&*on, on->enqueued()};
    run_at_once();
    return end;
  }

  /// Throws: std::logic_error where a capture and the world outside it would wait for each other.
  void wait(stream on, event until) {
    if (until.in == nullptr) return;
    if (until.capture == 0) {
      if (on->recorded)
        refuse(on, "is being captured: it cannot wait for an event that was recorded outside the capture");
    } else if (!until.in->recorded || until.in->recorded->number != until.capture) {
      refuse(on, "cannot wait for an event of a capture that has ended");
    } else if (!on->recorded) {
      on->recorded = until.in->recorded;
      on->recorded->lanes.push_back({&*on});
    } else if (on->recorded->number != until.capture) {
      refuse(on, "cannot wait for an event of another capture");
    }
    enqueue(on, {.what = act::wait, .until = until});
  }

  /// The event right behind a new gate.
  event close_gate(stream on, char const* name) {
    if (on->recorded) refuse(on, "is being captured: a gate cannot be recorded");
    return enqueue(on, {.what = act::gate, .name = name});
  }
  void open_gate(event behind) {
    for (queue& each : queues_) {
      if (&each == behind.in && each.done < behind.position) each.pending[behind.position - each.done - 1].open = true;
    }
  }

  bool reached(event e) const {
    if (e.capture != 0)
      throw std::logic_error{"an event that was recorded in a capture can only be waited for in that capture"};
    return e.in == nullptr || e.in->done >= e.position;
  }

  /// Throws: std::runtime_error with the closed gate that keeps the event from being reached.
  void synchronize(event e) {
    while (!reached(e)) {
      if (!advance()) throw std::runtime_error{"synchronize: " + where(e) + " cannot be reached: " + obstacle(e)};
    }
  }

  /// One operation that can take place; false if there is none. A queue is preferred for a while, so that it gets far
  /// ahead of others.
  bool advance() {
    if (running_ || queues_.empty()) return false;
    if (deferred_ && choice_.below(burst_) == 0)
      preferred_ = static_cast<std::size_t>(choice_.below(static_cast<int>(queues_.size())));
    int ready = 0;
    for (queue const& each : queues_) ready += each.ready();
    if (ready == 0) return false;
    if (deferred_ && queues_[preferred_].ready()) {
      step(queues_[preferred_]);
      return true;
    }
    int skip = deferred_ ? choice_.below(ready) : 0;
    auto next = queues_.begin();
    while (!next->ready() || skip-- > 0) ++next;
    step(*next);
    return true;
  }
  void drain() {
    while (advance()) {
    }
  }

  /// Unless deferred: everything that can run, until nothing can.
  void run_at_once() {
    if (deferred_ || running_) return;
    for (bool more = true; more;) {
      more = false;
      for (queue& each : queues_) {
        for (; each.ready(); more = true) step(each);
      }
    }
  }

  void begin_capture(stream on) {
    if (on->recorded) refuse(on, "is being captured already: it cannot begin another capture");
    on->recorded = std::make_shared<recording>(recording{++captures_, {{&*on}}});
  }
  /// Throws: std::logic_error if the stream began no capture, or if a forked stream was not joined; the capture is then
  /// dropped.
  graph end_capture(stream on) {
    if (!on->recorded) throw std::logic_error{"end_capture: " + name(*on) + " is not being captured"};
    if (on->recorded->lanes.front().from != &*on) refuse(on, "cannot end the capture: another stream began it");
    auto const all = std::exchange(on->recorded, nullptr);
    std::vector<queue*> side;
    for (std::size_t l = 1; l < all->lanes.size(); ++l) all->lanes[l].from->recorded = nullptr;
    if (auto const* open = all->not_joined()) {
      throw std::logic_error{"end_capture: " + name(*open) + " has captured work that " + name(*on) +
                             " does not wait for"};
    }
    for (std::size_t l = 1; l < all->lanes.size(); ++l) side.push_back(&*make_stream());
    return graph{std::move(*all), std::move(side)};
  }
  void launch(stream on, graph const& what) {
    if (on->recorded) refuse(on, "is being captured: the launch of another graph cannot be recorded");
    what.launch(*on, [this](queue& to, operation each) { push(to, std::move(each)); });
    run_at_once();
  }

  /// Bodies put into queues so far, by themselves or by a graph.
  long long runs() const { return runs_; }
  /// An operation threw: what it was to do is not done.
  bool broken() const { return broken_; }
  /// Operations that are not done.
  long long pending() const {
    long long n = 0;
    for (queue const& each : queues_) n += static_cast<long long>(each.pending.size());
    return n;
  }

 private:
  static std::string name(queue const& of) { return "stream " + std::to_string(of.number); }
  static std::string where(event e) {
    return "the event behind operation " + std::to_string(e.position) + " of " + name(*e.in);
  }
  [[noreturn]] static void refuse(stream on, char const* what) { throw std::logic_error{name(*on) + " " + what}; }

  static std::string obstacle(event e) {
    while (e.in->pending.front().what == act::wait) e = e.in->pending.front().until;
    operation const& first = e.in->pending.front();
    if (first.what != act::gate) return "the call comes from inside an operation of " + name(*e.in);
    return name(*e.in) + " waits at the closed gate '" + first.name + "'";
  }

  void push(queue& to, operation what) {
    runs_ += what.what == act::run;
    to.pending.push_back(std::move(what));
  }

  void step(queue& of) {
    struct end {
      bool& running;
      ~end() { running = false; }
    } const at_end{running_ = true};
    try {
      of.advance(deferred_ ? &choice_ : nullptr);
    } catch (...) {
      broken_ = true;
      throw;
    }
  }

  std::deque<queue> queues_{};
  bool deferred_ = false;
  bool broken_ = false;
  bool running_ = false;
  generator choice_{0};
  int burst_ = 1;
  std::size_t preferred_ = 0;
  long long runs_ = 0;
  std::uint64_t captures_ = 0;
};

/// A closed gate: nothing behind it in its queue starts. Destroyed, it lets the queue go on with the next call that
/// drives the space.
class [[nodiscard]] gate {
 public:
  gate(std::shared_ptr<scheduler> of, event behind) : scheduler_{std::move(of)}, behind_{behind} {}
  gate(gate&&) = default;
  gate& operator=(gate&& other) noexcept {
    std::swap(scheduler_, other.scheduler_);
    std::swap(behind_, other.behind_);
    return *this;
  }
  ~gate() {
    if (scheduler_) scheduler_->open_gate(behind_);
  }

  /// Effects: unless the space is deferred, everything that waited for it runs now. Opening it again does nothing.
  void open() {
    if (auto const of = std::exchange(scheduler_, nullptr)) {
      of->open_gate(behind_);
      of->run_at_once();
    }
  }

 private:
  std::shared_ptr<scheduler> scheduler_;
  event behind_;
};

}  // namespace ebb::host

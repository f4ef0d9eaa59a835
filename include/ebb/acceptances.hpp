#pragma once
/// Acceptance that the host learns later than the device.

#include <ebb/ids.hpp>
#include <ebb/space.hpp>
#include <ebb/step_state.hpp>

#include <deque>
#include <utility>
#include <vector>

namespace ebb {

/// How many tokens of each request of a step were accepted: a device array `[requests]`, written before end_step's place
/// in the stream and unchanged until its ticket is reached. Numbers below 0, or above the request's queries or room,
/// are cut. `drafted`: as in `end_step`, a device array, too; null: the drafter is as far as the target.
struct on_device {
  std::int32_t const* accepted;
  std::int32_t const* drafted;
  explicit on_device(std::int32_t const* tokens, std::int32_t const* drafter = nullptr)
      : accepted{tokens}, drafted{drafter} {}
};

/// Steps whose acceptance only the device knows yet, in their order. Host only, one control thread.
template <space S>
class acceptances {
 public:
  /// Room for the numbers of `steps` steps of up to `requests` requests.
  acceptances(S const& space, int steps, int requests)
      : space_{space},
        requests_{requests},
        steps_{steps},
        memory_{space.shared_memory(static_cast<std::size_t>(steps) * static_cast<std::size_t>(requests) *
                                    sizeof(accepted_word))} {}

  /// Where the step's body leaves its numbers, in host memory.
  accepted_word* room(std::uint64_t step) const {
    return reinterpret_cast<accepted_word*>(memory_.get()) +
           static_cast<std::ptrdiff_t>(step % static_cast<std::uint64_t>(steps_)) * requests_;
  }
  void add(std::uint64_t step, ticket at, typename S::event end, std::vector<request_id> batch,
           std::vector<int> queries) {
    open_.push_back({step, at, std::move(end), std::move(batch), std::move(queries)});
  }
  bool empty() const { return open_.empty(); }
  bool waits_for(request_id id) const {
    for (each const& e : open_)
      for (request_id r : e.batch)
        if (r == id) return true;
    return false;
  }
  /// Waits for the oldest steps as long as `due(step, ticket)` says so, and calls `accept(request, queries, word)` for
  /// each of their requests, in order.
  template <class Due, class Accept>
  void settle(Due due, Accept accept) {
    while (!open_.empty() && due(open_.front().step, open_.front().at)) {
      each const e = std::move(open_.front());
      open_.pop_front();
      space_.synchronize(e.end);
      for (std::size_t i = 0; i < e.batch.size(); ++i) accept(e.batch[i], e.queries[i], room(e.step)[i]);
    }
  }

 private:
  struct each {
    std::uint64_t step;
    ticket at;
    typename S::event end;
    std::vector<request_id> batch;
    std::vector<int> queries;
  };
  S space_;
  int requests_;
  int steps_;
  std::shared_ptr<std::byte> memory_;
  std::deque<each> open_;
};

}  // namespace ebb

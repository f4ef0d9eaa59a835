#pragma once
/// Continuous batching over the workload, for one policy: what an engine does around `ebb::residency`.

#include <ebb/residency.hpp>

#include <chrono>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "numbers.hpp"
#include "requests.hpp"
#include "step_rows.hpp"

namespace replay {

struct driver_options {
  ebb::sizes sizes{};
  cost_model cost{};
  bool measured = false;  ///< the library's calls are timed instead of modelled; the model's own step time stays
  int queries = 1;
  std::uint32_t requests_before = 0;  ///< that the oracle counted in earlier runs on the same memory
  double acceptance = 0.7;            ///< of each further query
  int spoil = 0;  ///< every n-th decoded row is written wrong, to see that the check finds it; 0: none
  std::function<void(result const&, int in_flight, int waiting)> progress = [](result const&, int, int) {};
};

template <class P, ebb::space S>
class driver {
  static constexpr ebb::source_id source{0};
  static constexpr ebb::group_id group{0};

 public:
  driver(S space, workload const& work, driver_options const& options)
      : space_{space},
        stream_{space.make_stream()},
        o_{options},
        kv_{space, options.sizes},
        rows_{space, kv_.view(source), options.sizes.max_batch * options.queries, P::top_k},
        incoming_{space, P::row.total()} {
    for (play const& p : work.plays) {
      sessions_.push_back({.plays = &p, .number = static_cast<std::uint32_t>(sessions_.size()), .due = p.arrival});
    }
    open_ = static_cast<int>(sessions_.size());
  }

  /// Plays everything. Throws std::runtime_error where no session can be admitted, or nothing can go on.
  result run() {
    auto const start = clock::now();
    while (open_ > 0) {
      queue_due_calls();
      line_.serve([&](live& s) { return s.admitted ? resume(s) : admit(s); });
      bring_in_history();
      auto const batch = next_batch();
      bool const arriving = std::ranges::count(sessions_, stage::arriving, &live::at) > 0;
      idle_ = batch.empty() ? idle_ + 1 : 0;
      if (idle_ > 100 * patience) give_up();
      if (batch.empty() && !arriving && (line_.size() == 0 || idle_ > patience)) {
        skip_idle_time();
      } else {
        step(batch);
      }
    }
    return numbers_.finish(kv_.counts(), seconds_since(start));
  }

 private:
  using clock = std::chrono::steady_clock;
  /// Steps without requests in which frames and pages may still come back.
  static constexpr int patience = 100;
  static double seconds_since(clock::time_point t) { return std::chrono::duration<double>(clock::now() - t).count(); }

  // ---- the queue -------------------------------------------------------------------------------------------

  void queue_due_calls() {
    for (live& s : sessions_) {
      if (s.at != stage::pausing || s.due > numbers_.now()) continue;
      s.at = stage::queued;
      line_.add(&s);
    }
  }
  double next_due() const {
    double first = std::numeric_limits<double>::infinity();
    for (live const& s : sessions_) {
      if (s.at == stage::pausing) first = std::min(first, s.due);
    }
    return first;
  }

  /// Nothing runs and nothing is on its way: the next event is a call that becomes due.
  void skip_idle_time() {
    if (open_ == 0) return;
    drop_hold();
    double const next = next_due();
    if (next == std::numeric_limits<double>::infinity()) give_up();
    numbers_.skip_to(next);
  }
  [[noreturn]] void give_up() const {
    throw std::runtime_error{std::string{P::name} + ": " + std::to_string(line_.size()) +
                             " calls wait and nothing gets on: " + shortage_.message()};
  }

  /// True when the session needs its place in the queue no more.
  bool admit(live& s) {
    auto const id = kv_.admit(s.plays->tokens_max, s.now().in_tokens, hold_);
    if (id) {
      hold_ = {};
      s.id = *id;
      s.admitted = true;
      s.written = write_history{o_.requests_before + ++admitted_};
      s.at = stage::arriving;
      return true;
    }
    if (!id.error().ever) return refuse(s, id.error());
    wait(s, id.error());
    // Frames that come back are for the head of the queue. Host pages come back only when others get on, so nothing is
    // held for them.
    bool const for_frames = id.error().pool == ebb::pool::frames;
    if (!for_frames) {
      drop_hold();
    } else if (hold_ == ebb::hold_id{}) {
      if (auto const hold = kv_.hold(s.plays->tokens_max)) hold_ = *hold;
    }
    return false;
  }
  /// The next call of a preempted session: back to the common prefix, then onto the GPU.
  bool resume(live& s) {
    if (s.now().prefix < kv_.tokens(s.id)) kv_.truncate(s.id, s.now().prefix);
    auto const resumed = kv_.resume(s.id, s.now().in_tokens);
    if (!resumed) {
      wait(s, resumed.error());
      return false;
    }
    s.at = stage::arriving;
    return true;
  }
  void wait(live& s, ebb::shortage const& why) {
    shortage_ = why;
    if (!s.waited) ++numbers_.of().admission_waits;
    s.waited = true;
  }
  bool refuse(live& s, ebb::shortage const& why) {
    s.at = stage::over;
    --open_;
    if (++numbers_.of().requests_refused == static_cast<int>(sessions_.size()) || P::tiers::caches) {
      throw std::runtime_error{std::string{P::name} + ": session " + s.plays->name + " of " +
                               std::to_string(s.plays->tokens_max) + " tokens can never be admitted: " + why.message()};
    }
    return true;
  }
  void drop_hold() {
    if (hold_ != ebb::hold_id{}) kv_.release(hold_);
    hold_ = {};
  }

  // ---- history that arrives --------------------------------------------------------------------------------

  /// Whoever has room gets the rest of its call's input, and may decode from the next step on.
  void bring_in_history() {
    for (live& s : sessions_) {
      if (s.at != stage::arriving || !kv_.ready(s.id)) continue;
      std::int64_t const from = s.now().prefix;
      std::int64_t const to = s.now().in_tokens;
      if (to > from) {
        if (!s.reserved) s.room = kv_.reserve_import(s.id, to);
        s.reserved = true;
        if (!kv_.reached(s.room)) continue;
        kv_.wait(kv_.import(s.id, source, {incoming_.fill(s.written, from, to)}));
        kv_.publish(s.id, to);
      }
      s.selection = {*s.plays->selections, to};
      s.at = stage::decoding;
    }
  }

  // ---- a step ----------------------------------------------------------------------------------------------

  std::vector<live*> next_batch() {
    std::vector<live*> batch;
    for (live& s : sessions_) {
      if (s.at != stage::decoding) continue;
      if (s.decoded >= s.now().out_tokens) {
        end_call(s);
      } else if (static_cast<int>(batch.size()) < o_.sizes.max_batch) {
        batch.push_back(&s);
      }
    }
    return batch;
  }

  void step(std::vector<live*> const& batch) {
    std::vector<ebb::request_id> ids;
    std::vector<int> accepted;
    for (live* s : batch) {
      accepted.push_back(prepare(*s, static_cast<int>(ids.size()) * o_.queries));
      ids.push_back(s->id);
    }
    int const rows = static_cast<int>(batch.size()) * o_.queries;
    rows_.upload(stream_, rows);
    if (o_.measured) finish_stream();

    auto const begun = clock::now();
    auto const step = kv_.begin_step(stream_, {.requests = ids, .queries = o_.queries});
    kv_.addresses(stream_, step);
    rows_.write(stream_, rows, kv_.write_addresses(source));
    kv_.resolve(stream_, step, group, rows_.device_selection(), {rows_.device_addresses()});
    if (o_.measured) finish_stream();
    double taken = seconds_since(begun);
    rows_.check(stream_, rows);
    finish_stream();
    auto const checked = clock::now();
    kv_.end_step(stream_, step, accepted);
    finish_stream();
    taken += seconds_since(checked);

    numbers_.step(kv_.counts(), kv_.pools(), static_cast<int>(batch.size()), line_.size(), o_.cost, o_.measured, taken);
    for (std::size_t i = 0; i < batch.size(); ++i) advance(*batch[i], static_cast<int>(i) * o_.queries, accepted[i]);
    o_.progress(numbers_.of(), static_cast<int>(batch.size()), line_.size());
  }
  void finish_stream() const { space_.synchronize(space_.record(stream_)); }

  /// Says what each query of `s` writes and selects, from row `first` on. Returns how many are accepted.
  int prepare(live& s, int first) {
    for (int j = 0; j < o_.queries; ++j) {
      rows_.write_seed(first + j) = s.written.write(s.tokens() + j);
      if (o_.spoil > 0 && ++decoded_rows_ % o_.spoil == 0) rows_.write_seed(first + j) ^= 1;
    }
    for (int j = 0; j < o_.queries; ++j) {
      auto const selection = rows_.selection(first + j);
      auto const seeds = rows_.seeds(first + j);
      numbers_.of().rows_checked += s.selection(s.tokens() + j, selection);
      for (std::size_t i = 0; i < selection.size(); ++i) {
        seeds[i] = selection[i] < 0 ? no_row : s.written.seed(selection[i]);
      }
    }
    return accepted_of(s.number, s.tokens(), o_.queries, o_.acceptance);
  }

  void advance(live& s, int first, int accepted) {
    for (int j = 0; j < o_.queries; ++j) numbers_.of().rows_wrong += rows_.wrong(first + j);
    if (s.decoded == 0) numbers_.started(s.due);
    s.decoded += accepted;
  }
  void end_call(live& s) {
    ++numbers_.of().calls_finished;
    if (!s.last_call()) {
      kv_.preempt(s.id);
      s.next_call(numbers_.now());
      return;
    }
    kv_.finish(s.id);
    s = {.plays = s.plays, .number = s.number, .at = stage::over};
    ++numbers_.of().requests_finished;
    --open_;
  }

  S space_;
  typename S::stream stream_;
  driver_options const& o_;
  ebb::residency<P, S> kv_;
  step_rows<S> rows_;
  import_buffer<S> incoming_;
  std::vector<live> sessions_;
  waiting_line line_;
  numbers numbers_{P::name};
  ebb::hold_id hold_{};
  ebb::shortage shortage_{};
  int open_ = 0;                ///< sessions that are not over
  std::uint32_t admitted_ = 0;  ///< requests so far: the oracle's count of incarnations
  int idle_ = 0;                ///< rounds without requests, in a row
  long long decoded_rows_ = 0;
};

}  // namespace replay

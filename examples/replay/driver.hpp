#pragma once
/// Continuous batching over the workload, for one policy: what an engine does around `ebb::residency`.

#include <ebb/residency.hpp>

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cost.hpp"
#include "requests.hpp"
#include "results.hpp"
#include "step_rows.hpp"

namespace replay {

struct driver_options {
  ebb::sizes sizes{};
  cost_model cost{};
  bool measured =
      false;  ///< time of the library's calls is measured instead of modelled; the model's own step time stays
  int queries = 1;
  double acceptance = 0.7;  ///< of each further query
  int spoil = 0;            ///< every n-th decoded row is written wrong, to see that the check finds it; 0: none
  std::function<void(result const&, int in_flight, int waiting)> progress = [](result const&, int, int) {};
};

template <class P, ebb::space S>
class driver {
  static constexpr ebb::source_id source{0};
  static constexpr ebb::group_id group{0};
  static constexpr ebb::page_layout layout = ebb::geometry_of<P>::layout(0);
  using kv_type = ebb::residency<P, S>;

 public:
  driver(S space, workload const& work, driver_options const& options)
      : space_{space},
        stream_{space.make_stream()},
        o_{options},
        kv_{space, options.sizes},
        rows_{space, options.sizes.max_batch * options.queries, P::top_k},
        incoming_{space, P::row.total()} {
    result_.policy = P::name;
    for (play const& p : work.plays) {
      sessions_.push_back({.plays = &p, .number = static_cast<std::uint32_t>(sessions_.size()), .due = p.arrival});
    }
    open_ = static_cast<int>(sessions_.size());
  }

  /// Plays everything. Throws std::runtime_error where no session can be admitted, or nothing can go on.
  result run() {
    auto const start = std::chrono::steady_clock::now();
    while (open_ > 0) {
      start_due_calls();
      line_.serve([&](live& s) { return s.admitted ? resume(s) : admit(s); });
      bring_in_history();
      auto const batch = next_batch();
      if (batch.empty() && arriving() == 0 && line_.size() == 0 && step_ >= not_before_) {
        if (open_ > 0) now_ = std::max(now_, next_due());
        continue;
      }
      step(batch);
      require_progress(batch);
    }
    finish_result(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    return result_;
  }

 private:
  // ---- the queue
  // ---------------------------------------------------------------------------------------------------------------

  void start_due_calls() {
    for (live& s : sessions_) {
      if (s.at != stage::pausing || s.due > now_ || s.not_before > step_) continue;
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
  int arriving() const { return static_cast<int>(std::ranges::count(sessions_, stage::arriving, &live::at)); }

  /// True when the session needs no more place in the queue.
  bool admit(live& s) {
    auto const id = kv_.admit(s.plays->tokens_max, s.now().in_tokens, hold_);
    if (id) {
      hold_ = {};
      s.id = *id;
      s.admitted = true;
      s.written = write_history{++requests_};
      s.room = ebb::or_throw(kv_.reserve_import(s.id, s.now().in_tokens));
      s.at = stage::arriving;
      return true;
    }
    if (!id.error().ever) return refuse(s, id.error());
    wait(s, id.error());
    // Frames that come back are for the head of the queue. Host pages come back only when others go on, so nothing is
    // held for them.
    bool const for_frames = id.error().pool == ebb::pool::frames;
    if (for_frames && hold_ == ebb::hold_id{}) {
      if (auto const hold = kv_.hold(s.plays->tokens_max)) hold_ = *hold;
    } else if (!for_frames) {
      drop_hold();
    }
    return false;
  }
  bool resume(live& s) {
    auto const resumed = kv_.resume(s.id);
    if (!resumed) {
      wait(s, resumed.error());
      return false;
    }
    if (s.now().prefix < kv_.tokens(s.id)) kv_.truncate(s.id, s.now().prefix);
    s.at = stage::arriving;
    return true;
  }
  void wait(live& s, ebb::shortage const& why) {
    shortage_ = why;
    if (!s.waited) ++result_.admission_waits;
    s.waited = true;
  }
  bool refuse(live& s, ebb::shortage const& why) {
    shortage_ = why;
    s.at = stage::over;
    --open_;
    if (++result_.requests_refused == static_cast<int>(sessions_.size()) || P::tiers::caches) {
      throw std::runtime_error{std::string{P::name} + ": session " + s.plays->name +
                               " can never be admitted: " + why.message()};
    }
    return true;
  }
  void drop_hold() {
    if (hold_ != ebb::hold_id{}) kv_.release(hold_);
    hold_ = {};
  }

  // ---- history that arrives
  // --------------------------------------------------------------------------------------------------

  void bring_in_history() {
    for (live& s : sessions_) {
      if (s.at != stage::arriving) continue;
      if (s.call > 0 && !s.imported) {
        if (!kv_.ready(s.id) || kv_.tokens(s.id) != s.now().prefix) continue;
        if (s.room == ebb::ticket::none && s.now().in_tokens > s.now().prefix) {
          s.room = ebb::or_throw(kv_.reserve_import(s.id, s.now().in_tokens));
        }
      }
      if (!s.imported && !kv_.reached(s.room)) continue;
      if (!s.imported) import(s);
      if (!kv_.ready(s.id)) continue;
      s.selection = {*s.plays->selections, s.now().in_tokens};
      s.at = stage::decoding;
    }
  }
  void import(live& s) {
    std::int64_t const from = s.now().prefix;
    std::int64_t const to = s.now().in_tokens;
    if (to > from) {
      kv_.wait(kv_.import(s.id, source, {incoming_.fill(s.written, from, to)}));
      kv_.publish(s.id, to);
      work_.imported_bytes += (to - from) * P::row.total();
    }
    s.imported = true;
  }

  // ---- a step
  // ----------------------------------------------------------------------------------------------------------------

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
    using clock = std::chrono::steady_clock;
    int const rows = static_cast<int>(batch.size()) * o_.queries;
    std::vector<ebb::request_id> ids;
    std::vector<int> accepted;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      ids.push_back(batch[i]->id);
      accepted.push_back(prepare(*batch[i], static_cast<int>(i) * o_.queries));
    }
    if (rows > 0) {
      rows_.upload(stream_, rows);
      if (o_.measured) finish_stream();
    }
    auto const begin = clock::now();
    auto const step = kv_.begin_step(stream_, {.requests = ids, .queries = o_.queries});
    kv_.addresses(stream_, step);
    if (rows > 0) {
      rows_.write(stream_, rows, kv_.arena(source).base, layout, kv_.write_addresses(source));
      kv_.resolve(stream_, step, group, rows_.device_selection(), {rows_.device_addresses()});
      if (o_.measured) finish_stream();
    }
    auto const resolved = clock::now();
    if (rows > 0) {
      rows_.check(stream_, rows, kv_.arena(source).base, layout);
      finish_stream();
    }
    auto const checked = clock::now();
    kv_.end_step(stream_, step, accepted);
    finish_stream();
    std::chrono::duration<double> const taken = (resolved - begin) + (clock::now() - checked);
    ++step_;
    account(batch, taken.count());
    for (std::size_t i = 0; i < batch.size(); ++i) advance(*batch[i], static_cast<int>(i) * o_.queries, accepted[i]);
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
      result_.rows_checked += s.selection(s.tokens() + j, selection);
      for (std::size_t i = 0; i < selection.size(); ++i)
        seeds[i] = selection[i] < 0 ? no_row : s.written.seed(selection[i]);
    }
    return accepted_of(s.number, s.tokens(), o_.queries, o_.acceptance);
  }

  void advance(live& s, int first, int accepted) {
    for (int j = 0; j < o_.queries; ++j) result_.rows_wrong += rows_.wrong(first + j);
    if (!s.started) waits_.push_back(now_ - s.due);
    s.started = true;
    s.decoded += accepted;
  }
  void end_call(live& s) {
    ++result_.calls_finished;
    if (s.last_call()) {
      kv_.finish(s.id);
      s = {.plays = s.plays, .number = s.number, .at = stage::over};
      ++result_.requests_finished;
      --open_;
    } else {
      kv_.preempt(s.id);
      ++s.call;
      s.due = now_ + s.now().pause;
      s.not_before = step_ + 2;
      s.at = stage::pausing;
      s.waited = s.started = s.imported = false;
      s.room = ebb::ticket::none;
      s.decoded = 0;
    }
    not_before_ = step_ + 2;
  }

  // ---- numbers
  // ---------------------------------------------------------------------------------------------------------------

  /// Rows that the library found or fetched.
  static long long selected(ebb::counters const& c) {
    return static_cast<long long>(c.tail_hits + c.lent_hits + c.hot_hits + c.misses);
  }
  void take_sample(ebb::counters const& now, int in_flight) {
    ebb::gauges const g = kv_.pools();
    long long const selected = now.selected - sampled_.selected;
    double const share =
        selected == 0 ? 0 : static_cast<double>(now.missed - sampled_.missed) / static_cast<double>(selected);
    sampled_ = now;
    sampler_.add(result_.series,
                 {now_, in_flight, line_.size(), g.free, g.required, g.lent, g.filling + g.revoking, share});
  }

  /// Counts what the step did, and lets its time pass.
  void account(std::vector<live*> const& batch, double taken) {
    moved const now = counted();
    work_.requests = static_cast<int>(batch.size());
    work_.fetches = now.fetched_rows > before_.fetched_rows;
    work_.fetched_bytes = now.fetched_bytes - before_.fetched_bytes;
    work_.refilled_bytes = (now.refilled + now.restored - before_.refilled - before_.restored) * layout.payload();
    work_.backed_up_bytes = (now.backed_up - before_.backed_up) * layout.payload();
    double const step = o_.measured ? taken + o_.cost.model_seconds(work_.requests) : o_.cost.step_seconds(work_);
    now_ += step;
    before_ = now;
    work_ = {};
    if (!batch.empty()) {
      ++result_.steps;
      step_seconds_.push_back(step);
      in_flight_.push_back(static_cast<int>(batch.size()));
      result_.in_flight_peak = std::max(result_.in_flight_peak, in_flight_.back());
    }
    if (sampler_.due(step_)) take_sample(now, static_cast<int>(batch.size()));
    o_.progress(result_, static_cast<int>(batch.size()), line_.size());
  }

  void finish_result(double wall) {
    moved const all = counted();
    result_.rows_selected = all.selected;
    result_.rows_fetched = all.fetched_rows;
    result_.rows_missed = all.missed;
    result_.bytes_fetched = all.fetched_bytes;
    result_.pages_lent = all.lent;
    result_.pages_revoked = all.revoked;
    result_.pages_refilled = all.refilled;
    result_.pages_restored = all.restored;
    result_.pages_backed_up = all.backed_up;
    result_.seconds = now_;
    result_.step_p50 = quantile(step_seconds_, 0.5);
    result_.step_p99 = quantile(step_seconds_, 0.99);
    result_.in_flight_median = quantile(in_flight_, 0.5);
    result_.wait_p50 = quantile(waits_, 0.5);
    result_.wait_p99 = quantile(waits_, 0.99);
    result_.wall_seconds = wall;
  }

  /// Somebody must get on: a step without requests is one in which frames or pages come back, and they must at some
  /// time.
  void require_progress(std::vector<live*> const& batch) {
    idle_ = batch.empty() ? idle_ + 1 : 0;
    if (idle_ > 100) drop_hold();
    if (idle_ > 1'000) {
      throw std::runtime_error{std::string{P::name} + ": " + std::to_string(line_.size()) +
                               " calls wait and nothing can go on: " + shortage_.message()};
    }
  }

  S space_;
  typename S::stream stream_;
  driver_options const& o_;
  kv_type kv_;
  step_rows<S> rows_;
  import_buffer<S> incoming_;
  std::vector<live> sessions_;
  waiting_line line_;
  ebb::hold_id hold_{};
  ebb::shortage shortage_{};
  int open_ = 0;
  std::uint32_t requests_ = 0;
  double now_ = 0;
  long long step_ = 0;
  long long not_before_ = 0;  ///< what ended takes effect by this step
  long long idle_ = 0;
  long long decoded_rows_ = 0;
  step_work work_{};
  moved before_{};
  moved sampled_{};
  std::vector<double> waits_;
  std::vector<double> step_seconds_;
  std::vector<int> in_flight_;
  sampler sampler_;
  result result_;
};

}  // namespace replay

#pragma once
/// Continuous batching over the workload, for one policy: what an engine does around `ebb::residency`.

#include <ebb/residency.hpp>

#include <chrono>
#include <functional>
#include <vector>

#include "admission.hpp"
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
        admission_{space, kv_, sessions_, numbers_, options.requests_before} {
    for (play const& p : work.plays) {
      sessions_.push_back({.plays = &p, .number = static_cast<std::uint32_t>(sessions_.size()), .due = p.arrival});
    }
  }

  /// Plays everything that can ever be admitted. Throws std::runtime_error where nothing can go on.
  result run() {
    auto const start = clock::now();
    for (int idle = 0; !over();) {
      admission_.serve();
      auto const batch = next_batch();
      idle = batch.empty() ? idle + 1 : 0;
      if (idle > 100 * patience) admission_.give_up();
      bool const nobody = batch.empty() && !admission_.arriving();
      if (nobody && over()) break;
      if (nobody && (admission_.waiting() == 0 || idle > patience)) {
        admission_.skip_idle_time();
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

  bool over() const { return std::ranges::count(sessions_, stage::over, &live::at) == std::ssize(sessions_); }

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

    numbers_.step(kv_.counts(), kv_.pools(), static_cast<int>(batch.size()), admission_.waiting(), o_.cost, o_.measured,
                  taken);
    for (std::size_t i = 0; i < batch.size(); ++i) advance(*batch[i], static_cast<int>(i) * o_.queries, accepted[i]);
    o_.progress(numbers_.of(), static_cast<int>(batch.size()), admission_.waiting());
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
  }

  S space_;
  typename S::stream stream_;
  driver_options const& o_;
  ebb::residency<P, S> kv_;
  step_rows<S> rows_;
  std::vector<live> sessions_;
  numbers numbers_{P::name};
  admission<P, S> admission_;
  long long decoded_rows_ = 0;
};

}  // namespace replay

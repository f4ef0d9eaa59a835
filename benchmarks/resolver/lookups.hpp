#pragma once
/// One instance on the host space and one selection a call: what the host benchmark times and the instruction count
/// counts.

#include <ebb/ebb.hpp>
#include <ebb/host/serial_space.hpp>

#include <stdexcept>

#include "oracle.hpp"
#include "policies.hpp"
#include "script.hpp"

namespace bench {

/// Resolves the calls of a script over and over, all in one open step a round, as the GPU benchmark does.
template <class P>
class lookups {
 public:
  lookups(setting const& s, cell const& c)
      : setting_{s},
        committed_{s.history - P::page_tokens},
        kv_{space_,
            {.frames = s.requests * (s.whole ? s.history / P::page_tokens
                                             : ebb::required_frames(s.history, P::page_tokens,
                                                                    ebb::tail_pages(P::page_tokens, P::max_queries, 1),
                                                                    ebb::hot_frames(s.hot(), P::page_tokens))),
             .host_pages = s.requests * (s.history / P::page_tokens),
             .requests = s.requests,
             .max_batch = s.requests,
             .max_tokens = s.history,
             .hot_rows = s.hot()}},
        writer_{s, c, committed_ - ebb::tail_pages(P::page_tokens, P::max_queries, 1) * P::page_tokens, none_},
        script_{writer_.next()},
        out_(static_cast<std::size_t>(script_.entries())) {
    for (int r = 0; r < s.requests; ++r) {
      auto const id = kv_.admit(s.history, s.whole ? s.history : committed_);
      if (!id) throw std::runtime_error("lookups: " + id.error().message());
      ids_.push_back(*id);
    }
    std::vector<std::uint64_t> rows(static_cast<std::size_t>(committed_) * words);
    for (int r = 0; r < s.requests; ++r) {
      fill_body const fill{rows.data(), r, committed_, words, 0};
      for (int item = 0; item * fill_body::rows_per_item < committed_; ++item) fill(ebb::serial_team{}, item);
      kv_.reserve_import(ids_[static_cast<std::size_t>(r)], committed_);
      kv_.wait(kv_.import(ids_[static_cast<std::size_t>(r)], ebb::source_id{0},
                          {reinterpret_cast<std::byte const*>(rows.data())}));
      kv_.publish(ids_[static_cast<std::size_t>(r)], committed_);
    }
    accepted_.assign(ids_.size(), 0);
    begin();
    for (int call = 0; call < script_.warm; ++call) resolve(call);
    end();
  }

  int calls() const { return script_.calls; }
  int entries() const { return script_.entries(); }
  ebb::counters counts() const { return kv_.counts(); }
  /// Clears the tables and warms them again, so that every round finds and misses the same.
  void restart() {
    for (ebb::request_id id : ids_) kv_.truncate(id, committed_);
    begin();
    for (int call = 0; call < script_.warm; ++call) resolve(call);
    end();
  }
  void begin() {
    step_ = kv_.begin_step(stream_, {.requests = ids_});
    kv_.addresses(stream_, step_);
  }
  /// Call `c` of the script, warming ones first; one group of the step each.
  void resolve(int c) {
    kv_.resolve(stream_, step_, ebb::group_id{c < script_.warm ? c : c - script_.warm}, script_.call(c), {out_.data()});
  }
  void end() { kv_.end_step(stream_, step_, accepted_); }
  int warm() const { return script_.warm; }
  /// Rows of call `c`, the last that was resolved, that are not what it selected.
  std::uint64_t wrong(int c) const {
    auto const& v = kv_.view(ebb::source_id{0});
    std::uint64_t n = 0;
    check_body const check{v.base,    v.layout,  v.staging, script_.call(c), out_.data(), nullptr,
                           script_.k, entries(), &n};
    for (int item = 0; item * check_body::rows_per_item < entries(); ++item) check(ebb::serial_team{}, item);
    return n;
  }

 private:
  static constexpr int words = P::row.total() / 8;
  ebb::serial_space space_;
  typename ebb::serial_space::stream stream_ = space_.make_stream();
  setting setting_;
  int committed_;
  ebb::residency<P, ebb::serial_space> kv_;
  std::vector<recording> none_;
  script_writer writer_;
  script script_;
  std::vector<std::int32_t> out_;
  std::vector<ebb::request_id> ids_;
  std::vector<int> accepted_;
  ebb::step step_{};
};

}  // namespace bench

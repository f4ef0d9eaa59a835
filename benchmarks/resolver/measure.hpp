#pragma once
/// Measures the cells of one setting.

#include <cmath>
#include <cstdio>
#include <memory>

#include "gather.hpp"
#include "rival.hpp"

namespace bench {

struct options {
  std::string grid = "full";           ///< full, quick, speculation, tiny
  std::vector<std::string> axes = {};  ///< only these; empty: all
  std::string json;
  std::string data = "examples/data";
  std::string gemma;
  int passes = 3;
  int requests = 1 << 20;  ///< larger batches are cut to this, to try the grid on a small machine
  int spoil = 0;
  bool reference = true;
  bool floor = true;
  bool thorough = true;  ///< the whole grid of gathers
};

/// One setting's cells, whatever its policy.
class any_measure {
 public:
  virtual ~any_measure() = default;
  virtual measured of(cell const&, std::vector<recording> const&) = 0;
};

template <class P, ebb::space S>
class measure final : public any_measure {
 public:
  measure(timing<S>& clock, setting const& s, std::byte* store, options const& o)
      : clock_{clock}, setting_{s}, o_{o}, subject_{clock, s, store, o.spoil} {}

  /// Untimed first: one checked pass, whose addresses say which rows were fetched. Then the passes that are timed, each
  /// with selections of its own, the reference's with the same; the gather last, since it writes over hot rows.
  measured of(cell const& c, std::vector<recording> const& recorded) override {
    measured m;
    m.row_bytes = P::row.total();
    script_writer writer{setting_, c, subject_.selectable(), recorded};
    m.calls = writer.calls();
    script const first = writer.next();
    subject_.forget_graph();
    subject_.warm(first);
    ebb::counters const before = subject_.counts();
    m.wrong = subject_.checked();
    m.checked = static_cast<std::uint64_t>(first.calls) * static_cast<std::uint64_t>(first.entries());
    ebb::counters const after = subject_.counts();
    auto const fetched = subject_.fetched();
    for (fetched_call const& call : fetched) m.found_rows += static_cast<double>(call.rows.size()) / first.calls;
    if (after.lost != before.lost) m.wrong += after.lost - before.lost;
    double const counted = static_cast<double>(after.fetched_rows - before.fetched_rows) / first.calls;
    if (P::count && std::abs(counted - m.found_rows) > 1e-6 * (1 + counted)) {
      std::fprintf(stderr, "%s: the library counts %.2f fetched rows a call, the addresses say %.2f\n",
                   name_of(c.select), counted, m.found_rows);
    }

    auto* const against = rival_for(c);
    rival_result reference;
    if (against != nullptr) against->check(first, reference);
    std::vector<double> reference_us;
    double rows = 0, staged = 0;
    for (int pass = 0; pass < o_.passes; ++pass) {
      script const s = writer.next();
      subject_.warm(s);
      ebb::counters const from = subject_.counts();
      m.passes.push_back(c.swept ? subject_.timed_swept(m.wrong) : subject_.timed(m.wrong));
      ebb::counters const to = subject_.counts();
      rows += static_cast<double>(to.fetched_rows - from.fetched_rows) / s.calls / o_.passes;
      staged += static_cast<double>(to.staged_rows - from.staged_rows) / s.calls / o_.passes;
      m.checked += static_cast<std::uint64_t>(s.entries());
      if (against != nullptr) reference_us.push_back(against->time(s, c.swept));
    }
    m.us = median(m.passes);
    m.us_least = *std::min_element(m.passes.begin(), m.passes.end());
    m.fetched_rows = rows;
    m.staged_rows = staged;
    if (!reference_us.empty()) m.reference_us = median(reference_us);
    m.wrong += reference.wrong;
    m.checked += reference.checked;
    if (o_.floor) {
      // The subject's buffers hold a later pass's selections; a floor needs those of the pass that found the rows.
      subject_.warm(first);
      auto const floor =
          setting_.whole ? best_lookup<P>(clock_, subject_, first, c.swept)
                         : gather<P, S>::best(clock_, subject_, first, fetched, setting_.pinned, o_.thorough, c.swept);
      m.floor_us = floor.us;
      m.floor_grid = floor.grid;
      m.wrong += floor.wrong;
    }
    return m;
  }

 private:
  struct rival_result {
    std::uint64_t wrong = 0, checked = 0;
  };
  /// The reference of this top-k and hot size.
  struct any_rival {
    virtual ~any_rival() = default;
    virtual void check(script const&, rival_result&) = 0;
    virtual double time(script const&, bool swept) = 0;
  };
  template <int Hot>
  struct rival_of final : any_rival {
    rival<P::top_k, Hot, P, S> kernel;
    rival_of(timing<S>& clock, subject<P, S>& on, setting const& s) : kernel{clock, on, s} {}
    void check(script const& s, rival_result& r) override {
      typename rival<P::top_k, Hot, P, S>::result one;
      kernel.checked(s, one);
      r.wrong += one.wrong;
      r.checked += one.checked;
    }
    double time(script const& s, bool swept) override { return kernel.timed(s, swept); }
  };
  any_rival* rival_for(cell const&) {
    if (!o_.reference || setting_.whole) return nullptr;
    if (!rival_) {
      if (setting_.hot_factor == 2) {
        rival_ = std::make_unique<rival_of<2 * P::top_k>>(clock_, subject_, setting_);
      } else if constexpr (P::max_queries == 1 && P::row.total() == 576) {
        rival_ = std::make_unique<rival_of<4 * P::top_k>>(clock_, subject_, setting_);
      }
    }
    return rival_.get();
  }

  timing<S>& clock_;
  setting setting_;
  options const& o_;
  subject<P, S> subject_;
  std::unique_ptr<any_rival> rival_;
};

}  // namespace bench

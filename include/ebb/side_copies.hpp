#pragma once
/// Copies beside the layers: rows of a set's later sources, and announced candidates.

#include <ebb/arenas.hpp>
#include <ebb/lookahead.hpp>
#include <ebb/step_tables.hpp>

#include <algorithm>
#include <vector>

namespace ebb {

/// What the running step has enqueued on two side streams, and what must wait for it. A source's rows are copied while
/// the layer before attends: the copy for source k + 1 starts where `replay` of source k is called. Two planes of
/// staging alternate, so by then everything that reads source k − 1 must be enqueued. Part of `residency`, which checks
/// arguments. Host only, one control thread.
///
/// Capture: side streams join a capture with the first copy; whatever was not waited for is joined by `join`. Copies of a
/// capture that ended without it cannot be waited for: `join` outside of captures forgets them.
template <policy P, space S>
class side_copies {
 public:
  using stream = typename S::stream;
  using event = typename S::event;
  using metadata_ref = typename P::metadata::ref;

  side_copies(S const& space, geometry<P> const& geometry, arenas<P, S> const& rows, step_tables<P, S> const& tables)
      : space_{space},
        geometry_{geometry},
        rows_{rows},
        tables_{tables},
        replays_{space.make_stream()},
        prefetches_{space.make_stream()},
        announced_(static_cast<std::size_t>(geometry.sets())) {}

  /// A step begins: nothing of an earlier one is given any more.
  void begin() { last_ = {}; }
  /// The group that this step resolved last, −1: none.
  int group() const { return last_.group; }
  /// Sources of its set that `replay` may be called for: this one of the set, and later ones.
  int next() const { return last_.given; }
  /// True where a captured part left copies that nothing in it waits for.
  bool loose() const {
    return (last_.captured && behind()) ||
           std::any_of(announced_.begin(), announced_.end(), [](auto& a) { return a.open && a.captured; });
  }

  /// Before a resolve of a set: the plan before is carried out, and candidates are there.
  void before_resolve(stream on, int set) {
    finish_plan(on);
    finish_prefetch();
    wait_announced(on, set);
  }
  /// A resolve of `padded` requests was enqueued, whose metadata has `rows` rows.
  void resolved(stream on, int group, metadata_ref out, int padded, int rows) {
    int const sources = P::tiers::caches ? geometry_.sources_of_set(geometry_.set_of_group(group)) : 1;
    last_ = {group, out, 0, 0, 1, sources, padded, rows, space_.capturing(on), {}};
    if (sources > 1) ahead(on, [&] { copy(on); });
  }
  /// Metadata of source `k` of the set, from that of the source given before.
  void replay(stream on, int k, metadata_ref out) {
    while (last_.copied <= k && last_.copied < last_.sources) copy(on);
    if (k > 0 && last_.sources > 1) space_.wait(on, last_.done);
    int const set = geometry_.set_of_group(last_.group);
    source_view const& from = rows_.view(geometry_.source_of_set(set, last_.holds));
    source_view const& to = rows_.view(geometry_.source_of_set(set, k));
    space_.run(on, last_.rows, replay_body<P>{from, to, last_.out, out});
    if (P::metadata::entries(out) == P::metadata::entries(last_.out)) last_.holds = k;
    last_.given = k;
    if (k + 1 == last_.copied && last_.copied < last_.sources) ahead(on, [&] { copy(on); });
  }
  /// Copies candidates of a group's table.
  void prefetch(stream on, step const& s, int group, candidates const& pool) {
    finish_prefetch();
    space_.wait(prefetches_, space_.record(on));
    auto const body = tables_.prefetch(group, s, pool);
    space_.run(prefetches_, s.padded, body);
    int const set = geometry_.set_of_group(group);
    filling_ = {set, body.plan, s.padded, 0, geometry_.sources_of_set(set)};
    announced_[static_cast<std::size_t>(set)] = {true, space_.capturing(on), {}};
    ahead(on, [&] { finish_prefetch(); });
  }
  /// Whether the candidates last announced to a set's table are there. Requires: not announced in a capture.
  bool prefetched(int set) const {
    bool const filling = filling_.copied < filling_.sources && filling_.set == set;
    return !filling && space_.reached(announced_[static_cast<std::size_t>(set)].end);
  }
  /// Everything is there for what is enqueued on `on` from now on.
  void join(stream on) {
    if (loose() && !space_.capturing(on)) forget_captured();
    finish_plan(on);
    finish_prefetch();
    for (int set = 0; set < geometry_.sets(); ++set) wait_announced(on, set);
    last_.group = -1;
  }
  /// Waits for whatever is enqueued.
  void drain() const {
    space_.synchronize(space_.record(replays_));
    space_.synchronize(space_.record(prefetches_));
  }

 private:
  static constexpr int replay_teams = 64;
  static constexpr int prefetch_teams = 16;  ///< so that demand keeps the link
  struct plan_state {
    int group = -1;
    metadata_ref out{};
    int holds = 0;    ///< source of the set whose metadata `out` has
    int given = 0;    ///< source of the set that was given last
    int copied = 1;   ///< sources of the set whose copies are enqueued
    int sources = 1;  ///< of the set, whose rows may be fetched
    int padded = 0;
    int rows = 0;  ///< of its metadata
    bool captured = false;
    event done{};  ///< of the newest copy
  };
  /// The last prefetch: its plan is made, and `copied` sources of its set have, or get, the rows.
  struct filling_state {
    int set = 0;
    row_plan plan{};
    int padded = 0;
    int copied = 0;
    int sources = 0;
  };
  struct announcement {
    bool open = false;
    bool captured = false;
    event end{};
  };
  /// Sources of the last plan's set were not given, so nothing waited for all copies.
  bool behind() const { return last_.group >= 0 && last_.given + 1 < last_.sources; }
  void forget_captured() {
    if (last_.captured) last_ = {};
    for (announcement& a : announced_) {
      if (!a.captured || !a.open) continue;
      a = {};
      filling_.copied = filling_.sources;
    }
  }
  /// Enqueues the copy of the next source, behind everything on `on`.
  void copy(stream on) {
    int const set = geometry_.set_of_group(last_.group);
    int const items = last_.padded;
    int const parts = items == 0 ? 1 : std::clamp(replay_teams / items, 1, 8);
    space_.wait(replays_, space_.record(on));
    space_.run(
        replays_, items * parts,
        plan_copy_body<P>{tables_.plan(), items, parts, items * parts, rows_.view(geometry_.source_of_set(set, 0)),
                          rows_.view(geometry_.source_of_set(set, last_.copied))});
    last_.done = space_.record(replays_);
    ++last_.copied;
  }
  void finish_prefetch() {
    filling_state& f = filling_;
    if (f.copied == f.sources) return;
    int const parts = f.padded == 0 ? 1 : (prefetch_teams + f.padded - 1) / f.padded;
    int const teams = std::min(f.padded * parts, prefetch_teams);
    source_view const& first = rows_.view(geometry_.source_of_set(f.set, 0));
    for (; f.copied < f.sources; ++f.copied) {
      source_view const& to = rows_.view(geometry_.source_of_set(f.set, f.copied));
      space_.run(prefetches_, teams, plan_copy_body<P>{f.plan, f.padded, parts, teams, first, to});
    }
    announced_[static_cast<std::size_t>(f.set)].end = space_.record(prefetches_);
  }
  /// A launch that was refused for something that only looks ahead is made again where the copy is needed.
  template <class F>
  void ahead(stream on, F f) {
    try {
      f();
    } catch (...) {
      if (space_.broken() || space_.capturing(on)) throw;
    }
  }
  void finish_plan(stream on) {
    if (!behind()) return;
    while (last_.copied < last_.sources) copy(on);
    space_.wait(on, last_.done);
  }
  void wait_announced(stream on, int set) {
    announcement& a = announced_[static_cast<std::size_t>(set)];
    if (std::exchange(a.open, false)) space_.wait(on, a.end);
  }

  S space_;
  geometry<P> const& geometry_;
  arenas<P, S> const& rows_;
  step_tables<P, S> const& tables_;
  stream replays_, prefetches_;
  plan_state last_;
  filling_state filling_;
  std::vector<announcement> announced_;  ///< of each set
};

}  // namespace ebb

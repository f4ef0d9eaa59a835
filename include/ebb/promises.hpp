#pragma once
/// What was promised to whom: the arithmetic of admission.

#include <ebb/error.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

namespace ebb {

enum class hold_id : std::uint64_t { none = 0 };

/// Frames, host pages and draft rings that a request may come to need.
struct reservation {
  int frames = 0;
  int hosts = 0;
  int rings = 0;
};

/// Sums of promises: to live requests, to holds of queued ones, to the engine. A call is granted only what is not
/// promised, so whatever is granted can be had by revoking loans. Host only.
class promises {
 public:
  explicit promises(reservation all) : all_{all} {}

  /// Promised to live requests and the engine.
  int frames() const { return static_cast<int>(given_.frames); }
  /// Kept for holds; more than there are where several holds wait for the same ones.
  std::int64_t held_frames() const { return sum(hold_id::none).frames; }
  std::int64_t held_hosts() const { return sum(hold_id::none).hosts; }

  /// What can never be had.
  std::optional<shortage> impossible(reservation need) const {
    if (need.frames > all_.frames) return shortage{pool::frames, need.frames, all_.frames, 0, false};
    if (need.hosts > all_.hosts) return shortage{pool::host_pages, need.hosts, all_.hosts, 0, false};
    if (need.rings > all_.rings) return shortage{pool::draft_rings, need.rings, all_.rings, 0, false};
    return std::nullopt;
  }
  /// What cannot be had now beside promises and holds: all of them, or those older than `own`, so that the oldest hold
  /// is served first and the others cannot block it. `revocable` is only reported.
  std::optional<shortage> lacking(reservation need, hold_id own, long long revocable) const {
    if (own != hold_id::none) check(own);
    total const held = sum(own);
    long long const frames = std::max<long long>(0, all_.frames - given_.frames - held.frames);
    long long const hosts = std::max<long long>(0, all_.hosts - given_.hosts - held.hosts);
    if (need.frames > frames) return shortage{pool::frames, need.frames, frames, revocable, true};
    long long const rings = std::max<long long>(0, all_.rings - given_.rings - held.rings);
    if (need.hosts > hosts) return shortage{pool::host_pages, need.hosts, hosts, 0, true};
    if (need.rings > rings) return shortage{pool::draft_rings, need.rings, rings, 0, true};
    return std::nullopt;
  }

  void give(reservation r) { given_ = {given_.frames + r.frames, given_.hosts + r.hosts, given_.rings + r.rings}; }
  void take_back(reservation r) { give({-r.frames, -r.hosts, -r.rings}); }

  hold_id hold(reservation r) {
    hold_id const id{++holds_given_};
    holds_.emplace(id, r);
    return id;
  }
  void release(hold_id id) {
    check(id);
    holds_.erase(id);
  }

 private:
  struct total {
    std::int64_t frames = 0, hosts = 0, rings = 0;
  };
  /// Of the holds older than `id`; none: of all.
  total sum(hold_id id) const {
    total t;
    for (auto const& [each, r] : holds_) {
      if (each == id) break;
      t = {t.frames + r.frames, t.hosts + r.hosts, t.rings + r.rings};
    }
    return t;
  }
  void check(hold_id id) const {
    require(holds_.contains(id), "hold", static_cast<long long>(id), "a hold that was given and not used or released");
  }

  reservation all_;
  total given_;
  std::map<hold_id, reservation> holds_;
  std::uint64_t holds_given_ = 0;
};

}  // namespace ebb

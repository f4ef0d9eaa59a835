#pragma once
/// What was promised to whom: the arithmetic of admission.

#include <ebb/error.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

namespace ebb {

enum class hold_id : std::uint64_t { none = 0 };

/// Frames and host pages that a request may come to need.
struct reservation {
  int frames = 0;
  int hosts = 0;
};

/// Sums of promises: to live requests, to holds of queued ones, to the engine. A call is granted only what is not
/// promised, so whatever is granted can be had by revoking loans. Host only.
class promises {
 public:
  promises(int frames, int host_pages, std::int64_t max_tokens) : all_{frames, host_pages}, max_tokens_{max_tokens} {}

  int frames() const { return given_.frames; }
  int held_frames() const { return held_.frames; }

  /// What can never be had.
  std::optional<shortage> impossible(reservation need, std::int64_t tokens_max) const {
    if (tokens_max > max_tokens_) return shortage{pool::tokens, tokens_max, max_tokens_, 0, false};
    if (need.frames > all_.frames) return shortage{pool::frames, need.frames, all_.frames, 0, false};
    if (need.hosts > all_.hosts) return shortage{pool::host_pages, need.hosts, all_.hosts, 0, false};
    return std::nullopt;
  }
  /// What cannot be had now beside promises and the holds of others; `revocable` is only reported.
  std::optional<shortage> lacking(reservation need, hold_id own, long long revocable) const {
    reservation const mine = own == hold_id::none ? reservation{} : held_by(own);
    int const frames = std::max(0, all_.frames - given_.frames - held_.frames + mine.frames);
    int const hosts = std::max(0, all_.hosts - given_.hosts - held_.hosts + mine.hosts);
    if (need.frames > frames) return shortage{pool::frames, need.frames, frames, revocable, true};
    if (need.hosts > hosts) return shortage{pool::host_pages, need.hosts, hosts, 0, true};
    return std::nullopt;
  }

  void give(reservation r) { given_ = {given_.frames + r.frames, given_.hosts + r.hosts}; }
  void take_back(reservation r) { give({-r.frames, -r.hosts}); }

  hold_id hold(reservation r) {
    hold_id const id{++holds_given_};
    holds_.emplace(id, r);
    held_ = {held_.frames + r.frames, held_.hosts + r.hosts};
    return id;
  }
  void release(hold_id id) {
    reservation const r = held_by(id);
    held_ = {held_.frames - r.frames, held_.hosts - r.hosts};
    holds_.erase(id);
  }

 private:
  reservation held_by(hold_id id) const {
    auto const it = holds_.find(id);
    require(it != holds_.end(), "hold", static_cast<long long>(id), "a hold that was given and not used or released");
    return it->second;
  }

  reservation all_;
  std::int64_t max_tokens_;
  reservation given_;
  reservation held_;
  std::map<hold_id, reservation> holds_;
  std::uint64_t holds_given_ = 0;
};

}  // namespace ebb

#pragma once
/// Which pages may move, and which of them do: requirements of requests, and the keep order's choice.

#include <ebb/capacity.hpp>
#include <ebb/ledger.hpp>
#include <ebb/orders/keep.hpp>
#include <ebb/policy.hpp>

#include <span>

namespace ebb {

/// Sizes of an allocator; `hot` and `tail` are frames of one request.
struct allocator_sizes {
  int frames;
  int host_pages;
  int requests;
  std::int64_t max_tokens;
  int tail;
  int hot;
  int run = 1;    ///< host pages handed out together
  int rings = 0;  ///< of drafters with a window
};

/// What a request requires of its pages, and the choice of those that go or come. Part of `seating`. Host only, one
/// control thread. Cost of a choice: one look at every page of the requests that could move one.
template <policy P>
class page_choice {
  using keep = typename P::keep;

 public:
  page_choice(allocator_sizes const& sizes, ledger& book) : sizes_{sizes}, book_{book} {}

  /// True for a request longer than its required frames: its history can be lent and revoked.
  bool is_long(request_record const& r) const {
    return P::tiers::caches && book_.pages_of(r.tokens_max) > sizes_.tail + sizes_.hot;
  }
  int tail_first(request_record const& r) const { return std::max(0, static_cast<int>(r.pages.size()) - sizes_.tail); }
  /// An import under way writes page p: until publish it stays as `reserve` left it, only a loan may go.
  bool arriving(request_record const& r, int p) const {
    return r.reserved > r.tokens && p >= static_cast<int>(r.tokens / P::page_tokens);
  }
  bool is_required(request_record const& r, int p) const {
    return !is_long(r) || r.pinned || p >= tail_first(r) || (r.hot.empty() && p < sizes_.hot);
  }
  bool may_go(request_record const& r, int p) const {
    return book_.has_frame(r, p) && book_.state(r, p) == frame_state::lent;
  }
  bool may_come(request_record const& r, int p) const {
    return !book_.has_frame(r, p) && book_.page(r, p).backed == P::page_tokens;
  }

  /// The first n pages of r in the order in which they would go or come.
  void candidates(request_record const& r, int n, bool going, std::vector<int>& out) const {
    out.clear();
    int const end = going ? static_cast<int>(r.pages.size()) : tail_first(r);
    for (int i = 0; i < end && (keep::wants_uses || static_cast<int>(out.size()) < n); ++i) {
      int const p = going ? i : end - 1 - i;
      if (going ? may_go(r, p) : may_come(r, p)) out.push_back(p);
    }
    if constexpr (keep::wants_uses) {
      auto const first = [&](int a, int b) {
        std::uint32_t const ua = r.uses[static_cast<std::size_t>(a)], ub = r.uses[static_cast<std::size_t>(b)];
        return going ? std::pair{ua, a} < std::pair{ub, b} : std::pair{ua, a} > std::pair{ub, b};
      };
      auto const last = out.begin() + std::min<std::ptrdiff_t>(n, std::ssize(out));
      if (last != out.end()) std::nth_element(out.begin(), last, out.end(), first);
      std::sort(out.begin(), last, first);
      out.erase(last, out.end());
    }
  }

  /// Chooses up to n pages by the keep order: loans that go, or absent pages that come back. `step`: the running number of
  /// the step; a request that was revoked from lately gets nothing back.
  void choose(int n, bool going, long long step) {
    holders_.clear();
    holding_.clear();
    orders_.clear();
    uses_.clear();
    for (int slot = 0; slot < sizes_.requests; ++slot) {
      request_record& r = book_.at(slot);
      int most = r.phase != phase::running ? 0 : going ? r.lent : refillable(r, step);
      if (most <= 0) continue;
      std::vector<int> order;
      if constexpr (keep::wants_uses) {
        candidates(r, std::min(n, most), going, order);
        most = static_cast<int>(order.size());
        if (most == 0) continue;
        auto& uses = uses_.emplace_back();
        for (int p : order) uses.push_back(r.uses[static_cast<std::size_t>(p)]);
      }
      orders_.push_back(std::move(order));
      holding_.push_back(&r);
      holders_.push_back({r.admitted, static_cast<int>(r.pages.size()), most, {}});
    }
    for (std::size_t i = 0; i < uses_.size(); ++i) holders_[i].uses = uses_[i];
    quota_.assign(holders_.size(), 0);
    going ? keep::revoke(holders_, n, quota_) : keep::refill(holders_, n, quota_);
    for (std::size_t i = 0; i < orders_.size(); ++i) {
      if (!keep::wants_uses && quota_[i] > 0) candidates(*holding_[i], quota_[i], going, orders_[i]);
      orders_[i].resize(std::min(orders_[i].size(), static_cast<std::size_t>(quota_[i])));
    }
  }
  /// Requests that the last choice looked at, and the pages chosen of each, in order.
  std::size_t size() const { return holding_.size(); }
  request_record& request(std::size_t i) const { return *holding_[i]; }
  std::vector<int> const& chosen(std::size_t i) const { return orders_[i]; }

 private:
  int refillable(request_record const& r, long long step) const {
    bool const rested = step - r.revoked_at > defaults::refill_pause;
    if (!is_long(r) || !rested || r.pinned || r.reserved > r.tokens) return 0;
    int absent = static_cast<int>(r.pages.size()) - r.framed;
    for (int p = tail_first(r); p < static_cast<int>(r.pages.size()); ++p) absent -= !book_.has_frame(r, p);
    return absent;
  }

  allocator_sizes const& sizes_;
  ledger& book_;
  std::vector<holder> holders_;
  std::vector<request_record*> holding_;
  std::vector<std::vector<int>> orders_;
  std::vector<std::vector<std::uint32_t>> uses_;
  std::vector<int> quota_;
};

}  // namespace ebb

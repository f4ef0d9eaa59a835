#pragma once
/// Decides who may run and which history sits in spare frames: admit, lend, revoke, refill, finish. It never touches bytes.

#include <ebb/capacity.hpp>
#include <ebb/ledger.hpp>
#include <ebb/orders/backup.hpp>
#include <ebb/orders/keep.hpp>
#include <ebb/policy.hpp>

#include <map>
#include <optional>

namespace ebb {

enum class hold_id : std::uint64_t { none = 0 };
enum class take_id : std::uint64_t { none = 0 };

/// Sizes of an allocator; `hot` and `tail` are frames of one request.
struct allocator_sizes {
  int frames;
  int host_pages;
  int requests;
  std::int64_t max_tokens;
  int tail;
  int hot;
  int run = 1;  ///< host pages handed out together
};

/// The revocable-loan allocator. Every call is decided at once and deterministically on the ledger; what streams must do for it is left in
/// `book().out`. Calls between steps may revoke at once; calls inside an open step take free frames only and leave the rest to begin_step.
/// Concurrency: one control thread. Cost: grows with the pages moved, and with the requests where loans are revoked or refilled.
template <policy P>
class loan_allocator {
  using keep = typename P::keep;
  static_assert(keep_order<keep>, "ebb policy: `keep` is not a keep order; it needs wants_uses, revoke and refill");
  static_assert(backup_order<typename P::backup>, "ebb policy: `backup` is not a backup order; use sealed_pages, each_step or on_revoke");

 public:
  explicit loan_allocator(allocator_sizes const& sizes)
      : sizes_{sizes}, book_{sizes.frames, sizes.host_pages, sizes.requests, sizes.run, P::page_tokens} {}

  ledger& book() { return book_; }
  ledger const& book() const { return book_; }
  allocator_sizes const& sizes() const { return sizes_; }

  /// Frames that a request of up to `tokens_max` tokens cannot run without.
  int required(std::int64_t tokens_max) const {
    return required_frames(tokens_max, P::page_tokens, sizes_.tail, sizes_.hot, P::tiers::caches);
  }
  /// True for a request longer than its required frames: its history can be lent and revoked.
  bool is_long(request_record const& r) const { return P::tiers::caches && book_.pages_of(r.tokens_max) > sizes_.tail + sizes_.hot; }
  int tail_first(request_record const& r) const { return std::max(0, static_cast<int>(r.pages.size()) - sizes_.tail); }
  /// Frames promised to live requests, holds and the engine; the rest may be promised.
  int promised() const { return promised_frames_; }
  int spare() const { return P::tiers::lends ? std::max(0, book_.frames.usable() - outstanding() - held_frames_) : 0; }
  /// Frames that pending calls still wait for.
  int outstanding() const { return outstanding_; }

  // ---- admission -------------------------------------------------------------------------------------------------------------------

  /// Admits a request that may grow to `tokens_max` tokens and starts with `tokens`. See `residency::admit`.
  outcome<request_id> admit(std::int64_t tokens_max, std::int64_t tokens, hold_id hold) {
    require(tokens_max > 0, "admit: tokens_max", tokens_max, "1 to max_tokens");
    require(tokens >= 0 && tokens <= tokens_max, "admit: tokens", tokens, "0 to tokens_max");
    reservation const need = need_of(tokens_max);
    if (auto no = lacking(need, tokens_max, hold)) return refuse(*no);
    int slot = 0;
    while (slot < sizes_.requests && book_.at(slot).phase != phase::vacant) ++slot;
    if (slot == sizes_.requests) return refuse({pool::requests, 1, 0, 0, true});
    release(hold);
    request_record& r = book_.at(slot);
    std::uint32_t const incarnation = r.id.incarnation + 1;
    r = {};
    r.id = {slot, incarnation};
    r.phase = phase::waiting;
    r.admitted = ++admissions_;
    r.tokens_max = tokens_max;
    r.reserve = need.frames;
    promised_frames_ += need.frames;
    promised_hosts_ += need.hosts;
    ++book_.counts.admitted;
    book_.out.clear.push_back(slot);
    book_.out.lengths.push_back(slot);
    acquire(r, std::min(need.frames, book_.pages_of(tokens)));
    return r.id;
  }

  /// Promises room for a request that is still queued: admissions of others leave it alone, refill never takes its frames.
  outcome<hold_id> hold(std::int64_t tokens_max) {
    require(tokens_max > 0, "hold: tokens_max", tokens_max, "1 to max_tokens");
    reservation const need = need_of(tokens_max);
    if (auto no = impossible(need, tokens_max)) return refuse(*no);
    hold_id const id{++holds_given_};
    holds_.emplace(id, need);
    held_frames_ += need.frames;
    held_hosts_ += need.hosts;
    return id;
  }
  void release(hold_id id) {
    if (id == hold_id::none) return;
    auto const it = holds_.find(id);
    require(it != holds_.end(), "hold", static_cast<long long>(id), "a hold that was given and not used or released");
    held_frames_ -= it->second.frames;
    held_hosts_ -= it->second.hosts;
    holds_.erase(it);
  }

  /// Gives frames to the engine; `collect` hands them over once nobody else works on them.
  outcome<take_id> take(int n) {
    require(n > 0 && n <= sizes_.frames, "take: frames", n, "1 to " + std::to_string(sizes_.frames));
    if (auto no = lacking({n, 0}, 1, hold_id::none)) return refuse(*no);
    take_id const id{++takes_given_};
    promised_frames_ += n;
    takes_[id].wanted = n;
    demand_.push_back({-1, id, n});
    outstanding_ += n;
    serve();
    return id;
  }
  std::optional<std::vector<frame_id>> collect(take_id id) {
    auto const it = takes_.find(id);
    require(it != takes_.end(), "collect: take", static_cast<long long>(id), "a take that was given and not collected");
    serve();
    taking& t = it->second;
    if (static_cast<int>(t.frames.size()) < t.wanted) return std::nullopt;
    for (frame_id f : t.frames) {
      if (book_.frames[f].after > book_.done) return std::nullopt;
    }
    std::vector<frame_id> frames = std::move(t.frames);
    takes_.erase(it);
    return frames;
  }
  void give(std::span<frame_id const> frames) {
    for (frame_id f : frames) require_taken(f, "give: frame");
    for (frame_id f : frames) book_.retire(f);
    promised_frames_ -= static_cast<int>(frames.size());
    serve();
  }

  // ---- history that arrives --------------------------------------------------------------------------------------------------------

  /// Makes room for history up to `tokens`: host pages, frames the request has idle, and spare frames, newest pages first.
  void reserve(request_record& r, std::int64_t tokens) {
    r.reserved = tokens;
    while (static_cast<int>(r.pages.size()) < book_.pages_of(tokens)) book_.append(r);
    settle_in(r);
  }

  /// Turns taken frames, written by the engine, into pages behind the committed ones.
  void adopt(request_record& r, std::span<frame_id const> frames, std::int64_t tokens) {
    for (frame_id f : frames) require_taken(f, "adopt: frame");
    for (frame_id f : frames) {
      book_.append(r);
      int const p = static_cast<int>(r.pages.size()) - 1;
      book_.frames.set(f, frame_state::required, r.id.slot, p);
      book_.place(r, p, f);
      book_.land(r, p);
      ++book_.counts.adopted;
    }
    promised_frames_ -= static_cast<int>(frames.size());
    set_tokens(r, tokens);
    refresh(r, 0);
  }

  void set_tokens(request_record& r, std::int64_t tokens) {
    r.tokens = tokens;
    r.reserved = tokens;
    book_.out.lengths.push_back(r.id.slot);
  }

  // ---- steps -----------------------------------------------------------------------------------------------------------------------

  /// First part of begin_step: copies that are done count, frames whose readers are done are free, chosen pages leave, calls are served.
  void settle() {
    ++step_;
    book_.frames.settle(book_.done);
    settle_marked();
    serve();
  }

  /// Makes the request ready to write tokens up to `upper`: every page it writes is in a frame of its own.
  void grow(request_record& r, std::int64_t upper) {
    int const pages = book_.pages_of(upper);
    int const first_written = static_cast<int>(r.tokens / P::page_tokens);
    while (static_cast<int>(r.pages.size()) > std::max(pages, book_.pages_of(r.tokens))) shed_last(r);
    int const before = tail_first(r);
    while (static_cast<int>(r.pages.size()) < pages) book_.append(r);
    refresh(r, before);
    if (r.missing > 0) bring_back(r, first_written);
    for (int p = first_written; p < pages; ++p) {
      if (!book_.has_frame(r, p)) seat(r, p);
      arrive(r, p);
    }
  }

  /// Hands pages back within `budget` pages, from the top of the keep order.
  void refill(int budget) {
    int n = std::min({budget, spare(), static_cast<int>(book_.frames.count(frame_state::free))});
    if (n <= 0) return;
    collect_holders([&](request_record const& r) { return refillable(r); }, false);
    quota_.assign(holders_.size(), 0);
    keep::refill(holders_, n, quota_);
    for (std::size_t i = 0; i < holders_.size(); ++i) {
      request_record& r = *holding_[i];
      pick(r, quota_[i], false, [&](int p) {
        auto const f = book_.frames.take_free(frame_state::filling, r.id.slot, p);
        book_.place(r, p, *f);
        if (book_.copy(copy_kind::refill, r, p, 0, P::page_tokens)) return;
        --book_.counts.lent;
        book_.frames.retire(book_.lift(r, p), ticket::none, true);
      });
    }
  }

  /// Asks for the host copies of what the last step committed.
  void back_up(request_record& r) {
    if constexpr (!P::backup::when_sealed) return;
    int const end = P::backup::after_each_step ? book_.pages_of(r.tokens) : static_cast<int>(r.tokens / P::page_tokens);
    bool contiguous = true;
    for (int p = r.backup_from; p < end; ++p) {
      if (book_.has_frame(r, p) && book_.page(r, p).mapped) contiguous &= book_.back_up(r, p);
      if (contiguous && book_.page(r, p).backing >= P::page_tokens) r.backup_from = p + 1;
      contiguous &= r.backup_from > p;
    }
  }

  // ---- control ---------------------------------------------------------------------------------------------------------------------

  void finish(request_record& r) {
    unmark(r);
    leave(r);
    for (page_record& p : r.pages) book_.hosts.release(p.at.host, std::max(book_.main, p.busy));
    promised_hosts_ -= need_of(r.tokens_max).hosts;
    request_id const id = r.id;
    r = {};
    r.id = id;
    ++book_.counts.finished;
    serve();
  }

  /// Gives up every frame; pages without a complete host copy stay where they are until it is made.
  void preempt(request_record& r) {
    for (int p = 0; p < static_cast<int>(r.pages.size()); ++p) {
      if (!book_.has_frame(r, p) || !book_.page(r, p).mapped || book_.complete(r, p)) continue;
      if (!book_.is_marked(r, p)) book_.mark(r, p);
      book_.back_up(r, p);
    }
    leave(r);
    r.phase = phase::preempted;
    ++book_.counts.preempted;
    serve();
  }

  outcome<request_id> resume(request_record& r, std::int64_t tokens) {
    reservation need = need_of(r.tokens_max);
    need.hosts = 0;
    if (auto no = lacking(need, r.tokens_max, hold_id::none)) return refuse(*no);
    r.phase = phase::waiting;
    r.reserve = need.frames;
    promised_frames_ += need.frames;
    unmark(r);
    refresh(r, 0);
    ++book_.counts.resumed;
    book_.out.clear.push_back(r.id.slot);
    book_.out.lengths.push_back(r.id.slot);
    acquire(r, std::max(0, std::min(need.frames, book_.pages_of(tokens)) - r.framed));
    return r.id;
  }

  /// Keeps the first `tokens` tokens. What was cached, copied or being copied of the rest no longer counts.
  void truncate(request_record& r, std::int64_t tokens) {
    while (static_cast<int>(r.pages.size()) > book_.pages_of(tokens)) shed_last(r);
    int const partial = static_cast<int>(tokens % P::page_tokens);
    set_tokens(r, tokens);
    if (partial != 0) {
      page_record& last = r.pages.back();
      book_.wait_main(last.busy);
      last.backed = std::min(last.backed, partial);
      last.backing = last.backed;
      ++last.epoch;
    }
    r.backup_from = std::min(r.backup_from, static_cast<int>(tokens / P::page_tokens));
    book_.out.clear.push_back(r.id.slot);
    ++book_.counts.truncated;
    refresh(r, 0);
    serve();
  }

  outcome<request_id> require_whole(request_record& r) {
    int const extra = static_cast<int>(r.hot.size()) + book_.pages_of(r.tokens_max) - r.reserve;
    if (extra > 0) {
      if (auto no = lacking({extra, 0}, r.tokens_max, hold_id::none)) return refuse(*no);
      r.reserve += extra;
      promised_frames_ += extra;
    }
    r.pinned = true;
    unmark(r);
    refresh(r, 0);
    acquire(r, static_cast<int>(r.pages.size()) - r.framed - static_cast<int>(r.idle.size()));
    return r.id;
  }
  void release_whole(request_record& r) {
    r.pinned = false;
    int const reserve = std::max(required(r.tokens_max), static_cast<int>(r.hot.empty() ? 0 : sizes_.tail + sizes_.hot));
    promised_frames_ -= r.reserve - reserve;
    r.reserve = reserve;
    refresh(r, 0);
  }

  void set_uses(request_record& r, std::span<std::uint32_t const> uses) {
    std::copy_n(uses.begin(), std::min(uses.size(), r.uses.size()), r.uses.begin());
  }

  /// Inside an open step no page leaves its frame.
  void open_step() { step_open_ = true; }
  void close_step() { step_open_ = false; }

  /// True once the frames that its admission or resumption asked for are there.
  bool ready(request_record const& r) const { return r.phase == phase::running; }

 private:
  struct reservation {
    int frames;
    int hosts;
  };
  struct taking {
    int wanted = 0;
    std::vector<frame_id> frames;
  };
  /// Frames that an admission, a resumption or a take still waits for.
  struct waiting {
    int slot;
    take_id take;
    int frames;
  };

  reservation need_of(std::int64_t tokens_max) const { return {required(tokens_max), book_.pages_of(tokens_max)}; }

  refused refuse(shortage const& s) {
    ++book_.counts.refused;
    return refused{s};
  }
  long long revocable() const { return book_.frames.count(frame_state::lent) + book_.frames.count(frame_state::filling); }

  /// What can never be had, and what cannot be had now beside promises and the holds of others.
  std::optional<shortage> impossible(reservation need, std::int64_t tokens_max) const {
    if (tokens_max > sizes_.max_tokens) return shortage{pool::tokens, tokens_max, sizes_.max_tokens, 0, false};
    if (need.frames > sizes_.frames) return shortage{pool::frames, need.frames, sizes_.frames, 0, false};
    if (need.hosts > sizes_.host_pages) return shortage{pool::host_pages, need.hosts, sizes_.host_pages, 0, false};
    return std::nullopt;
  }
  std::optional<shortage> lacking(reservation need, std::int64_t tokens_max, hold_id hold) const {
    if (auto no = impossible(need, tokens_max)) return no;
    reservation own{0, 0};
    if (hold != hold_id::none) {
      auto const it = holds_.find(hold);
      require(it != holds_.end(), "admit: hold", static_cast<long long>(hold), "a hold that was given and not used or released");
      own = it->second;
    }
    int const frames = sizes_.frames - promised_frames_ - held_frames_ + own.frames;
    int const hosts = sizes_.host_pages - promised_hosts_ - held_hosts_ + own.hosts;
    if (need.frames > frames) return shortage{pool::frames, need.frames, std::max(0, frames), revocable(), true};
    if (need.hosts > hosts) return shortage{pool::host_pages, need.hosts, std::max(0, hosts), 0, true};
    return std::nullopt;
  }

  void require_taken(frame_id f, char const* what) const {
    bool const known = index(f) >= 0 && index(f) < sizes_.frames;
    require(known && book_.frames[f].state == frame_state::taken, what, index(f), "a frame that the engine took and has not given back");
  }

  // ---- who gets frames -------------------------------------------------------------------------------------------------------------

  void acquire(request_record& r, int n) {
    if (n > 0) {
      demand_.push_back({r.id.slot, take_id::none, n});
      outstanding_ += n;
    } else {
      r.phase = phase::running;
      settle_in(r);
    }
    serve();
    if (r.phase == phase::waiting) ++book_.counts.waited;
  }

  /// Serves waiting calls in order, and revokes exactly what is still short, counting what is on its way back.
  void serve() {
    for (bool again = true; again;) {
      for (auto it = demand_.begin(); it != demand_.end();) it = give_to(*it) ? demand_.erase(it) : it + 1;
      int const short_of = outstanding_ - book_.frames.returning() - static_cast<int>(book_.marked.size());
      again = short_of > 0 && revoke(short_of) > 0 && !step_open_ && book_.frames.usable() > 0;
    }
  }
  /// True when all its frames are there.
  bool give_to(waiting& w) {
    frame_state const use = w.slot < 0 ? frame_state::taken : frame_state::required;
    while (w.frames > 0) {
      auto const f = book_.frames.take(use, w.slot, -1);
      if (!f) return false;
      (w.slot < 0 ? takes_[w.take].frames : book_.at(w.slot).idle).push_back(*f);
      --w.frames;
      --outstanding_;
    }
    if (w.slot >= 0) {
      book_.at(w.slot).phase = phase::running;
      settle_in(book_.at(w.slot));
    }
    return true;
  }

  /// Uses the frames that the request has idle: all its pages if they suffice, else hot rows and the pages that an import will write,
  /// which may also sit in spare frames, as loans.
  void settle_in(request_record& r) {
    int const pages = static_cast<int>(r.pages.size());
    int const first_new = static_cast<int>((r.tokens + P::page_tokens - 1) / P::page_tokens);
    int const absent = pages - r.framed;
    int const room = static_cast<int>(r.idle.size()) + (pages > first_new ? spare() : 0);
    if (absent > room && is_long(r) && !r.pinned && r.hot.empty() && static_cast<int>(r.idle.size()) >= sizes_.hot) make_hot(r, false);
    int const end = r.hot.empty() || r.pinned ? 0 : first_new;
    for (int p = pages; p-- > end;) {
      if (book_.has_frame(r, p)) continue;
      std::optional<frame_id> f;
      if (!r.idle.empty()) {
        f = from_idle(r, p);
      } else if (p >= first_new && spare() > 0) {
        f = book_.frames.take_free(is_required(r, p) ? frame_state::required : frame_state::lent, r.id.slot, p);
      }
      if (!f) break;
      book_.place(r, p, *f);
      if (book_.copy(copy_kind::restore, r, p, 0, book_.tokens_in(r, p))) continue;
      book_.retire(book_.lift(r, p));
      break;
    }
  }

  bool is_required(request_record const& r, int p) const {
    return !is_long(r) || r.pinned || p >= tail_first(r) || (r.hot.empty() && p < sizes_.hot);
  }
  frame_id from_idle(request_record& r, int p) {
    frame_id const f = r.idle.back();
    r.idle.pop_back();
    book_.frames.set(f, is_required(r, p) ? frame_state::required : frame_state::lent, r.id.slot, p);
    return f;
  }
  /// States of its pages from `first` on, after the tail moved or the request's mode changed.
  void refresh(request_record& r, int first) {
    for (int p = first; p < static_cast<int>(r.pages.size()); ++p) {
      if (!book_.has_frame(r, p)) continue;
      frame_state const s = book_.state(r, p);
      if (s == frame_state::required || s == frame_state::lent) book_.set_state(r, p, is_required(r, p) ? frame_state::required : frame_state::lent);
    }
  }

  // ---- steps -----------------------------------------------------------------------------------------------------------------------

  /// A whole request that lacks pages gets them, or hot rows instead.
  void bring_back(request_record& r, int end) {
    if (!r.hot.empty() && !r.pinned) return;
    for (int p = 0; p < end; ++p) {
      if (book_.has_frame(r, p)) continue;
      if (is_long(r) && !r.pinned) {
        make_hot(r, true);
        return;
      }
      seat(r, p);
    }
    for (int p = 0; p < end; ++p) arrive(r, p);
  }

  /// Finds a frame for page p: idle, spare, or due to the request; else its own least wanted page makes way.
  void seat(request_record& r, int p) {
    frame_state const use = is_required(r, p) ? frame_state::required : frame_state::lent;
    frame_id f;
    if (!r.idle.empty()) {
      f = from_idle(r, p);
    } else if (book_.held(r) < r.reserve || spare() > 0) {
      f = obtain(r, p, use);
    } else {
      if (is_long(r) && r.hot.empty() && !make_hot(r, true)) throw_no_frame(r, p);
      f = reuse_own(r, p, use);
    }
    book_.place(r, p, f);
    if (book_.tokens_in(r, p) == 0) return book_.land(r, p);
    if (!book_.copy(copy_kind::restore, r, p, 0, book_.tokens_in(r, p))) {
      book_.retire(book_.lift(r, p));
      throw_no_frame(r, p);
    }
  }
  frame_id reuse_own(request_record& r, int p, frame_state use) {
    std::optional<frame_id> f;
    pick(r, 1, true, [&](int victim) {
      if (f || !book_.back_up_now(r, victim)) return;
      f = book_.lift(r, victim);
      ++book_.counts.revoked;
      book_.frames.set(*f, use, r.id.slot, p);
    });
    return f ? *f : obtain(r, p, use);
  }
  /// The page's rows are readable by the main stream from now on.
  void arrive(request_record& r, int p) {
    if (!book_.has_frame(r, p) || book_.page(r, p).mapped) return;
    book_.wait_main(book_.page(r, p).busy);
    if (book_.state(r, p) == frame_state::filling) book_.set_state(r, p, frame_state::lent);
    book_.land(r, p);
  }

  /// A frame for the main stream's next work, whatever it takes: free, revoked, or waited for.
  frame_id obtain(request_record& r, int p, frame_state use) {
    if (auto f = book_.frames.take(use, r.id.slot, p)) return *f;
    if (book_.marked.empty()) revoke(1);
    if (auto f = book_.frames.take(use, r.id.slot, p)) return *f;
    if (auto f = book_.frames.take_cooling(use, r.id.slot, p)) {
      book_.wait_main(book_.frames[*f].after);
      ++book_.counts.forced_waits;
      return *f;
    }
    auto const chosen = book_.marked;
    for (auto [slot, page] : chosen) {
      request_record& victim = book_.at(slot);
      if (page >= static_cast<int>(victim.pages.size()) || !book_.is_marked(victim, page) || !book_.back_up_now(victim, page)) continue;
      if (wants_hot(victim) && !make_hot(victim, true)) continue;
      settle_marked();
      if (auto f = book_.frames.take(use, r.id.slot, p)) return *f;
    }
    throw_no_frame(r, p);
  }
  [[noreturn]] void throw_no_frame(request_record const& r, int p) const {
    throw std::runtime_error("begin_step: page " + std::to_string(p) + " of the request in slot " + std::to_string(r.id.slot) +
                             " has no frame: the copies that would free or fill one were refused");
  }

  // ---- loans -----------------------------------------------------------------------------------------------------------------------

  bool wants_hot(request_record const& r) const { return r.phase != phase::preempted && is_long(r) && !r.pinned && r.hot.empty(); }

  /// The request's idle frames and oldest pages become its hot rows. Not `forced`: only where their host copies are complete, which are asked
  /// for otherwise. False where it could not be done.
  bool make_hot(request_record& r, bool forced) {
    int const wanted = sizes_.hot - static_cast<int>(r.idle.size());
    std::vector<int> oldest;
    bool backed = true;
    for (int p = 0; p < tail_first(r) && static_cast<int>(oldest.size()) < wanted; ++p) {
      if (!book_.has_frame(r, p) || !book_.page(r, p).mapped) continue;
      oldest.push_back(p);
      backed &= forced ? book_.back_up_now(r, p) : book_.back_up(r, p) && book_.complete(r, p);
    }
    if (!backed || (!forced && static_cast<int>(oldest.size()) < wanted)) return false;
    for (int i = 0; i < sizes_.hot && !r.idle.empty(); ++i) {
      r.hot.push_back(r.idle.back());
      r.idle.pop_back();
    }
    for (int p : oldest) r.hot.push_back(book_.lift(r, p));
    while (static_cast<int>(r.hot.size()) < sizes_.hot) r.hot.push_back(obtain(r, -1, frame_state::required));
    for (frame_id f : r.hot) book_.frames.set(f, frame_state::required, r.id.slot, -1);
    book_.out.hot.push_back(r.id.slot);
    book_.out.clear.push_back(r.id.slot);
    refresh(r, 0);
    return true;
  }

  /// Chooses up to n lent pages from the bottom of the keep order; how many.
  int revoke(int n) {
    collect_holders([](request_record const& r) { return r.lent; }, true);
    quota_.assign(holders_.size(), 0);
    keep::revoke(holders_, n, quota_);
    int chosen = 0;
    for (std::size_t i = 0; i < holders_.size(); ++i) {
      if (quota_[i] == 0) continue;
      holding_[i]->revoked_at = step_;
      pick(*holding_[i], quota_[i], true, [&](int p) {
        book_.mark(*holding_[i], p);
        ++chosen;
      });
    }
    if (!step_open_) settle_marked();
    return chosen;
  }

  /// Chosen pages whose host copies are complete leave their frames.
  void settle_marked() {
    auto const chosen = std::exchange(book_.marked, {});
    for (auto [slot, p] : chosen) {
      request_record& r = book_.at(slot);
      if (p >= static_cast<int>(r.pages.size()) || !book_.is_marked(r, p)) continue;
      bool leaves = book_.back_up(r, p) && book_.complete(r, p);
      if (leaves && wants_hot(r)) leaves = make_hot(r, false);
      if (!book_.is_marked(r, p)) continue;
      if (!leaves) {
        book_.marked.emplace_back(slot, p);
        continue;
      }
      if (r.phase != phase::preempted) ++book_.counts.revoked;
      book_.drop(r, p);
    }
  }
  void unmark(request_record& r) {
    for (auto [slot, p] : book_.marked) {
      if (slot == r.id.slot && p < static_cast<int>(r.pages.size()) && book_.is_marked(r, p)) book_.set_state(r, p, frame_state::required);
    }
    std::erase_if(book_.marked, [&](auto const& m) { return m.first == r.id.slot; });
  }

  int refillable(request_record const& r) const {
    bool const rested = step_ - r.revoked_at > defaults::refill_pause;
    return is_long(r) && rested ? std::max(0, std::min(static_cast<int>(r.pages.size()) - r.framed, tail_first(r))) : 0;
  }
  bool may_go(request_record const& r, int p) const {
    return book_.has_frame(r, p) && book_.page(r, p).mapped && book_.state(r, p) == frame_state::lent;
  }
  bool may_come(request_record const& r, int p) const { return !book_.has_frame(r, p) && book_.page(r, p).backed == P::page_tokens; }

  /// Pages of r in the order in which they would go or come.
  void candidates(request_record const& r, bool going, std::vector<int>& out) const {
    out.clear();
    int const end = tail_first(r);
    for (int i = 0; i < end; ++i) {
      int const p = going ? i : end - 1 - i;
      if (going ? may_go(r, p) : may_come(r, p)) out.push_back(p);
    }
    std::stable_sort(out.begin(), out.end(), [&](int a, int b) {
      std::uint32_t const ua = r.uses[static_cast<std::size_t>(a)];
      std::uint32_t const ub = r.uses[static_cast<std::size_t>(b)];
      return going ? ua < ub : ua > ub;
    });
  }
  /// Calls f for the first n pages of r in that order.
  template <class F>
  void pick(request_record& r, int n, bool going, F f) {
    if constexpr (keep::wants_uses) {
      std::vector<int> order;
      candidates(r, going, order);
      for (int i = 0; i < std::min(n, static_cast<int>(order.size())); ++i) f(order[static_cast<std::size_t>(i)]);
    } else {
      int const end = tail_first(r);
      for (int i = 0; i < end && n > 0; ++i) {
        int const p = going ? i : end - 1 - i;
        if (going ? !may_go(r, p) : !may_come(r, p)) continue;
        f(p);
        --n;
      }
    }
  }

  template <class Limit>
  void collect_holders(Limit limit, bool going) {
    holders_.clear();
    holding_.clear();
    uses_.clear();
    for (int slot = 0; slot < sizes_.requests; ++slot) {
      request_record& r = book_.at(slot);
      if (r.phase != phase::running) continue;
      int n = limit(r);
      if (n <= 0) continue;
      if constexpr (keep::wants_uses) {
        std::vector<int> order;
        candidates(r, going, order);
        n = std::min(n, static_cast<int>(order.size()));
        if (n == 0) continue;
        auto& uses = uses_.emplace_back();
        for (int p : order) uses.push_back(r.uses[static_cast<std::size_t>(p)]);
      }
      holding_.push_back(&r);
      holders_.push_back({r.admitted, static_cast<int>(r.pages.size()), n, {}});
    }
    for (std::size_t i = 0; i < uses_.size(); ++i) holders_[i].uses = uses_[i];
  }

  // ---- leaving ---------------------------------------------------------------------------------------------------------------------

  /// Gives back every frame but those of chosen pages that wait for their backup.
  void leave(request_record& r) {
    std::erase_if(demand_, [&](waiting const& w) {
      if (w.slot != r.id.slot) return false;
      outstanding_ -= w.frames;
      return true;
    });
    promised_frames_ -= r.reserve;
    r.reserve = 0;
    r.pinned = false;
    for (auto* list : {&r.idle, &r.hot}) {
      for (frame_id f : *list) book_.retire(f);
      list->clear();
    }
    for (int p = 0; p < static_cast<int>(r.pages.size()); ++p) {
      if (book_.has_frame(r, p) && !(book_.is_marked(r, p) && !book_.complete(r, p))) book_.drop(r, p);
    }
  }

  void shed_last(request_record& r) {
    int const p = static_cast<int>(r.pages.size()) - 1;
    if (book_.has_frame(r, p)) book_.drop(r, p);
    book_.hosts.release(book_.page(r, p).at.host, std::max(book_.main, book_.page(r, p).busy));
    --r.missing;
    r.pages.pop_back();
    r.uses.pop_back();
    r.run = r.pages.empty() ? host_page_id::none : r.pages.back().at.host;
  }

  allocator_sizes sizes_;
  ledger book_;
  std::vector<waiting> demand_;
  std::map<hold_id, reservation> holds_;
  std::map<take_id, taking> takes_;
  int outstanding_ = 0;
  int promised_frames_ = 0;
  int promised_hosts_ = 0;
  int held_frames_ = 0;
  int held_hosts_ = 0;
  std::int64_t admissions_ = 0;
  std::uint64_t holds_given_ = 0;
  std::uint64_t takes_given_ = 0;
  long long step_ = 0;
  bool step_open_ = false;
  std::vector<holder> holders_;
  std::vector<request_record*> holding_;
  std::vector<std::vector<std::uint32_t>> uses_;
  std::vector<int> quota_;
};

}  // namespace ebb

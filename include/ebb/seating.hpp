#pragma once
/// Which page sits in which frame: seats, loans, revocation and refill.

#include <ebb/page_choice.hpp>

#include <optional>

namespace ebb {

/// Moves pages in and out of frames, by the keep order where not all can stay. Part of `loan_allocator`, which decides
/// who may have frames. Host only, one control thread. Cost: grows with the pages moved, and with the requests where
/// loans are revoked or refilled.
template <policy P>
class seating {
 public:
  explicit seating(allocator_sizes const& sizes)
      : sizes_{sizes},
        book_{sizes.frames, sizes.host_pages, sizes.requests, sizes.run, P::page_tokens},
        choice_{sizes_, book_} {}
  seating(seating const&) = delete;
  seating& operator=(seating const&) = delete;

  ledger& book() { return book_; }
  ledger const& book() const { return book_; }
  allocator_sizes const& sizes() const { return sizes_; }
  page_choice<P> const& choice() const { return choice_; }

  /// Frames that may become loans: usable ones that nobody asked for or holds.
  int spare() const { return P::tiers::lends ? std::max(0, book_.frames.usable() - spoken_for_) : 0; }
  /// Frames that pending calls wait for or that holds keep: not spare.
  void speak_for(int frames) { spoken_for_ = frames; }

  /// Inside an open step no page leaves its frame.
  void open_step() { step_open_ = true; }
  void close_step() { step_open_ = false; }
  bool step_open() const { return step_open_; }
  void count_step() { ++step_; }

  /// Frames it has and may not lose.
  int required(request_record const& r) const {
    int n = static_cast<int>(r.hot.size() + r.idle.size());
    for (int p = 0; p < static_cast<int>(r.pages.size()); ++p)
      n += book_.has_frame(r, p) && book_.state(r, p) == frame_state::required;
    return n;
  }
  /// It keeps no more than it was promised.
  void trim(request_record& r) {
    if (r.idle.empty()) return;
    for (int surplus = required(r) - r.reserve; surplus > 0 && !r.idle.empty(); --surplus) {
      book_.retire(r.idle.back());
      r.idle.pop_back();
    }
  }
  /// States of its pages from `first` on, after the tail moved or the request's mode changed.
  void refresh(request_record& r, int first) {
    for (int p = first; p < static_cast<int>(r.pages.size()); ++p) {
      if (!book_.has_frame(r, p) || choice_.arriving(r, p)) continue;
      frame_state const s = book_.state(r, p);
      bool const needed = choice_.is_required(r, p);
      if (s == frame_state::required || s == frame_state::lent)
        book_.set_state(r, p, needed ? frame_state::required : frame_state::lent);
      if (!needed || r.phase == phase::preempted || !book_.is_marked(r, p)) continue;
      book_.set_state(r, p, frame_state::required);
      std::erase(book_.marked, std::pair{r.id.slot, p});
    }
    trim(r);
  }

  /// Makes the request ready to write tokens up to `upper`: every page it writes is in a frame of its own.
  void grow(request_record& r, std::int64_t upper) {
    int const pages = book_.pages_of(upper);
    int const first_written = static_cast<int>(std::min(r.tokens, r.drafted) / P::page_tokens);
    while (static_cast<int>(r.pages.size()) > std::max(pages, book_.pages_of(r.tokens))) shed_last(r);
    int const before = choice_.tail_first(r);
    while (static_cast<int>(r.pages.size()) < pages) book_.append(r);
    refresh(r, before);
    if (r.missing > 0) bring_back(r, first_written);
    for (int p = first_written; p < pages; ++p) {
      if (!book_.has_frame(r, p)) seat(r, p);
      arrive(r, p);
    }
    trim(r);
  }

  /// The page's rows are readable by the main stream from now on.
  void arrive(request_record& r, int p) {
    if (!book_.has_frame(r, p) || book_.page(r, p).mapped) return;
    book_.wait_main(book_.page(r, p).busy);
    if (book_.state(r, p) == frame_state::filling)
      book_.set_state(r, p, choice_.is_required(r, p) ? frame_state::required : frame_state::lent);
    book_.land(r, p);
  }

  /// Hands pages back within `budget` pages, from the top of the keep order.
  void refill(int budget) {
    int n = std::min({budget, spare(), static_cast<int>(book_.frames.count(frame_state::free))});
    if (n <= 0) return;
    choice_.choose(n, false, step_);
    for (std::size_t i = 0; i < choice_.size(); ++i) {
      request_record& r = choice_.request(i);
      for (int p : choice_.chosen(i)) {
        book_.place(r, p, *book_.frames.take_free(frame_state::filling, r.id.slot, p));
        if (book_.copy(copy_kind::refill, r, p, 0, P::page_tokens)) continue;
        --book_.counts.lent;
        book_.frames.retire(book_.lift(r, p), ticket::none, true);
      }
    }
  }

  /// Uses the frames that the request has idle: all its pages if they suffice, else hot rows and the pages that an
  /// import will write, which may also sit in spare frames, as loans.
  void settle_in(request_record& r, bool reserving = false) {
    int pages = static_cast<int>(r.pages.size());
    while (!reserving && pages > 0 && choice_.arriving(r, pages - 1)) --pages;
    int const first_new = static_cast<int>((r.tokens + P::page_tokens - 1) / P::page_tokens);
    int absent = 0;
    for (int p = 0; p < pages; ++p) absent += !book_.has_frame(r, p);
    int const room = static_cast<int>(r.idle.size()) + (pages > first_new ? spare() : 0);
    if (absent > room && choice_.is_long(r) && !r.pinned && r.hot.empty() &&
        static_cast<int>(r.idle.size()) >= sizes_.hot)
      make_hot(r, false);
    int const end = r.hot.empty() || r.pinned ? 0 : first_new;
    for (int p = pages; p-- > end;) {
      if (book_.has_frame(r, p)) continue;
      std::optional<frame_id> f;
      if (!r.idle.empty()) {
        f = from_idle(r, p);
      } else if (p >= first_new && spare() > 0) {
        bool const loan = choice_.is_long(r) && !r.pinned;
        f = book_.frames.take_free(loan ? frame_state::lent : frame_state::required, r.id.slot, p);
      }
      if (!f) break;
      book_.place(r, p, *f);
      if (book_.copy(copy_kind::restore, r, p, 0, book_.tokens_in(r, p))) continue;
      book_.retire(book_.lift(r, p));
      break;
    }
  }

  /// Chooses up to n lent pages from the bottom of the keep order; how many.
  int revoke(int n) {
    choice_.choose(n, true, step_);
    int chosen = 0;
    for (std::size_t i = 0; i < choice_.size(); ++i) {
      request_record& r = choice_.request(i);
      if (!choice_.chosen(i).empty()) r.revoked_at = step_;
      for (int p : choice_.chosen(i)) {
        ++chosen;
        book_.page(r, p).mapped ? book_.mark(r, p) : drop_unread(r, p);
      }
    }
    for (int slot = 0; slot < sizes_.requests && chosen < n; ++slot) {
      request_record& r = book_.at(slot);
      for (int p = 0; p < static_cast<int>(r.pages.size()) && chosen < n; ++p) {
        if (!book_.has_frame(r, p) || book_.state(r, p) != frame_state::filling) continue;
        r.revoked_at = step_;
        drop_unread(r, p);
        ++chosen;
      }
    }
    if (!step_open_) settle_marked();
    return chosen;
  }

  /// Arriving pages that sit in loans arrive in their host pages alone.
  void to_host_alone(request_record& r) {
    for (int p = 0; p < static_cast<int>(r.pages.size()); ++p)
      if (choice_.arriving(r, p) && choice_.may_go(r, p)) drop_unread(r, p);
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
      if (slot == r.id.slot && p < static_cast<int>(r.pages.size()) && book_.is_marked(r, p))
        book_.set_state(r, p, frame_state::required);
    }
    std::erase_if(book_.marked, [&](auto const& m) { return m.first == r.id.slot; });
  }

  /// The page leaves its frame; where it was chosen to, that is done.
  void drop(request_record& r, int p) {
    if (book_.is_marked(r, p)) std::erase(book_.marked, std::pair{r.id.slot, p});
    book_.drop(r, p);
  }
  void shed_last(request_record& r) {
    int const p = static_cast<int>(r.pages.size()) - 1;
    if (book_.has_frame(r, p)) drop(r, p);
    book_.hosts.release(book_.page(r, p).at.host, std::max(book_.main, book_.page(r, p).busy));
    --r.missing;
    r.pages.pop_back();
    r.uses.pop_back();
    r.run = r.pages.empty() ? host_page_id::none : r.pages.back().at.host;
  }

 private:
  /// Takes back a loan that the map does not name yet: what it is being filled with is, or will be, in its host page.
  void drop_unread(request_record& r, int p) {
    ++book_.counts.revoked;
    book_.outdate(book_.page(r, p));
    book_.drop(r, p);
  }
  frame_id from_idle(request_record& r, int p) {
    frame_id const f = r.idle.back();
    r.idle.pop_back();
    bool const needed = choice_.is_required(r, p) || choice_.arriving(r, p);
    book_.frames.set(f, needed ? frame_state::required : frame_state::lent, r.id.slot, p);
    return f;
  }
  /// A whole request that lacks pages gets them, or hot rows instead.
  void bring_back(request_record& r, int end) {
    if (!r.hot.empty() && !r.pinned) return;
    for (int p = 0; p < end; ++p) {
      if (book_.has_frame(r, p)) continue;
      if (choice_.is_long(r) && !r.pinned) {
        if (!make_hot(r, true)) throw_no_frame(r, p);  // without hot rows its missing pages cannot be selected
        return;
      }
      seat(r, p);
    }
    for (int p = 0; p < end; ++p) arrive(r, p);
  }

  /// Finds a frame for page p: idle, spare, or due to the request; else its own least wanted page makes way.
  void seat(request_record& r, int p) {
    frame_state const use = choice_.is_required(r, p) ? frame_state::required : frame_state::lent;
    frame_id f;
    if (!r.idle.empty()) {
      f = from_idle(r, p);
    } else if (book_.held(r) < r.reserve || spare() > 0) {
      f = obtain(r, p, use);
    } else {
      if (choice_.is_long(r) && r.hot.empty() && !make_hot(r, true)) throw_no_frame(r, p);
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
    std::vector<int> victim;
    choice_.candidates(r, 1, true, victim);
    if (victim.empty() || !book_.back_up_now(r, victim.front())) return obtain(r, p, use);
    book_.wait_main(book_.page(r, victim.front()).busy);
    frame_id const f = book_.lift(r, victim.front());
    P::tiers::lends ? ++book_.counts.revoked : --book_.counts.lent;  // it only left the tail
    book_.frames.set(f, use, r.id.slot, p);
    return f;
  }

  /// A frame for the main stream's next work, whatever it takes: free, revoked, or waited for.
  frame_id obtain(request_record& r, int p, frame_state use) {
    if (auto f = book_.frames.take(use, r.id.slot, p)) return *f;
    if (book_.marked.empty()) revoke(1);
    do {  // a victim whose backup is refused, or that keeps its frame for hot rows, gives none: then another one is chosen
      if (auto f = take_waiting(r, p, use)) return *f;
      auto const chosen = book_.marked;
      for (auto [slot, page] : chosen) {
        request_record& victim = book_.at(slot);
        if (page >= static_cast<int>(victim.pages.size()) || !book_.is_marked(victim, page) ||
            !book_.back_up_now(victim, page))
          continue;
        if (wants_hot(victim) && !make_hot(victim, true)) continue;
        settle_marked();
        if (auto f = take_waiting(r, p, use)) return *f;
      }
    } while (revoke(1) > 0);
    throw_no_frame(r, p);
  }
  /// A frame on its way back; the main stream waits for the work that still uses it.
  std::optional<frame_id> take_waiting(request_record& r, int p, frame_state use) {
    if (auto f = book_.frames.take(use, r.id.slot, p)) return f;
    auto const f = book_.frames.take_cooling(use, r.id.slot, p);
    if (!f) return f;
    book_.wait_main(book_.frames[*f].after);
    ++book_.counts.forced_waits;
    return f;
  }
  [[noreturn]] void throw_no_frame(request_record const& r, int p) const {
    throw frames_refused((p < 0 ? std::string{"a hot-row frame"} : "page " + std::to_string(p)) +
                         " of the request in slot " + std::to_string(r.id.slot) +
                         " cannot be had: the copies that would free or fill a frame were refused");
  }

  /// It is whole and must get hot rows before it loses a page. One that lacks full pages already gets them when it next
  /// grows.
  bool wants_hot(request_record const& r) const {
    if (r.phase == phase::preempted || !choice_.is_long(r) || r.pinned || !r.hot.empty()) return false;
    for (int p = 0; p < static_cast<int>(r.tokens / P::page_tokens); ++p)
      if (!book_.has_frame(r, p)) return false;
    return true;
  }

  /// The request's idle frames and oldest pages become its hot rows. Not `forced`: only where their host copies are
  /// complete, which are asked for otherwise. False where it could not be done.
  bool make_hot(request_record& r, bool forced) {
    int const wanted = sizes_.hot - static_cast<int>(r.idle.size());
    std::vector<int> oldest;
    bool backed = true;
    for (int p = 0; p < choice_.tail_first(r) && static_cast<int>(oldest.size()) < wanted; ++p) {
      if (!book_.has_frame(r, p) || choice_.arriving(r, p) || !(forced || book_.page(r, p).mapped)) continue;
      oldest.push_back(p);
      backed &= forced ? book_.back_up_now(r, p) : book_.back_up(r, p) && book_.complete(r, p);
    }
    if (!backed || (!forced && static_cast<int>(oldest.size()) < wanted)) return false;
    for (int p : oldest) {
      if (!book_.page(r, p).mapped) {  // still being restored
        book_.wait_main(book_.page(r, p).busy);
        book_.outdate(book_.page(r, p));
      }
      frame_id const f = book_.lift(r, p);
      book_.frames.set(f, frame_state::required, r.id.slot, -1);
      r.idle.push_back(f);
    }
    while (static_cast<int>(r.idle.size()) < sizes_.hot) r.idle.push_back(obtain(r, -1, frame_state::required));
    r.hot.assign(r.idle.end() - sizes_.hot, r.idle.end());
    r.idle.resize(r.idle.size() - r.hot.size());
    book_.out.hot.push_back(r.id.slot);
    book_.out.clear.push_back(r.id.slot);
    refresh(r, 0);
    return true;
  }

  allocator_sizes sizes_;
  ledger book_;
  page_choice<P> choice_;
  int spoken_for_ = 0;
  long long step_ = 0;
  bool step_open_ = false;
};

}  // namespace ebb

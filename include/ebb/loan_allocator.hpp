#pragma once
/// Decides who may run and which history sits in spare frames: admit, lend, revoke, refill, finish. It never touches
/// bytes.

#include <ebb/orders/backup.hpp>
#include <ebb/promises.hpp>
#include <ebb/seating.hpp>

#include <map>
#include <optional>
#include <vector>

namespace ebb {

enum class take_id : std::uint64_t { none = 0 };

/// The revocable-loan allocator. Every call is decided at once and deterministically on the ledger; what streams must
/// do for it is left in `book().out`. Calls between steps may revoke at once; calls inside an open step take free
/// frames only and leave the rest to begin_step. Concurrency: one control thread. Cost: grows with the pages moved, and
/// with the requests where loans are revoked or refilled.
template <policy P>
class loan_allocator {
 public:
  explicit loan_allocator(allocator_sizes const& sizes)
      : seats_{sizes}, promises_{{sizes.frames, sizes.host_pages, sizes.rings}} {}

  ledger& book() { return seats_.book(); }
  ledger const& book() const { return seats_.book(); }
  allocator_sizes const& sizes() const { return seats_.sizes(); }
  int tail_first(request_record const& r) const { return seats_.choice().tail_first(r); }

  /// Frames that a request of up to `tokens_max` tokens cannot run without.
  int required(std::int64_t tokens_max) const {
    return required_frames(tokens_max, P::page_tokens, sizes().tail, sizes().hot, P::tiers::caches);
  }
  /// What is promised to live requests, holds and the engine.
  promises const& promised() const { return promises_; }
  /// Frames that pending calls still wait for.
  int outstanding() const { return outstanding_; }

  // ---- admission

  /// Admits a request that may grow to `tokens_max` tokens and starts with `tokens`. See `residency::admit`.
  outcome<request_id> admit(std::int64_t tokens_max, std::int64_t tokens, hold_id hold) {
    require(tokens_max > 0, "admit: tokens_max", tokens_max, "1 to max_tokens");
    require(tokens >= 0 && tokens <= tokens_max, "admit: tokens", tokens, "0 to tokens_max");
    if (auto no = lacking(tokens_max, hold)) return refuse(*no);
    reservation const need = need_of(tokens_max);
    int slot = 0;
    while (slot < sizes().requests && book().at(slot).phase != phase::vacant) ++slot;
    if (slot == sizes().requests) return refuse({pool::requests, 1, 0, 0, true});
    release(hold);
    promises_.give(need);
    request_record& r = book().at(slot);
    std::uint32_t const incarnation = r.id.incarnation + 1;
    r = {};
    r.id = {slot, incarnation};
    r.phase = phase::waiting;
    r.admitted = ++admissions_;
    r.tokens_max = tokens_max;
    r.reserve = need.frames;
    r.rings = need.rings;
    ++book().counts.admitted;
    start(r, std::min(need.frames, book().pages_of(tokens)));
    return r.id;
  }

  /// See `residency::hold`.
  outcome<hold_id> hold(std::int64_t tokens_max) {
    require(tokens_max > 0, "hold: tokens_max", tokens_max, "1 to max_tokens");
    if (auto no = impossible(tokens_max)) return refuse(*no);
    hold_id const id = promises_.hold(need_of(tokens_max));
    speak();
    return id;
  }
  void release(hold_id id) {
    if (id == hold_id::none) return;
    promises_.release(id);
    speak();
  }

  /// Gives frames to the engine; `collect` hands them over once nobody else works on them.
  outcome<take_id> take(int n) {
    require(n > 0 && n <= sizes().frames, "take: frames", n, "1 to " + std::to_string(sizes().frames));
    if (auto no = lacking(reservation{n, 0}, hold_id::none)) return refuse(*no);
    take_id const id{++takes_given_};
    promises_.give({n, 0});
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
      if (book().frames[f].after > book().done) return std::nullopt;
    }
    std::vector<frame_id> frames = std::move(t.frames);
    for (frame_id f : frames) book().frames.set(f, frame_state::taken, -1, frame_pool::handed_over);
    takes_.erase(it);
    return frames;
  }
  /// Refuses before anything changes; a frame named twice is as wrong as one that was not collected.
  void require_collected(std::span<frame_id const> frames, char const* what) {
    ++mentions_;
    named_.resize(static_cast<std::size_t>(sizes().frames));
    for (frame_id f : frames) {
      bool const known = index(f) >= 0 && index(f) < sizes().frames;
      require(known && std::exchange(named_[static_cast<std::size_t>(index(f))], mentions_) != mentions_ &&
                  book().frames[f].page == frame_pool::handed_over,
              what, index(f), "a frame that the engine collected and has not given back, named once");
    }
  }
  /// `written`: the end of the engine's work on them. Requires: require_collected.
  void give(std::span<frame_id const> frames, ticket written) {
    book().wait_main(written);
    for (frame_id f : frames) book().frames.retire(f, std::max(book().main, written), true);
    promises_.take_back({static_cast<int>(frames.size()), 0});
    serve();
  }

  // ---- history that arrives

  /// Makes room for history up to `tokens`: host pages, frames the request has idle, and spare frames, newest pages
  /// first.
  void reserve(request_record& r, std::int64_t tokens) {
    drop_uncommitted(r);
    r.reserved = tokens;
    while (static_cast<int>(r.pages.size()) < book().pages_of(tokens)) book().append(r);
    seats_.refresh(r, 0);
    seats_.settle_in(r, true);
    for (int p = static_cast<int>(r.tokens / P::page_tokens); p < static_cast<int>(r.pages.size()); ++p) {
      page_record& page = book().page(r, p);
      bool const sealed = P::backup::when_sealed && std::int64_t{p + 1} * P::page_tokens <= tokens &&
                          page.backed == book().tokens_in(r, p);
      page.to_host = !book().has_frame(r, p) || book().state(r, p) == frame_state::lent || sealed;
    }
  }

  /// The engine writes the reserved pages itself: it gets no address in a frame that may be taken back.
  void expose(request_record& r) {
    seats_.to_host_alone(r);
    serve();
  }
  /// The import is over: its pages are like any others.
  void published(request_record& r) {
    drop_uncommitted(r);
    serve();
  }

  /// Turns taken frames, written by the engine, into pages behind the committed ones. Requires: require_collected.
  void adopt(request_record& r, std::span<frame_id const> frames, std::int64_t tokens, ticket written) {
    drop_uncommitted(r);
    book().wait_main(written);
    for (frame_id f : frames) {
      book().append(r);
      int const p = static_cast<int>(r.pages.size()) - 1;
      book().frames.set(f, frame_state::required, r.id.slot, p);
      book().place(r, p, f);
      book().land(r, p);
      book().touch(book().page(r, p), written);
      ++book().counts.adopted;
    }
    promises_.take_back({static_cast<int>(frames.size()), 0});
    set_tokens(r, tokens);
    seats_.refresh(r, 0);
    serve();
  }

  /// The committed length changes otherwise than by a step; the drafter's own goes with it.
  void set_tokens(request_record& r, std::int64_t tokens) {
    r.tokens = tokens;
    r.reserved = tokens;
    r.drafted = tokens;
    book().out.lengths.push_back(r.id.slot);
  }

  // ---- steps

  /// First part of begin_step: copies that are done count, frames whose readers are done are free, chosen pages leave.
  void settle() {
    seats_.count_step();
    for (int slot = 0; slot < sizes().requests; ++slot) {
      if (book().at(slot).pinned) complete(book().at(slot));
    }
    book().frames.settle(book().done);
    seats_.settle_marked();
  }
  /// Makes the request ready to write tokens up to `upper`: every page it writes is in a frame of its own.
  void grow(request_record& r, std::int64_t upper) { seats_.grow(r, upper); }
  /// Serves waiting calls in order, and revokes exactly what is still short, counting what is on its way back.
  void serve() {
    for (bool again = true; again;) {
      for (auto it = demand_.begin(); it != demand_.end();) it = give_to(*it) ? demand_.erase(it) : it + 1;
      speak();
      int const short_of = outstanding_ - book().frames.returning() - static_cast<int>(book().marked.size());
      again = short_of > 0 && seats_.revoke(short_of) > 0 && !seats_.step_open() && book().frames.usable() > 0;
    }
  }
  /// Hands back at most `pages` pages, from the top of the keep order.
  void refill(int pages) { seats_.refill(pages); }
  /// Inside an open step no page leaves its frame.
  void open_step() { seats_.open_step(); }
  void close_step() { seats_.close_step(); }

  /// Asks for the host copies of what the last step committed.
  void back_up(request_record& r) {
    if constexpr (!P::backup::when_sealed) return;
    // A page is sealed once the drafter, too, has written its rows.
    int const end = P::backup::after_each_step ? book().pages_of(r.tokens)
                                               : static_cast<int>(std::min(r.tokens, r.drafted) / P::page_tokens);
    bool contiguous = true;
    for (int p = r.backup_from; p < end; ++p) {
      if (book().has_frame(r, p) && book().page(r, p).mapped) contiguous &= book().back_up(r, p);
      if (contiguous && book().page(r, p).backing >= P::page_tokens) r.backup_from = p + 1;
      contiguous &= r.backup_from > p;
    }
  }

  /// The drafter wrote rows of [from, to), which host copies made before do not have.
  void drafted(request_record& r, std::int64_t from, std::int64_t to) {
    for (int p = static_cast<int>(from / P::page_tokens); p < book().pages_of(to); ++p) {
      int const kept = static_cast<int>(std::max<std::int64_t>(0, from - std::int64_t{p} * P::page_tokens));
      page_record& page = book().page(r, p);
      if (std::max(page.backed, page.backing) <= kept) continue;
      page.backed = std::min(page.backed, kept);
      page.backing = page.backed;
      book().outdate(page);
    }
    r.backup_from = std::min(r.backup_from, static_cast<int>(from / P::page_tokens));
  }

  // ---- control

  void finish(request_record& r) {
    seats_.unmark(r);
    leave(r);
    for (page_record& p : r.pages) book().hosts.release(p.at.host, std::max(book().main, p.busy));
    int const hosts = need_of(r.tokens_max).hosts;
    promises_.take_back({0, hosts});
    request_id const id = r.id;
    r = {};
    r.id = id;
    ++book().counts.finished;
    serve();
  }

  /// Gives up every frame; pages without a complete host copy stay where they are until it is made.
  void preempt(request_record& r) {
    for (int p = 0; p < static_cast<int>(r.pages.size()); ++p) {
      if (!book().has_frame(r, p) || !book().page(r, p).mapped || book().complete(r, p)) continue;
      if (!book().is_marked(r, p)) book().mark(r, p);
      book().back_up(r, p);
    }
    leave(r);
    r.phase = phase::preempted;
    ++book().counts.preempted;
    serve();
  }

  outcome<request_id> resume(request_record& r, std::int64_t tokens, hold_id hold) {
    reservation need = need_of(r.tokens_max);
    need.hosts = 0;
    if (auto no = lacking(need, hold)) return refuse(*no);
    release(hold);
    promises_.give(need);
    r.phase = phase::waiting;
    r.reserve = need.frames;
    r.rings = need.rings;
    seats_.unmark(r);
    seats_.refresh(r, 0);
    ++book().counts.resumed;
    start(r, std::min(need.frames, book().pages_of(tokens)) - r.framed);
    return r.id;
  }

  /// Keeps the first `tokens` tokens. What was cached, copied or being copied of the rest no longer counts.
  void truncate(request_record& r, std::int64_t tokens) {
    while (static_cast<int>(r.pages.size()) > book().pages_of(tokens)) seats_.shed_last(r);
    int const partial = static_cast<int>(tokens % P::page_tokens);
    std::int64_t const drafted = std::min(r.drafted, tokens);
    set_tokens(r, tokens);
    r.drafted = drafted;
    if (partial != 0) {
      page_record& last = r.pages.back();
      book().wait_main(last.busy);
      seats_.arrive(r, static_cast<int>(r.pages.size()) - 1);
      last.backed = std::min(last.backed, partial);
      last.backing = last.backed;
      book().outdate(last);
    }
    r.backup_from = std::min(r.backup_from, static_cast<int>(tokens / P::page_tokens));
    book().out.clear.push_back(r.id.slot);
    ++book().counts.truncated;
    seats_.refresh(r, 0);
    serve();
  }

  outcome<request_id> require_whole(request_record& r) {
    int const extra = static_cast<int>(r.hot.size()) + book().pages_of(r.tokens_max) - r.reserve;
    if (extra > 0) {
      if (auto no = lacking(reservation{extra, 0}, hold_id::none)) return refuse(*no);
      r.reserve += extra;
      promises_.give({extra, 0});
    }
    r.pinned = true;
    seats_.unmark(r);
    seats_.refresh(r, 0);
    acquire(r, static_cast<int>(r.pages.size()) - r.framed - static_cast<int>(r.idle.size()));
    return r.id;
  }
  void release_whole(request_record& r) {
    r.pinned = false;
    int const reserve = std::max(required(r.tokens_max), r.hot.empty() ? 0 : sizes().tail + sizes().hot);
    promises_.take_back({r.reserve - reserve, 0});
    r.reserve = reserve;
    seats_.refresh(r, 0);
    serve();
  }

  void set_uses(request_record& r, std::span<std::uint32_t const> uses) {
    std::copy_n(uses.begin(), std::min(uses.size(), r.uses.size()), r.uses.begin());
  }

  /// True once the frames that its admission or resumption asked for are there.
  bool ready(request_record const& r) const { return r.phase == phase::running; }

 private:
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

  reservation need_of(std::int64_t tokens_max) const {
    return {required(tokens_max), book().pages_of(tokens_max), P::draft.layers > 0 ? 1 : 0};
  }

  /// Pages behind the committed ones go; the last committed one is in the tail again.
  void drop_uncommitted(request_record& r) {
    while (static_cast<int>(r.pages.size()) > book().pages_of(r.tokens)) seats_.shed_last(r);
    seats_.refresh(r, 0);
  }
  refused refuse(shortage const& s) {
    ++book().counts.refused;
    return refused{s};
  }
  std::optional<shortage> impossible(std::int64_t tokens_max) const {
    if (tokens_max > sizes().max_tokens) return shortage{pool::tokens, tokens_max, sizes().max_tokens, 0, false};
    return promises_.impossible(need_of(tokens_max));
  }
  std::optional<shortage> lacking(reservation need, hold_id own) const {
    if (auto no = promises_.impossible(need)) return no;
    return promises_.lacking(need, own,
                             book().frames.count(frame_state::lent) + book().frames.count(frame_state::filling));
  }
  std::optional<shortage> lacking(std::int64_t tokens_max, hold_id own) const {
    if (auto no = impossible(tokens_max)) return no;
    return lacking(need_of(tokens_max), own);
  }
  void speak() {
    seats_.speak_for(static_cast<int>(std::min<std::int64_t>(sizes().frames, outstanding_ + promises_.held_frames())));
  }

  // ---- who gets frames

  /// A request that starts on a slot's tables, admitted or resumed.
  void start(request_record& r, int frames) {
    book().out.clear.push_back(r.id.slot);
    book().out.lengths.push_back(r.id.slot);
    acquire(r, frames);
  }
  /// Gets n frames for the request, which waits until they are there.
  void acquire(request_record& r, int n) {
    if (n > 0) {
      demand_.push_back({r.id.slot, take_id::none, n});
      outstanding_ += n;
    } else {
      r.phase = phase::running;
      seats_.settle_in(r);
    }
    serve();
    if (r.phase == phase::waiting) ++book().counts.waited;
  }

  /// What a whole request lacks, where a copy was refused, is asked for again; what arrived as a loan is one no more.
  void complete(request_record& r) {
    if (r.phase != phase::running || r.reserved > r.tokens) return;
    seats_.refresh(r, 0);
    int const absent = static_cast<int>(r.pages.size()) - r.framed;
    if (absent == 0 || std::any_of(demand_.begin(), demand_.end(), [&](auto const& w) { return w.slot == r.id.slot; }))
      return;
    if (!r.idle.empty()) seats_.settle_in(r);
    int const wanted = static_cast<int>(r.pages.size()) - r.framed - static_cast<int>(r.idle.size());
    if (wanted <= 0) return;
    demand_.push_back({r.id.slot, take_id::none, wanted});
    outstanding_ += wanted;
  }
  /// True when all its frames are there.
  bool give_to(waiting& w) {
    frame_state const use = w.slot < 0 ? frame_state::taken : frame_state::required;
    if (w.slot >= 0) {  // its pages may have found frames meanwhile
      request_record const& r = book().at(w.slot);
      int const wanted = std::clamp(r.reserve - seats_.required(r), 0, w.frames);
      outstanding_ -= w.frames - wanted;
      w.frames = wanted;
    }
    while (w.frames > 0) {
      auto const f = book().frames.take(use, w.slot, -1);
      if (!f) return false;
      (w.slot < 0 ? takes_[w.take].frames : book().at(w.slot).idle).push_back(*f);
      --w.frames;
      --outstanding_;
    }
    speak();
    if (w.slot >= 0) {
      book().at(w.slot).phase = phase::running;
      seats_.settle_in(book().at(w.slot));
    }
    return true;
  }

  // ---- leaving

  /// Gives back every frame but those of chosen pages that wait for their backup.
  void leave(request_record& r) {
    std::erase_if(demand_, [&](waiting const& w) {
      if (w.slot != r.id.slot) return false;
      outstanding_ -= w.frames;
      return true;
    });
    promises_.take_back({r.reserve, 0, r.rings});
    r.reserve = 0;
    r.rings = 0;
    r.pinned = false;
    for (auto* list : {&r.idle, &r.hot}) {
      for (frame_id f : *list) book().retire(f);
      list->clear();
    }
    for (int p = 0; p < static_cast<int>(r.pages.size()); ++p) {
      if (book().has_frame(r, p) && !(book().is_marked(r, p) && !book().complete(r, p))) seats_.drop(r, p);
    }
  }

  seating<P> seats_;
  promises promises_;
  std::vector<waiting> demand_;
  std::map<take_id, taking> takes_;
  int outstanding_ = 0;
  std::int64_t admissions_ = 0;
  std::uint64_t takes_given_ = 0;
  std::vector<std::uint64_t> named_;  ///< the call that last named each frame
  std::uint64_t mentions_ = 0;
};

}  // namespace ebb

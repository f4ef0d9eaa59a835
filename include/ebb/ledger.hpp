#pragma once
/// What every request holds, and the primitive moves that keep frames, host pages and map in step.

#include <ebb/frame_pool.hpp>
#include <ebb/host_page_pool.hpp>
#include <ebb/rows.hpp>
#include <ebb/space.hpp>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

namespace ebb {

/// A page of a request's history.
struct page_record {
  map_entry at;  ///< where it is; the frame may still be filling
  bool mapped =
      false;       ///< the map names the frame: readable by everything the main stream gets from the next begin_step on
  int backed = 0;  ///< tokens of the page whose host copy is complete
  int backing = 0;             ///< … and will be once `busy` is done
  ticket busy = ticket::none;  ///< newest side-stream copy that reads or writes its frame or host page
  bool to_host = false;        ///< an import under way writes its host page, besides the frame it may have
  std::uint32_t epoch = 0;     ///< never used twice; changes when the page is rewritten: copies of another do not count
};

enum class phase : std::uint8_t { vacant, waiting, running, preempted };

struct request_record {
  request_id id;
  ebb::phase phase = phase::vacant;
  std::int64_t admitted = 0;  ///< ordinal of the admission
  std::int64_t tokens_max = 0;
  std::int64_t tokens = 0;      ///< committed
  int pending = 0;              ///< tokens that steps may have committed besides, as yet unknown here
  std::int64_t reserved = 0;    ///< tokens up to which an import has room, ≥ tokens
  std::int64_t drafted = 0;     ///< committed length of a drafter that reads full history, ≤ tokens
  std::int64_t draft_from = 0;  ///< first token whose drafter rows were written in this incarnation, or restored
  int reserve = 0;              ///< frames it may require
  int rings = 0;                ///< draft rings it is promised
  int ring = -1;                ///< the one it has
  std::vector<page_record> pages;
  std::vector<frame_id> hot;   ///< frames of its hot rows; empty while it is whole
  std::vector<frame_id> idle;  ///< required frames it got and does not use yet
  std::vector<std::uint32_t> uses;
  int lent = 0;         ///< pages in lent frames
  int framed = 0;       ///< pages that have a frame, readable or filling
  int missing = 0;      ///< pages that the map does not place in a frame
  int backup_from = 0;  ///< pages before it have, or are getting, their host copy
  long long revoked_at = -1'000'000;
  bool pinned = false;  ///< require_whole
  host_page_id run = host_page_id::none;

  /// Tokens up to which a step of `queries` queries may write.
  std::int64_t writable(int queries) const { return std::min(tokens + pending + queries, tokens_max); }
};

/// One page's rows on their way between a frame and the host store.
struct page_copy {
  copy_kind kind;
  int slot;
  int page;
  std::uint32_t incarnation;
  std::uint32_t epoch;
  map_entry at;
  int from;  ///< tokens of the page, first
  int to;    ///< tokens of the page, end
};

struct copy_failure {
  copy_kind kind;
  request_id request;
  page_index page;
};

/// A changed word of the resident map.
struct map_patch {
  int slot;
  int page;
  map_entry entry;
};

/// What a decision asks the streams to do, in the order: copies on the side stream, waits of the main stream, then map,
/// hot frames, tables.
struct effects {
  std::vector<page_copy> copies;
  std::vector<ticket> waits;
  std::vector<map_patch> map;
  std::vector<int> hot;      ///< slots whose hot frames changed
  std::vector<int> lengths;  ///< slots whose committed length was set from the host
  std::vector<int> clear;    ///< slots whose tables must be empty
};

/// Totals since construction, of the control plane.
struct move_counts {
  std::uint64_t lent = 0, revoked = 0, refilled = 0, restored = 0, backed_up = 0, imported = 0, adopted = 0,
                copy_failures = 0;
  std::uint64_t admitted = 0, refused = 0, waited = 0, finished = 0, preempted = 0, resumed = 0, truncated = 0,
                forced_waits = 0;
};

/// Bytes that pages brought over the link.
struct moved_bytes {
  std::uint64_t backed_up = 0, refilled = 0, restored = 0, imported = 0;
};

/// Records and their primitive moves. Decisions are `loan_allocator`'s. Host only, one control thread.
class ledger {
 public:
  ledger(int frames, int host_pages, int requests, int run, int page_tokens)
      : frames{frames},
        hosts{host_pages, run},
        page_tokens{page_tokens},
        requests_(static_cast<std::size_t>(requests)),
        patched_(static_cast<std::size_t>(requests)) {}

  frame_pool frames;
  host_page_pool hosts;
  int const page_tokens;
  effects out;
  move_counts counts;
  static constexpr std::size_t most_failures = 1024;
  std::deque<copy_failure> failures;                 ///< the newest of them
  std::vector<std::pair<int, int>> marked;           ///< (slot, page) chosen to lose their frames, in order
  std::function<bool(copy_kind, int, int)> refuses;  ///< the space's word on a copy
  ticket done = ticket::none;                        ///< copies up to here are known to be done
  ticket main = ticket::none;  ///< fence of the last step: earlier readers and writers of the main stream
  ticket last = ticket::none;  ///< newest ticket given out

  std::vector<request_record> const& requests() const { return requests_; }
  request_record& at(int slot) { return requests_[static_cast<std::size_t>(slot)]; }
  request_record const& at(int slot) const { return requests_[static_cast<std::size_t>(slot)]; }

  /// The ticket that the copies asked for since the last flush will get.
  ticket next_job() const { return ticket{static_cast<std::uint64_t>(last) + 1}; }

  page_record& page(request_record& r, int p) { return r.pages[static_cast<std::size_t>(p)]; }
  page_record const& page(request_record const& r, int p) const { return r.pages[static_cast<std::size_t>(p)]; }
  int pages_of(std::int64_t tokens) const { return static_cast<int>(pages_for(tokens, page_tokens)); }
  /// Committed tokens of page p.
  int tokens_in(request_record const& r, int p) const {
    return static_cast<int>(std::clamp<std::int64_t>(r.tokens - std::int64_t{p} * page_tokens, 0, page_tokens));
  }
  bool complete(request_record const& r, int p) const { return page(r, p).backed >= tokens_in(r, p); }
  bool has_frame(request_record const& r, int p) const { return page(r, p).at.frame != frame_id::none; }
  frame_state state(request_record const& r, int p) const { return frames[page(r, p).at.frame].state; }
  /// Frames it holds: pages, hot rows, idle.
  int held(request_record const& r) const { return r.framed + static_cast<int>(r.hot.size() + r.idle.size()); }

  /// Asks for the page's map word. A word is asked for once: lanes apply the list in any order.
  void patch(request_record const& r, int p) {
    page_record const& record = page(r, p);
    map_patch const now{r.id.slot, p, {record.mapped ? record.at.frame : frame_id::none, record.at.host}};
    auto& places = patched_[static_cast<std::size_t>(r.id.slot)];
    if (static_cast<int>(places.size()) <= p) places.resize(static_cast<std::size_t>(p) + 1);
    std::size_t& place = places[static_cast<std::size_t>(p)];
    if (place < out.map.size() && out.map[place].slot == r.id.slot && out.map[place].page == p) {
      out.map[place] = now;
    } else {
      place = out.map.size();
      out.map.push_back(now);
    }
  }

  /// A new page at the end of the history, with a host page and no frame.
  page_record& append(request_record& r) {
    r.run = hosts.acquire(r.run);
    r.pages.push_back({.at = {frame_id::none, r.run}});
    r.uses.push_back(0);
    ++r.missing;
    outdate(r.pages.back());
    patch(r, static_cast<int>(r.pages.size()) - 1);
    return r.pages.back();
  }
  /// Copies of the page that are under way no longer count, nor those of an earlier page in its place.
  void outdate(page_record& page) { page.epoch = ++epochs_; }

  /// Gives page p a frame, already marked with its use; not yet readable.
  void place(request_record& r, int p, frame_id f) {
    EBB_ASSERT(!has_frame(r, p));
    page(r, p).at.frame = f;
    ++r.framed;
    if (frames[f].state == frame_state::lent || frames[f].state == frame_state::filling) ++counts.lent;
    r.lent += frames[f].state == frame_state::lent;
  }
  /// The map names the page's frame from the next begin_step on.
  void land(request_record& r, int p) {
    if (page(r, p).mapped) return;
    page(r, p).mapped = true;
    --r.missing;
    patch(r, p);
  }
  /// Changes the use of a page's frame and keeps the loan counts.
  void set_state(request_record& r, int p, frame_state s) {
    frame_state const old = state(r, p);
    if (old == s) return;
    r.lent += (s == frame_state::lent) - (old == frame_state::lent);
    if (s == frame_state::lent && old == frame_state::required) ++counts.lent;
    frames.set(page(r, p).at.frame, s, r.id.slot, p);
  }
  /// Takes page p out of its frame, which the caller disposes of.
  frame_id lift(request_record& r, int p) {
    frame_id const f = page(r, p).at.frame;
    set_state(r, p, frame_state::required);
    if (page(r, p).mapped) ++r.missing;
    page(r, p).mapped = false;
    page(r, p).at.frame = frame_id::none;
    --r.framed;
    patch(r, p);
    return f;
  }
  /// A side-stream job reads or writes the page's frame or host page.
  void touch(page_record& page, ticket job) {
    page.busy = job;
    if (page.at.frame != frame_id::none) frames.touch(page.at.frame, job);
  }
  /// Retires a frame behind the main stream's last step and a copy that still uses it.
  void retire(frame_id f, ticket busy = ticket::none) {
    ticket const copies = std::max(busy, frames[f].copies);
    frames.retire(f, std::max(main, copies), copies <= done);
  }
  void drop(request_record& r, int p) {
    ticket const busy = page(r, p).busy;
    retire(lift(r, p), busy);
  }

  /// Chooses page p to lose its frame as soon as its host copy is complete.
  void mark(request_record& r, int p) {
    set_state(r, p, frame_state::revoking);
    marked.emplace_back(r.id.slot, p);
  }
  bool is_marked(request_record const& r, int p) const {
    return has_frame(r, p) && page(r, p).mapped && state(r, p) == frame_state::revoking;
  }

  /// Asks for a copy of tokens [from, to) of page p; false where the space refuses, which changes nothing but the
  /// failure list.
  bool copy(copy_kind kind, request_record& r, int p, int from, int to) {
    if (from >= to) return true;
    if (refuses && refuses(kind, r.id.slot, p)) {
      refused_copy(kind, r, p);
      return false;
    }
    page_record& record = page(r, p);
    touch(record, next_job());
    out.copies.push_back({kind, r.id.slot, p, r.id.incarnation, record.epoch, record.at, from, to});
    return true;
  }
  void refused_copy(copy_kind kind, request_record const& r, int p) {
    ++counts.copy_failures;
    if (failures.size() == most_failures) failures.pop_front();
    failures.push_back({kind, r.id, page_index{p}});
  }
  /// Makes sure that page p's committed tokens get their host copy; false where refused.
  bool back_up(request_record& r, int p) {
    page_record& record = page(r, p);
    int const have = std::max(record.backed, record.backing);
    int const want = tokens_in(r, p);
    if (have >= want) return true;
    if (!copy(copy_kind::backup, r, p, have, want)) return false;
    record.backing = want;
    return true;
  }
  /// Backs page p up and makes the main stream wait for it, so that work enqueued there from now on may count on it;
  /// false where refused.
  bool back_up_now(request_record& r, int p) {
    if (complete(r, p)) return true;
    if (!back_up(r, p)) return false;
    wait_main(page(r, p).busy);
    page(r, p).backed = page(r, p).backing;
    ++counts.forced_waits;
    return true;
  }
  void wait_main(ticket t) {
    if (t > done) out.waits.push_back(t);
  }

  /// A copy is done.
  void complete_copy(page_copy const& c) {
    request_record& r = at(c.slot);
    bool const stale = r.id.incarnation != c.incarnation || c.page >= static_cast<int>(r.pages.size()) ||
                       page(r, c.page).epoch != c.epoch;
    if (c.kind == copy_kind::backup) {
      ++counts.backed_up;
      if (!stale) page(r, c.page).backed = std::max(page(r, c.page).backed, c.to);
      return;
    }
    ++(c.kind == copy_kind::refill ? counts.refilled : counts.restored);
    if (stale || page(r, c.page).at.frame != c.at.frame || page(r, c.page).mapped) return;
    if (state(r, c.page) == frame_state::filling) set_state(r, c.page, frame_state::lent);
    land(r, c.page);
  }

 private:
  std::vector<request_record> requests_;
  std::uint32_t epochs_ = 0;
  std::vector<std::vector<std::size_t>> patched_;  ///< of each slot and page, where its word is in `out.map`, if it is
};

}  // namespace ebb

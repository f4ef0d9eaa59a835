#pragma once
/// The side stream: pages in and out, imports, tickets and fences.

#include <ebb/arenas.hpp>
#include <ebb/fence.hpp>
#include <ebb/ledger.hpp>
#include <ebb/upload_ring.hpp>

namespace ebb {

/// Runs the copies that decisions ask for, on a stream of its own, always behind the fence of the last step: earlier
/// readers and writers of the frames and host pages it touches are done by then. Gives every job its ticket.
template <policy P, space S>
class copy_queue {
 public:
  using stream = typename S::stream;
  using event = typename S::event;

  copy_queue(S const& space, geometry<P> const& geo, arenas<P, S> const& rows, upload_ring<S>& ring, ledger& book)
      : space_{space},
        geometry_{geo},
        rows_{rows},
        ring_{ring},
        book_{book},
        side_{space.make_stream()},
        log_{space},
        frames_(static_cast<std::size_t>(book.frames.size())),
        hosts_(static_cast<std::size_t>(book.hosts.size())) {}

  moved_bytes const& bytes() const { return bytes_; }
  ticket progress() const { return log_.done(); }
  bool reached(ticket t) const { return log_.reached(t); }
  void synchronize(ticket t) const { log_.synchronize(t); }
  void wait(stream on, ticket t) const { log_.wait(on, t); }
  void drain() const { space_.synchronize(space_.record(side_)); }

  /// The fence of a step that was just enqueued on the main stream.
  ticket fence(event end) {
    flush();
    last_end_ = end;
    book_.main = next_ticket();
    log_.add(book_.main, end, {});
    return book_.main;
  }
  /// The end of the engine's own work on frames, on a stream of its choice: later copies wait for it.
  ticket fence_engine(stream on) {
    flush();
    event const e = space_.record(on);
    space_.wait(side_, e);
    ticket const t = next_ticket();
    log_.add(t, e, {});
    return t;
  }
  /// Waits for tickets up to `until` and lets the ledger see that their copies are done.
  void complete(ticket until) {
    log_.take_until(until, [&](std::vector<page_copy> const& copies) {
      for (page_copy const& c : copies) book_.complete_copy(c);
    });
    book_.done = until;
  }

  /// Enqueues the copies that decisions asked for, as one job of the side stream behind the last step's fence.
  void flush() {
    effects& out = book_.out;
    if (out.copies.empty()) return;
    space_.wait(side_, last_end_);
    std::vector<page_move> moves;
    for (page_copy const& c : out.copies) {
      moves.push_back({index(c.at.frame), index(c.at.host), c.from, c.to, c.kind == copy_kind::backup ? 1 : 0});
      std::uint64_t bytes = 0;
      for (int s = 0; s < geometry_.sources(); ++s)
        bytes += static_cast<std::uint64_t>(c.to / geometry_.ratio(s) - c.from / geometry_.ratio(s)) * P::row.total();
      (c.kind == copy_kind::backup   ? bytes_.backed_up
       : c.kind == copy_kind::refill ? bytes_.refilled
                                     : bytes_.restored) += bytes;
    }
    for (std::size_t at = 0; at < moves.size();) {
      std::size_t const n = unordered(std::span{moves}.subspan(at));
      auto const* items = ring_.put(std::span<page_move const>{moves.data() + at, n});
      space_.run(side_, moving_teams, move_body<P>{items, static_cast<int>(n), rows_.on_device(), geometry_.sources()});
      ring_.close(space_.record(side_));
      at += n;
    }
    ticket const t = next_ticket();
    log_.add(t, space_.record(side_), std::exchange(out.copies, {}));
  }

  /// Rows of one source of a request's reserved pages, from the engine's memory.
  ticket import(int source, std::byte const* rows, std::int64_t stride, std::vector<page_import> const& pages) {
    flush();
    if (pages.empty()) return ticket::none;
    space_.wait(side_, last_end_);
    source_view const& v = rows_.view(source);
    int const width = std::min(copy_width(stride),
                               copy_width(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rows) % 16)));
    for (std::size_t at = 0; at < pages.size();) {
      std::size_t const n = std::min(pages.size() - at, ring_.largest() / sizeof(page_import));
      auto const* items = ring_.put(std::span<page_import const>{pages.data() + at, n});
      int const count = static_cast<int>(n);
      if (width >= 16) {
        space_.run(side_, std::min(count, moving_teams), import_body<P, 16>{items, count, v, rows, stride});
      } else if (width >= 4) {
        space_.run(side_, std::min(count, moving_teams), import_body<P, 4>{items, count, v, rows, stride});
      } else {
        space_.run(side_, std::min(count, moving_teams), import_body<P, 1>{items, count, v, rows, stride});
      }
      ring_.close(space_.record(side_));
      at += n;
    }
    for (page_import const& p : pages) bytes_.imported += static_cast<std::uint64_t>(p.rows) * P::row.total();
    ticket const t = next_ticket();
    log_.add(t, space_.record(side_), {});
    return t;
  }

 private:
  /// How many of the moves may run at once: none touches a frame or host page that another one touches, as where a page
  /// makes way for another.
  std::size_t unordered(std::span<page_move const> moves) {
    ++launch_;
    std::size_t n = 0;
    for (std::size_t const most = ring_.largest() / sizeof(page_move); n < moves.size() && n < most; ++n) {
      auto& frame = frames_[static_cast<std::size_t>(moves[n].frame)];
      auto& host = hosts_[static_cast<std::size_t>(moves[n].host)];
      if (frame == launch_ || host == launch_) break;
      frame = host = launch_;
    }
    return n;
  }
  ticket next_ticket() {
    book_.last = book_.next_job();
    return book_.last;
  }

  S space_;
  geometry<P> const& geometry_;
  arenas<P, S> const& rows_;
  upload_ring<S>& ring_;
  ledger& book_;
  stream side_;
  ticket_log<S, std::vector<page_copy>> log_;
  event last_end_{};
  moved_bytes bytes_;
  std::vector<std::uint64_t> frames_, hosts_;  ///< the launch that last touched each
  std::uint64_t launch_ = 0;
};

}  // namespace ebb

#pragma once
/// Values that an instance reports: counters, gauges, and writers for them.

#include <ebb/device_counters.hpp>
#include <ebb/ledger.hpp>
#include <ebb/promises.hpp>

#include <string>

namespace ebb {

/// Totals since construction. Device counters may be a moment old: reading them does not stop the stream.
struct counters {
  std::uint64_t tail_hits = 0, lent_hits = 0, hot_hits = 0, misses = 0, invalid = 0, rejected = 0, lost = 0;
  std::uint64_t fetched_rows = 0, fetched_bytes = 0, staged_rows = 0;
  std::uint64_t prefetched_rows = 0, prefetch_dropped = 0;
  std::uint64_t backed_up_bytes = 0, refilled_bytes = 0, restored_bytes = 0, imported_bytes = 0;
  std::uint64_t steps = 0;
  move_counts pages;
};

/// The pools at this moment.
struct gauges {
  int frames = 0, frames_free = 0, frames_required = 0, frames_lent = 0, frames_taken = 0, frames_filling = 0,
      frames_revoking = 0;
  int host_pages = 0, host_pages_free = 0;
  int requests = 0, running = 0, waiting = 0, preempted = 0;
  int frames_promised = 0, frames_wanted = 0;
  int draft_rings = 0, draft_rings_free = 0;
  std::int64_t frames_held = 0, host_pages_held = 0;
  std::int64_t gpu_bytes = 0, host_bytes = 0;
};

/// Where one request's history is.
struct request_gauges {
  int pages = 0;       ///< of its history
  int resident = 0;    ///< of these, in frames that the map names
  int lent = 0;        ///< of these, on loan
  int hot_frames = 0;  ///< frames of its hot rows; 0 while it is whole
  int promised = 0;    ///< frames it may require
};

inline counters counters_of(std::uint64_t const (&device)[device_counts], std::uint64_t row_bytes,
                            moved_bytes const& moved, std::uint64_t steps, move_counts const& pages) {
  auto const of = [&](count k) { return device[static_cast<int>(k)]; };
  return {.tail_hits = of(count::tail_hits),
          .lent_hits = of(count::lent_hits),
          .hot_hits = of(count::hot_hits),
          .misses = of(count::misses),
          .invalid = of(count::invalid),
          .rejected = of(count::rejected),
          .lost = of(count::lost),
          .fetched_rows = of(count::fetched_rows),
          .fetched_bytes = of(count::fetched_rows) * row_bytes,
          .staged_rows = of(count::staged_rows),
          .prefetched_rows = of(count::prefetched_rows),
          .prefetch_dropped = of(count::prefetch_dropped),
          .backed_up_bytes = moved.backed_up,
          .refilled_bytes = moved.refilled,
          .restored_bytes = moved.restored,
          .imported_bytes = moved.imported,
          .steps = steps,
          .pages = pages};
}

inline gauges gauges_of(ledger const& book, promises const& promised) {
  frame_pool const& f = book.frames;
  gauges g{.frames = f.size(),
           .frames_free = f.count(frame_state::free),
           .frames_required = f.count(frame_state::required),
           .frames_lent = f.count(frame_state::lent),
           .frames_taken = f.count(frame_state::taken),
           .frames_filling = f.count(frame_state::filling),
           .frames_revoking = f.count(frame_state::revoking),
           .host_pages = book.hosts.size(),
           .host_pages_free = book.hosts.free(),
           .requests = static_cast<int>(book.requests().size()),
           .frames_promised = promised.frames(),
           .frames_held = promised.held_frames(),
           .host_pages_held = promised.held_hosts()};
  for (auto const& r : book.requests()) {
    g.running += r.phase == phase::running;
    g.waiting += r.phase == phase::waiting;
    g.preempted += r.phase == phase::preempted;
  }
  return g;
}

/// Calls `f(name, help, value)` for every counter, `f` being generic in the value.
template <class F>
void for_each_value(counters const& c, F f) {
  f("tail_hits", "selected positions found in the newest pages", c.tail_hits);
  f("lent_hits", "selected positions found in older pages of the map", c.lent_hits);
  f("hot_hits", "selected positions found in hot rows", c.hot_hits);
  f("misses", "selected positions not on the GPU", c.misses);
  f("invalid", "selected entries without a position", c.invalid);
  f("rejected", "selected positions out of range or beyond the causal bound", c.rejected);
  f("lost", "valid positions found nowhere", c.lost);
  f("fetched_rows", "rows copied from the host store on demand", c.fetched_rows);
  f("fetched_bytes", "bytes of those rows", c.fetched_bytes);
  f("staged_rows", "claims that went to staging", c.staged_rows);
  f("prefetched_rows", "rows of announced candidates copied ahead", c.prefetched_rows);
  f("prefetch_dropped", "announced candidates left to demand", c.prefetch_dropped);
  f("backed_up_bytes", "bytes copied to the host store", c.backed_up_bytes);
  f("refilled_bytes", "bytes of pages handed back", c.refilled_bytes);
  f("restored_bytes", "bytes of pages brought back for resumed requests", c.restored_bytes);
  f("imported_bytes", "bytes imported", c.imported_bytes);
  f("steps", "steps begun", c.steps);
  f("pages_lent", "pages that became loans", c.pages.lent);
  f("pages_revoked", "loans taken back", c.pages.revoked);
  f("pages_refilled", "pages handed back", c.pages.refilled);
  f("pages_restored", "pages brought back for resumed requests", c.pages.restored);
  f("pages_backed_up", "page copies to the host store", c.pages.backed_up);
  f("pages_imported", "pages imported", c.pages.imported);
  f("pages_adopted", "frames adopted from the engine", c.pages.adopted);
  f("copy_failures", "page copies that were refused", c.pages.copy_failures);
  f("admitted", "requests admitted", c.pages.admitted);
  f("refused", "calls refused for a shortage", c.pages.refused);
  f("waited", "admissions and resumptions that had to wait for frames", c.pages.waited);
  f("finished", "requests finished", c.pages.finished);
  f("preempted", "requests preempted", c.pages.preempted);
  f("resumed", "requests resumed", c.pages.resumed);
  f("truncated", "requests truncated", c.pages.truncated);
  f("forced_waits", "times the main stream waits for a copy", c.pages.forced_waits);
}
template <class F>
void for_each_value(gauges const& g, F f) {
  f("frames", "frames in all", g.frames);
  f("frames_free", "frames nobody uses", g.frames_free);
  f("frames_required", "frames requests cannot run without", g.frames_required);
  f("frames_lent", "frames lent", g.frames_lent);
  f("frames_taken", "frames the engine took", g.frames_taken);
  f("frames_filling", "loans being filled", g.frames_filling);
  f("frames_revoking", "frames on their way back", g.frames_revoking);
  f("host_pages", "host pages in all", g.host_pages);
  f("host_pages_free", "host pages nobody uses", g.host_pages_free);
  f("requests", "request slots in all", g.requests);
  f("running", "running requests", g.running);
  f("waiting", "requests that wait for frames", g.waiting);
  f("preempted", "preempted requests", g.preempted);
  f("frames_promised", "frames promised to requests and the engine", g.frames_promised);
  f("frames_wanted", "frames that pending calls wait for", g.frames_wanted);
  f("frames_held", "frames promised to holds", g.frames_held);
  f("host_pages_held", "host pages promised to holds", g.host_pages_held);
  f("draft_rings", "rings of windowed drafters in all", g.draft_rings);
  f("draft_rings_free", "rings nobody has", g.draft_rings_free);
  f("gpu_bytes", "bytes of GPU memory that it owns for rows", g.gpu_bytes);
  f("host_bytes", "bytes of the host store", g.host_bytes);
}

/// Prometheus text exposition format, version 0.0.4; every metric is `prefix_name{labels}`, where `labels` is as the
/// format writes them, `gpu="0"` say.
inline std::string to_prometheus(counters const& c, gauges const& g, std::string const& prefix = "ebb",
                                 std::string const& labels = "") {
  std::string const braced = labels.empty() ? "" : "{" + labels + "}";
  std::string out;
  auto const write = [&](char const* type, char const* suffix) {
    return [&, type, suffix](char const* name, char const* help, auto value) {
      std::string const full = prefix + "_" + name + suffix;
      out += "# HELP " + full + " " + help + "\n# TYPE " + full + " " + type + "\n" + full + braced + " " +
             std::to_string(value) + "\n";
    };
  };
  for_each_value(c, write("counter", "_total"));
  for_each_value(g, write("gauge", ""));
  return out;
}

/// One JSON object with the members `counters` and `pools`.
inline std::string to_json(counters const& c, gauges const& g) {
  auto const object = [](auto const& values) {
    std::string out = "{";
    for_each_value(values, [&](char const* name, char const*, auto value) {
      out += (out.size() > 1 ? ", \"" : "\"") + std::string{name} + "\": " + std::to_string(value);
    });
    return out + "}";
  };
  return "{\"counters\": " + object(c) + ", \"pools\": " + object(g) + "}";
}

}  // namespace ebb

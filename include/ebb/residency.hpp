#pragma once
/// The class an engine holds: resident map, loans, host store and resolver, composed by the step protocol.

#include <ebb/arenas.hpp>
#include <ebb/counters.hpp>
#include <ebb/fence.hpp>
#include <ebb/loan_allocator.hpp>
#include <ebb/resident_map.hpp>
#include <ebb/resolver.hpp>
#include <ebb/upload_ring.hpp>

#include <array>
#include <functional>
#include <optional>
#include <span>

namespace ebb {

/// Constructor arguments of `residency`. Counts, except where a unit is named.
struct sizes {
  int frames;                         ///< frames of the GPU, each one page of every source
  int host_pages;                     ///< pages of the host store
  int requests;                       ///< request slots, preempted ones too
  int max_batch;                      ///< requests of one step at most
  std::int64_t max_tokens;            ///< longest request; fixes the map's width and the position bits
  int hot_rows = 0;                   ///< of one request, at r = 1
  int staging_rows = -1;              ///< of one request; −1: max_queries · top_k − ways, at least 0
  int steps_in_flight = 1;
  long long refill_bytes = defaults::refill_bytes;  ///< handed back per step at most
  layer_range layers = {};            ///< of a pipeline rank
  host_kind host = host_kind::managed;
  std::span<arena_view const> arenas = {};  ///< borrowed GPU memory, one for each local source; empty: owned
  std::byte* host_memory = nullptr;   ///< borrowed host store; null: owned
};

/// Rows that come in: row i at `rows + i · row_stride`, in-row bytes then page-end bytes; stride 0: packed.
struct import_rows {
  std::byte const* rows;
  std::int64_t row_stride = 0;
};
/// Where an engine writes one reserved page of one source itself; either may be null. Bytes follow `page_layout` of the source.
struct import_page {
  page_index page;
  std::byte* host;
  std::byte* frame;
};

/// The requests of a step. `padded`: requests that captured kernels are launched for, 0 = as many as there are.
struct batch {
  std::span<request_id const> requests;
  int queries = 1;
  int padded = 0;
};

/// A begun step. Cheap to copy; valid until its end_step.
struct step {
  std::uint64_t number = 0;
  int requests = 0;
  int padded = 0;
  int queries = 0;
};

/// Residency of all sessions of one GPU. See docs/integrate.md for the protocol of a step and what the engine promises.
///
/// Concurrency: one control thread; counts(), pools() and progress() belong to it, too.
/// Stream: calls that take a stream enqueue on it and never wait, but begin_step, which waits for the end of step n − steps_in_flight.
template <policy P, space S>
class residency {
  static_assert(check_policy<P>());
  static_assert(keep_order<typename P::keep> && metadata<typename P::metadata>);
  using geo = geometry_of<P>;

 public:
  using stream = typename S::stream;
  using metadata_ref = typename P::metadata::ref;

  /// Throws: std::invalid_argument naming parameter, value and legal range; what the space throws where memory falls short.
  residency(S space, ebb::sizes const& sizes)
      : space_{space},
        geometry_{sizes.layers},
        sizes_{checked(sizes, geometry_)},
        side_{space.make_stream()},
        allocator_{allocator_sizes_of(sizes_)},
        rows_{space, geometry_, {sizes_.frames, sizes_.host_pages, staging_ways_, sizes_.max_batch, sizes_.host, sizes_.arenas, sizes_.host_memory}},
        map_{space, sizes_.requests, map_pages()},
        ring_{space, std::size_t{8} << 20},
        log_{space} {
    make_tables();
    book().refuses = [space](copy_kind kind, int slot, int page) { return space.refuses_copy(kind, slot, page); };
  }
  residency(residency const&) = delete;
  residency& operator=(residency const&) = delete;
  /// Waits for everything enqueued through this instance.
  ~residency() {
    try {
      for (auto const& e : unfinished_) space_.synchronize(e);
      space_.synchronize(space_.record(side_));
    } catch (...) {
    }
  }

  // ---- admission: decided at once --------------------------------------------------------------------------------------------------

  /// Admits a request that may grow to `tokens_max` tokens; `tokens`: how many will be imported first, so that their frames are ready.
  /// Returns: a handle, perhaps still pending (`ready`), or the limiting pool with numbers. `hold`: a promise made earlier, used up.
  outcome<request_id> admit(std::int64_t tokens_max, std::int64_t tokens = 0, hold_id hold = hold_id::none) {
    check_sound();
    return allocator_.admit(tokens_max, tokens, hold);
  }
  /// False while frames of an admission or resumption are on their way; a batch that names such a request is refused.
  bool ready(request_id id) const { return allocator_.ready(record(id, "ready")); }
  /// Promises room to a queued request: other admissions leave it alone and refill never takes its frames.
  outcome<hold_id> hold(std::int64_t tokens_max) { return allocator_.hold(tokens_max); }
  void release(hold_id id) { allocator_.release(id); }

  /// Frames for the engine's own use. `collect` hands them over once earlier readers and writers are done, by begin_step's progress.
  outcome<take_id> take(int frames) {
    check_sound();
    return allocator_.take(frames);
  }
  std::optional<std::vector<frame_id>> collect(take_id id) { return allocator_.collect(id); }
  /// Returns frames that were taken. Requires: the engine's own work on them is done, or ordered before the next begin_step.
  void give(std::span<frame_id const> frames) { allocator_.give(frames); }

  // ---- history that comes in -------------------------------------------------------------------------------------------------------

  /// Makes room for history up to `tokens`. Returns the ticket after which the engine may write to `import_pages` itself.
  ticket reserve_import(request_id id, std::int64_t tokens) {
    request_record& r = idle_record(id, "reserve_import");
    require(r.phase == phase::running, "reserve_import: request", r.id.slot, "one that is ready");
    require(tokens > r.tokens && tokens <= r.tokens_max, "reserve_import: tokens", tokens, std::to_string(r.tokens + 1) + " to " + std::to_string(r.tokens_max));
    require(r.reserved == r.tokens, "reserve_import: request", r.id.slot, "one without an import under way");
    allocator_.reserve(r, tokens);
    imports_[static_cast<std::size_t>(r.id.slot)] = {};
    ticket ready = ticket::none;
    for (int p = first_import(r); p < static_cast<int>(r.pages.size()); ++p) {
      if (book().has_frame(r, p)) ready = std::max(ready, book().frames[book().page(r, p).at.frame].after);
      ready = std::max({ready, book().hosts.after(book().page(r, p).at.host), book().page(r, p).busy});
    }
    flush_copies();
    return ready;
  }
  /// Where rows of a source of the reserved pages belong.
  std::vector<import_page> import_pages(request_id id, source_id source) const {
    request_record const& r = record(id, "import_pages");
    source_view const& v = rows_.view(geometry_.source(source));
    std::vector<import_page> pages;
    for (int p = first_import(r); p < static_cast<int>(r.pages.size()); ++p) {
      map_entry const at = book().page(r, p).at;
      pages.push_back({page_index{p}, wants_host(r, p) ? v.host + std::int64_t{index(at.host)} * v.host_layout.stride : nullptr,
                       at.frame != frame_id::none ? v.base + std::int64_t{index(at.frame)} * v.layout.stride : nullptr});
    }
    return pages;
  }
  /// Copies the source's rows of tokens [committed, reserved) in, on the side stream; row 0 is the first that those tokens complete.
  /// Requires: `rows` is readable by bodies, and stays so until the returned ticket is reached.
  ticket import(request_id id, source_id source, import_rows rows) {
    request_record& r = idle_record(id, "import");
    require(r.reserved > r.tokens, "import: request", r.id.slot, "one with room from reserve_import");
    int const s = geometry_.source(source);
    std::int64_t const stride = rows.row_stride == 0 ? P::row.total() : rows.row_stride;
    require(rows.rows != nullptr && stride >= P::row.total(), "import: row_stride", stride, "at least " + std::to_string(P::row.total()));
    int const ratio = geometry_.ratio(s);
    std::int64_t const base = r.tokens / ratio;
    std::vector<page_import> pages;
    auto& failed = imports_[static_cast<std::size_t>(r.id.slot)].failed;
    std::erase_if(failed, [&](auto const& f) { return f.second == s; });
    for (int p = first_import(r); p < static_cast<int>(r.pages.size()); ++p) {
      std::int64_t const start = std::int64_t{p} * P::page_tokens;
      std::int64_t const from = std::max(r.tokens, start) / ratio;
      std::int64_t const to = std::min(r.reserved, start + P::page_tokens) / ratio;
      if (from >= to) continue;
      if (space_.refuses_copy(copy_kind::import, r.id.slot, p)) {
        failed.emplace_back(p, s);
        book().failures.push_back({copy_kind::import, r.id, page_index{p}});
        ++book().counts.copy_failures;
        continue;
      }
      map_entry const at = book().page(r, p).at;
      pages.push_back({index(at.frame), wants_host(r, p) ? index(at.host) : -1, static_cast<std::int32_t>(from - start / ratio), static_cast<std::int32_t>(to - from), from - base});
      counts_.imported_bytes += static_cast<std::uint64_t>(to - from) * P::row.total();
    }
    flush_copies();
    return guarded([&] { return enqueue_import(r, s, rows.rows, stride, pages); });
  }
  /// The history reaches `tokens` from the next begin_step on, ordered after the imports into it.
  /// Throws: std::runtime_error naming the page where an import was refused and not repeated.
  void publish(request_id id, std::int64_t tokens) {
    request_record& r = idle_record(id, "publish");
    require(tokens > r.tokens && tokens <= r.reserved, "publish: tokens", tokens, std::to_string(r.tokens + 1) + " to " + std::to_string(r.reserved) + ", the reserved room");
    importing& in = imports_[static_cast<std::size_t>(r.id.slot)];
    if (!in.failed.empty()) {
      throw std::runtime_error("publish: page " + std::to_string(in.failed.front().first) + " of the request in slot " + std::to_string(r.id.slot) + " was not imported: its copy was refused");
    }
    int const first = first_import(r);
    std::vector<char> hosted;
    for (int p = first; p < static_cast<int>(r.pages.size()); ++p) hosted.push_back(wants_host(r, p));
    allocator_.set_tokens(r, tokens);
    book().wait_main(in.last);
    for (int p = first; p < book().pages_of(tokens); ++p) {
      page_record& page = book().page(r, p);
      if (hosted[static_cast<std::size_t>(p - first)]) page.backed = page.backing = book().tokens_in(r, p);
      if (book().has_frame(r, p)) {
        book().wait_main(page.busy);
        book().land(r, p);
      }
      ++book().counts.imported;
    }
    in = {};
  }
  /// Taken frames that the engine wrote become the request's next pages, without a copy.
  /// Requires: the committed length is on a page boundary; the writes are ordered before the next begin_step.
  void adopt(request_id id, std::span<frame_id const> frames, std::int64_t tokens) {
    request_record& r = idle_record(id, "adopt");
    require(r.phase == phase::running && r.reserved == r.tokens, "adopt: request", r.id.slot, "one that is ready and without an import under way");
    require(r.tokens % P::page_tokens == 0 && static_cast<int>(r.pages.size()) == book().pages_of(r.tokens), "adopt: committed tokens", r.tokens, "a multiple of page_tokens without scratch behind it");
    require(tokens > r.tokens && tokens <= r.tokens_max && book().pages_of(tokens) - book().pages_of(r.tokens) == static_cast<int>(frames.size()), "adopt: tokens", tokens,
            "as many as fill " + std::to_string(frames.size()) + " frames behind " + std::to_string(r.tokens) + " tokens, up to tokens_max");
    allocator_.adopt(r, frames, tokens);
  }

  // ---- a step ----------------------------------------------------------------------------------------------------------------------

  /// Decides who keeps what for this step and uploads it. `progress`: decisions see copies up to this ticket (default: all that are done);
  /// ranks that pass the same value decide the same. Throws: std::invalid_argument for a batch it refuses; nothing changed then.
  step begin_step(stream on, batch const& b, std::optional<ticket> progress = {}) {
    check_sound();
    check_batch(on, b);
    return guarded([&] {
      limit_steps();
      advance(progress);
      allocator_.settle();
      for (request_id id : b.requests) {
        request_record& r = book().at(id.slot);
        allocator_.grow(r, std::min<std::int64_t>(r.tokens + b.queries, r.tokens_max));
      }
      allocator_.refill(static_cast<int>(std::min<long long>(sizes_.refill_bytes / geometry_.page_bytes(), sizes_.frames)));
      ++counts_.steps;
      open_ = {counts_.steps, static_cast<int>(b.requests.size()), b.padded == 0 ? static_cast<int>(b.requests.size()) : b.padded, b.queries};
      batch_.assign(b.requests.begin(), b.requests.end());
      resolved_.assign(static_cast<std::size_t>(geometry_.groups()), {});
      upload(on);
      allocator_.open_step();
      return open_;
    });
  }

  /// Head of the captured part: write addresses and causal bounds of every query, from the committed lengths on the device.
  void addresses(stream on, step const& s) {
    check_open(s, "addresses");
    guarded([&] { space_.run(on, s.padded, addresses_body<P>{state_, s.queries, writes_stride()}); });
  }
  /// Device array `[padded · queries]`: the row address where a query's token is written, −1 where it completes no row of the source.
  std::int32_t const* write_addresses(source_id source) const {
    return state_.writes + std::int64_t{geo::ratio_class(geometry_.ratio(geometry_.source(source)))} * writes_stride();
  }
  /// Device array `[padded · queries]`: exclusive causal bound in tokens.
  std::int32_t const* bounds() const { return state_.bounds; }

  /// Resolves a group's selection, device array `[padded · queries][top_k]`, into metadata for the first source of its set; rows that are
  /// missing are fetched for all sources of the set. Capturable.
  void resolve(stream on, step const& s, group_id group, std::int32_t const* selection, metadata_ref out) {
    check_open(s, "resolve");
    int const g = geometry_.group(group);
    resolved& now = resolved_[static_cast<std::size_t>(g)];
    require(!now.done, "resolve: group", index(group), "a group that was not resolved in this step yet");
    guarded([&] { space_.run(on, s.padded, resolve_of(g, s, selection, out)); });
    now = {true, out, geometry_.source_of_set(geometry_.set_of_group(g), 0)};
  }
  /// Metadata of another source of the set, from what `group`'s resolve of this step wrote. Requires: that metadata is unchanged.
  /// Throws: std::invalid_argument where the group was not resolved in this step: never an earlier step's addresses.
  void replay(stream on, step const& s, group_id group, source_id source, metadata_ref out) {
    check_open(s, "replay");
    int const g = geometry_.group(group);
    int const to = geometry_.source(source);
    resolved& now = resolved_[static_cast<std::size_t>(g)];
    require(now.done, "replay: group", index(group), "a group that was resolved in this step");
    require(geometry_.set_of_source(to) == geometry_.set_of_group(g), "replay: source", index(source), "a source of the group's set");
    guarded([&] { space_.run(on, s.padded, replay_body<P>{rows_.view(now.source), rows_.view(to), now.out, out, s.queries}); });
    if (P::metadata::entries(out) == P::metadata::entries(now.out)) now.source = to;
  }

  /// Commits `accepted[i]` (0 … queries) tokens of the batch's i-th request, asks for backups, and fences the step.
  ticket end_step(stream on, step const& s, std::span<int const> accepted) {
    check_open(s, "end_step");
    require(!space_.capturing(on), "end_step: stream", "being captured", "one that is not: what happens between steps cannot be replayed");
    require(accepted.size() == batch_.size(), "end_step: accepted", static_cast<long long>(accepted.size()), "one for each of the " + std::to_string(batch_.size()) + " requests");
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      request_record const& r = book().at(batch_[i].slot);
      require(accepted[i] >= 0 && accepted[i] <= std::min<std::int64_t>(s.queries, r.tokens_max - r.tokens), "end_step: accepted", accepted[i],
              "0 to " + std::to_string(std::min<std::int64_t>(s.queries, r.tokens_max - r.tokens)));
    }
    return guarded([&] {
      commit(on, accepted);
      read_uses(on);
      auto const fence = space_.record(on);
      ring_.close(fence);
      ticket const t = next_ticket();
      log_.add(t, fence, {});
      book().main = t;
      last_end_ = fence;
      unfinished_.push_back(fence);
      open_ = {};
      allocator_.close_step();
      for (request_id id : batch_) allocator_.back_up(book().at(id.slot));
      for (auto const& call : std::exchange(later_, {})) call();
      flush_copies();
      return t;
    });
  }

  // ---- control: at once between steps, at the end of an open one ---------------------------------------------------------------------

  /// Ends a request: everything returns once, after outstanding copies.
  void finish(request_id id) {
    record(id, "finish");
    between_steps([this, id] { allocator_.finish(book().at(id.slot)); });
  }
  /// Ends a request in whatever state it is, an import under way included.
  void abort(request_id id) { finish(id); }
  /// Gives up the request's frames; slot, incarnation and host pages stay. Scratch is dropped.
  void preempt(request_id id) {
    request_record const& r = idle_or_open(id, "preempt");
    require(r.phase == phase::running && r.reserved == r.tokens, "preempt: request", id.slot, "one that is ready and without an import under way");
    between_steps([this, id] { allocator_.preempt(book().at(id.slot)); });
  }
  /// Brings a preempted request back, `tokens` (default: its committed length) being what it will hold soon. May be pending: `ready`.
  outcome<request_id> resume(request_id id, std::int64_t tokens = -1) {
    request_record& r = idle_record(id, "resume");
    require(r.phase == phase::preempted, "resume: request", id.slot, "a preempted one");
    require(tokens <= r.tokens_max, "resume: tokens", tokens, "up to tokens_max, " + std::to_string(r.tokens_max));
    auto const result = allocator_.resume(r, std::max(tokens, r.tokens));
    flush_copies();
    return result;
  }
  /// Keeps the first `tokens` committed tokens.
  void truncate(request_id id, std::int64_t tokens) {
    request_record const& r = idle_or_open(id, "truncate");
    require(r.reserved == r.tokens, "truncate: request", id.slot, "one without an import under way");
    require(tokens >= 0 && tokens <= r.tokens, "truncate: tokens", tokens, "0 to " + std::to_string(r.tokens));
    between_steps([this, id, tokens] { allocator_.truncate(book().at(id.slot), tokens); });
  }
  /// Keeps all pages of the request on the GPU, while a prefill attends densely, say. May be pending: `whole`.
  outcome<request_id> require_whole(request_id id) {
    request_record& r = idle_record(id, "require_whole");
    require(r.phase == phase::running && !r.pinned, "require_whole: request", id.slot, "one that is ready and not required whole yet");
    auto const result = allocator_.require_whole(r);
    flush_copies();
    return result;
  }
  void release_whole(request_id id) {
    request_record& r = idle_record(id, "release_whole");
    require(r.pinned, "release_whole: request", id.slot, "one that is required whole");
    allocator_.release_whole(r);
  }

  // ---- look ------------------------------------------------------------------------------------------------------------------------

  std::int64_t tokens(request_id id) const { return record(id, "tokens").tokens; }
  /// True where every committed page is in a frame that the map names.
  bool whole(request_id id) const { return record(id, "whole").missing == 0; }
  ticket progress() const { return log_.done(); }
  bool reached(ticket t) const { return log_.reached(t); }
  void wait(ticket t) const { log_.synchronize(t); }
  /// Copies that were refused since the last call.
  std::vector<copy_failure> take_failures() { return std::exchange(book().failures, {}); }

  counters counts() const {
    counters c = counts_;
    std::uint64_t n[device_counts];
    space_.peek(n, counters_.get(), sizeof n);
    auto const of = [&](count k) { return n[static_cast<int>(k)]; };
    c.tail_hits = of(count::tail_hits);
    c.lent_hits = of(count::lent_hits);
    c.hot_hits = of(count::hot_hits);
    c.misses = of(count::misses);
    c.fetched_rows = of(count::fetched_rows);
    c.fetched_bytes = of(count::fetched_bytes);
    c.staged_rows = of(count::staged_rows);
    c.invalid = of(count::invalid);
    c.rejected = of(count::rejected);
    c.lost = of(count::lost);
    c.pages = book().counts;
    return c;
  }
  gauges pools() const {
    frame_pool const& f = book().frames;
    gauges g{.frames = f.size(), .frames_free = f.count(frame_state::free), .frames_required = f.count(frame_state::required), .frames_lent = f.count(frame_state::lent),
             .frames_taken = f.count(frame_state::taken), .frames_filling = f.count(frame_state::filling), .frames_revoking = f.count(frame_state::revoking),
             .host_pages = book().hosts.size(), .host_pages_free = book().hosts.free(), .requests = sizes_.requests,
             .frames_promised = allocator_.promised(), .frames_wanted = allocator_.outstanding(), .gpu_bytes = rows_.gpu_bytes(), .host_bytes = rows_.host_bytes()};
    for (auto const& r : book().requests()) {
      g.running += r.phase == phase::running;
      g.waiting += r.phase == phase::waiting;
      g.preempted += r.phase == phase::preempted;
    }
    return g;
  }

  geometry<P> const& local() const { return geometry_; }
  /// Where rows of a source are: address a is at `page_layout` offsets from base, staged rows included.
  source_view const& view(source_id source) const { return rows_.view(geometry_.source(source)); }
  loan_allocator<P> const& allocator() const { return allocator_; }
  resident_map_ref<P> map() const { return state_.map; }

 private:
  struct importing {
    ticket last = ticket::none;
    std::vector<std::pair<int, int>> failed;  ///< page, source
  };
  struct resolved {
    bool done = false;
    metadata_ref out{};
    int source = 0;  ///< whose addresses `out` holds
  };
  struct uses_snapshot {
    ticket at = ticket::none;
    std::vector<request_id> requests;
    int pages = 0;
    std::shared_ptr<std::byte> memory;
  };

  ledger& book() { return allocator_.book(); }
  ledger const& book() const { return allocator_.book(); }
  int map_pages() const { return static_cast<int>(pages_for(sizes_.max_tokens, P::page_tokens)); }
  int writes_stride() const { return sizes_.max_batch * P::max_queries; }

  // ---- construction ----------------------------------------------------------------------------------------------------------------

  /// The sizes, with staging decided; throws on the first illegal one.
  ebb::sizes checked(ebb::sizes s, geometry<P> const& g) {
    auto const positive = [](char const* name, long long v) { require(v > 0, name, v, "1 or more"); };
    positive("frames", s.frames);
    positive("host_pages", s.host_pages);
    positive("requests", s.requests);
    positive("max_batch", s.max_batch);
    positive("max_tokens", s.max_tokens);
    positive("steps_in_flight", s.steps_in_flight);
    require(s.max_tokens <= (std::int64_t{1} << 30), "max_tokens", s.max_tokens, "up to 1073741824");
    require(s.max_batch <= s.requests, "max_batch", s.max_batch, "up to requests, " + std::to_string(s.requests));
    require(s.refill_bytes >= 0, "refill_bytes", s.refill_bytes, "0 or more");
    require(s.hot_rows >= 0, "hot_rows", s.hot_rows, "0 or more");
    require(addressable(s.host_pages, geo::rows_per_page(0) * 1) || s.host_pages > 0, "host_pages", s.host_pages, "1 or more");
    tail_ = tail_pages(P::page_tokens, P::max_queries, s.steps_in_flight);
    hot_ = 0;
    staging_ways_ = 0;
    if constexpr (P::tiers::caches) {
      hot_ = hot_frames(s.hot_rows, P::page_tokens);
      check_rows(s, g);
      bits_ = position_bits(s.max_tokens, g.smallest_ratio());
      word_format const f{bits_, P::tiers::cache::exponent_bits};
      int most = 1;
      for (int set = 0; set < g.sets(); ++set) most = std::max(most, g.groups_of_set(set));
      require(f.stamp_bits() >= 4 && static_cast<int>(f.last_stamp()) / 2 > std::max(most, g.groups()), "max_tokens", s.max_tokens,
              "so few that position bits (" + std::to_string(bits_) + ") leave stamps for " + std::to_string(std::max(most, g.groups())) + " resolves a step in 32 bits");
    } else {
      require(s.hot_rows == 0, "hot_rows", s.hot_rows, "0, where the tiers have no row cache");
    }
    int const least = required_frames(1, P::page_tokens, tail_, hot_, P::tiers::caches);
    require(s.frames >= least, "frames", s.frames, "at least " + std::to_string(least) + ", what one request requires");
    return s;
  }
  void check_rows(ebb::sizes& s, geometry<P> const& g) {
    int fewest = -1;
    int widest = 1;
    for (int set = 0; set < g.sets(); ++set) {
      int const rows = P::page_tokens / g.ratio_of_set(set);
      int const ways = table_ways(hot_, rows);
      require(ways >= P::top_k, "hot_rows", s.hot_rows, "at least " + std::to_string(P::top_k * g.ratio_of_set(set)) + ": a selection of top_k " + std::to_string(P::top_k) + " must fit");
      fewest = fewest < 0 ? ways : std::min(fewest, ways);
      widest = std::max(widest, rows);
    }
    if (s.staging_rows < 0) s.staging_rows = P::tiers::stages ? default_staging_rows(P::max_queries, P::top_k, fewest) : 0;
    require(P::tiers::stages || s.staging_rows == 0, "staging_rows", s.staging_rows, "0, where the tiers have no staging_rows");
    require(fewest + s.staging_rows >= P::max_queries * P::top_k, "staging_rows", s.staging_rows,
            "at least " + std::to_string(P::max_queries * P::top_k - fewest) + ": hot rows and staging must hold max_queries · top_k = " + std::to_string(P::max_queries * P::top_k) + " rows");
    staging_ways_ = ebb::staging_slots(s.staging_rows, widest);
  }
  allocator_sizes allocator_sizes_of(ebb::sizes const& s) const {
    std::int64_t const page = std::max<std::int64_t>(1, geometry_.page_bytes() / geometry_.sources());
    return {s.frames, s.host_pages, s.requests, s.max_tokens, tail_, hot_, static_cast<int>(std::clamp<std::int64_t>(defaults::run_bytes / page, 1, s.host_pages))};
  }

  template <class T>
  T* device(std::size_t n) {
    owned_.push_back(space_.device_memory(std::max<std::size_t>(n, 1) * sizeof(T)));
    return reinterpret_cast<T*>(owned_.back().get());
  }
  void make_tables() {
    std::size_t const requests = static_cast<std::size_t>(sizes_.requests);
    std::size_t const rows = static_cast<std::size_t>(writes_stride());
    header_.assign(static_cast<std::size_t>(header_words::set_stamps + geometry_.sets()), 0);
    state_ = {device<std::uint32_t>(header_.size()), device<row_record>(static_cast<std::size_t>(sizes_.max_batch)), device<std::int32_t>(requests),
              device<std::int32_t>(requests * static_cast<std::size_t>(hot_)), device<std::int32_t>(rows), device<std::int32_t>(rows * static_cast<std::size_t>(geo::ratio_class(geo::largest_ratio) + 1)),
              P::keep::wants_uses ? device<std::uint32_t>(requests * static_cast<std::size_t>(map_pages())) : nullptr, map_.ref(), hot_};
    std::size_t const selected = static_cast<std::size_t>(sizes_.max_batch) * P::max_queries * P::top_k;
    missing_ = device<missing_row>(selected);
    plan_ = device<planned_row>(selected);
    planned_ = device<int>(static_cast<std::size_t>(sizes_.max_batch));
    counters_ = space_.device_memory(device_counts * sizeof(std::uint64_t));
    imports_.resize(requests);
    if constexpr (P::tiers::caches) {
      for (int set = 0; set < geometry_.sets(); ++set) {
        int const ways = table_ways(hot_, P::page_tokens / geometry_.ratio_of_set(set));
        tables_.push_back({device<std::uint32_t>(requests * static_cast<std::size_t>(ways)), ways, {bits_, P::tiers::cache::exponent_bits}, header_words::set_stamps + set, 0, geometry_.groups_of_set(set)});
        next_stamp_.push_back(1);
      }
      staging_ = {device<std::uint32_t>(static_cast<std::size_t>(sizes_.max_batch) * static_cast<std::size_t>(staging_ways_)), staging_ways_, {bits_, 0}, header_words::staging_stamp, 0, geometry_.groups()};
      clear_tables_ = space_.shared_memory(tables_.size() * sizeof(clear_body::table));
      for (std::size_t i = 0; i < tables_.size(); ++i) reinterpret_cast<clear_body::table*>(clear_tables_.get())[i] = {tables_[i].words, tables_[i].ways};
    }
  }

  // ---- checks ----------------------------------------------------------------------------------------------------------------------

  void check_sound() const {
    if (!poison_.empty()) throw std::runtime_error("ebb: this instance is out of use after an error of the device: " + poison_);
  }
  /// A device error leaves streams and memory unknown: it poisons the instance. Refused arguments and shortages do not.
  template <class F>
  auto guarded(F f) {
    check_sound();
    try {
      return f();
    } catch (std::logic_error const&) {
      throw;
    } catch (std::exception const& e) {
      if constexpr (requires { space_.broken(); }) {
        if (space_.broken()) poison_ = e.what();
      }
      throw;
    }
  }
  request_record const& record(request_id id, char const* call) const {
    bool const known = id.slot >= 0 && id.slot < sizes_.requests && book().at(id.slot).phase != phase::vacant && book().at(id.slot).id == id;
    require(known, (std::string{call} + ": request").c_str(), "slot " + std::to_string(id.slot) + ", incarnation " + std::to_string(id.incarnation), "a live request's handle");
    return book().at(id.slot);
  }
  request_record& idle_record(request_id id, char const* call) {
    check_sound();
    record(id, call);
    bool const busy = open_.number != 0 && std::find(batch_.begin(), batch_.end(), id) != batch_.end();
    require(!busy, (std::string{call} + ": request").c_str(), id.slot, "one that is not in the open step");
    return book().at(id.slot);
  }
  request_record const& idle_or_open(request_id id, char const* call) {
    check_sound();
    return record(id, call);
  }
  void check_open(step const& s, char const* call) const {
    check_sound();
    require(s.number != 0 && s.number == open_.number, (std::string{call} + ": step").c_str(), static_cast<long long>(s.number), "the open step, " + std::to_string(open_.number));
  }
  void check_batch(stream on, batch const& b) const {
    require(open_.number == 0, "begin_step: step", static_cast<long long>(open_.number), "none open: end_step comes first");
    require(!space_.capturing(on), "begin_step: stream", "being captured", "one that is not: what happens between steps cannot be replayed");
    int const n = static_cast<int>(b.requests.size());
    require(n <= sizes_.max_batch, "begin_step: requests", n, "up to max_batch, " + std::to_string(sizes_.max_batch));
    require(b.queries >= 1 && b.queries <= P::max_queries, "begin_step: queries", b.queries, "1 to " + std::to_string(P::max_queries));
    require(b.padded == 0 || (b.padded >= n && b.padded <= sizes_.max_batch), "begin_step: padded", b.padded, std::to_string(n) + " to " + std::to_string(sizes_.max_batch));
    for (int i = 0; i < n; ++i) {
      request_id const id = b.requests[static_cast<std::size_t>(i)];
      request_record const& r = record(id, "begin_step");
      require(allocator_.ready(r) && r.reserved == r.tokens, "begin_step: request", id.slot, "one that is ready, not pending, preempted or importing");
      require(r.tokens < r.tokens_max, "begin_step: tokens", r.tokens, "less than the request's tokens_max, " + std::to_string(r.tokens_max));
      require(std::find(b.requests.begin(), b.requests.begin() + i, id) == b.requests.begin() + i, "begin_step: request", id.slot, "named once");
    }
  }
  template <class F>
  void between_steps(F call) {
    if (open_.number != 0) {
      later_.push_back(call);
      return;
    }
    guarded([&] {
      call();
      flush_copies();
    });
  }

  // ---- imports ---------------------------------------------------------------------------------------------------------------------

  int first_import(request_record const& r) const { return static_cast<int>(r.tokens / P::page_tokens); }
  /// A reserved page's rows also go to its host page: where it has no frame, or where it will be full and what is before is there.
  bool wants_host(request_record const& r, int p) const {
    if (!book().has_frame(r, p)) return true;
    bool const full = std::int64_t{p + 1} * P::page_tokens <= r.reserved;
    return P::backup::when_sealed && full && book().page(r, p).backed == book().tokens_in(r, p);
  }
  ticket enqueue_import(request_record& r, int s, std::byte const* rows, std::int64_t stride, std::vector<page_import> const& pages) {
    if (pages.empty()) return ticket::none;
    space_.wait(side_, last_end_);
    source_view const& v = rows_.view(s);
    int const width = std::min(copy_width(stride), copy_width(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rows) % 16)));
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
    ticket const t = next_ticket();
    log_.add(t, space_.record(side_), {});
    for (int p = first_import(r); p < static_cast<int>(r.pages.size()); ++p) book().page(r, p).busy = t;
    imports_[static_cast<std::size_t>(r.id.slot)].last = t;
    return t;
  }

  // ---- steps -----------------------------------------------------------------------------------------------------------------------

  ticket next_ticket() {
    book().last = book().next_job();
    return book().last;
  }
  void limit_steps() {
    while (!unfinished_.empty() && (static_cast<int>(unfinished_.size()) >= sizes_.steps_in_flight || space_.reached(unfinished_.front()))) {
      space_.synchronize(unfinished_.front());
      unfinished_.pop_front();
    }
  }
  /// Decisions see what is done up to `progress`.
  void advance(std::optional<ticket> progress) {
    ticket const until = progress ? *progress : log_.done();
    require(until <= book().last, "begin_step: progress", static_cast<long long>(until), "up to the newest ticket, " + std::to_string(static_cast<std::uint64_t>(book().last)));
    if (until <= book().done) return;
    log_.take_until(until, [&](std::vector<page_copy> const& copies) {
      for (page_copy const& c : copies) book().complete_copy(c);
    });
    book().done = until;
    if constexpr (P::keep::wants_uses) {
      for (uses_snapshot& s : uses_) {
        if (s.at == ticket::none || s.at > until) continue;
        auto const* words = reinterpret_cast<std::uint32_t const*>(s.memory.get());
        for (std::size_t i = 0; i < s.requests.size(); ++i) {
          request_record& r = book().at(s.requests[i].slot);
          if (r.phase != phase::vacant && r.id == s.requests[i]) allocator_.set_uses(r, {words + i * static_cast<std::size_t>(s.pages), static_cast<std::size_t>(s.pages)});
        }
        s.at = ticket::none;
      }
    }
  }

  /// Enqueues the copies that decisions asked for, as one job of the side stream behind the last step's fence.
  void flush_copies() {
    effects& out = book().out;
    if (out.copies.empty()) return;
    space_.wait(side_, last_end_);
    std::vector<page_move> moves;
    for (page_copy const& c : out.copies) {
      moves.push_back({index(c.at.frame), index(c.at.host), c.from, c.to, c.kind == copy_kind::backup ? 1 : 0});
      std::uint64_t bytes = 0;
      for (int s = 0; s < geometry_.sources(); ++s) bytes += static_cast<std::uint64_t>(c.to / geometry_.ratio(s) - c.from / geometry_.ratio(s)) * P::row.total();
      (c.kind == copy_kind::backup ? counts_.backed_up_bytes : c.kind == copy_kind::refill ? counts_.refilled_bytes : counts_.restored_bytes) += bytes;
    }
    for (std::size_t at = 0; at < moves.size();) {
      std::size_t const n = std::min(moves.size() - at, ring_.largest() / sizeof(page_move));
      auto const* items = ring_.put(std::span<page_move const>{moves.data() + at, n});
      space_.run(side_, moving_teams, move_body<P>{items, static_cast<int>(n), rows_.on_device(), geometry_.sources()});
      ring_.close(space_.record(side_));
      at += n;
    }
    ticket const t = next_ticket();
    log_.add(t, space_.record(side_), std::exchange(out.copies, {}));
  }

  /// Copies, waits, then tables, map and header of the step, in stream order.
  void upload(stream on) {
    flush_copies();
    effects& out = book().out;
    for (ticket t : out.waits) space_.wait(on, log_.event(t));
    out.waits.clear();
    clear(on);
    rebase(on);

    bool direct = true;
    std::vector<row_record> rows;
    for (request_id id : batch_) {
      request_record const& r = book().at(id.slot);
      direct &= r.missing == 0;
      rows.push_back({id.slot, allocator_.tail_first(r), static_cast<std::int32_t>(std::min<std::int64_t>(r.tokens + open_.queries, r.tokens_max))});
    }
    header_[header_words::requests] = static_cast<std::uint32_t>(batch_.size());
    header_[header_words::direct] = direct;
    std::vector<length_word> lengths;
    for (int slot : unique(out.lengths)) lengths.push_back({slot, static_cast<std::int32_t>(book().at(slot).tokens)});
    std::vector<std::int32_t> hot;
    for (int slot : unique(out.hot)) {
      if (book().at(slot).hot.empty()) continue;
      hot.push_back(slot);
      for (frame_id f : book().at(slot).hot) hot.push_back(index(f));
    }
    std::vector<map_word> words;
    for (map_patch const& p : out.map) words.push_back({p.slot, p.page, p.entry});
    out.lengths.clear();
    out.hot.clear();
    out.map.clear();
    std::size_t at = 0;
    do {
      std::size_t const n = std::min(words.size() - at, ring_.largest() / 2 / sizeof(map_word));
      bool const last = at + n == words.size();
      auto put = [&]<class T>(std::vector<T> const& v) { return ring_.put(std::span<T const>{last ? v : std::vector<T>{}}); };
      apply_body<P> const body{state_,
                               put(header_),
                               last ? static_cast<int>(header_.size()) : 0,
                               put(rows),
                               last ? static_cast<int>(rows.size()) : 0,
                               put(lengths),
                               last ? static_cast<int>(lengths.size()) : 0,
                               put(hot),
                               last && hot_ > 0 ? static_cast<int>(hot.size()) / (hot_ + 1) : 0,
                               ring_.put(std::span<map_word const>{words.data() + at, n}),
                               static_cast<int>(n)};
      int const per_item = apply_body<P>::words_per_item;
      space_.run(on, 1 + (static_cast<int>(n) + per_item - 1) / per_item, body);
      ring_.close(space_.record(on));
      at += n;
    } while (at < words.size());
  }
  /// Later patches of a slot win, so the words of one are applied once.
  static std::vector<int> unique(std::vector<int> slots) {
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    return slots;
  }
  void clear(stream on) {
    std::vector<std::int32_t> const slots = unique(std::exchange(book().out.clear, {}));
    if (slots.empty() || tables_.empty()) return;
    int const sets = static_cast<int>(tables_.size());
    auto const* list = ring_.put(std::span<std::int32_t const>{slots});
    space_.run(on, static_cast<int>(slots.size()) * sets, clear_body{list, reinterpret_cast<clear_body::table const*>(clear_tables_.get()), sets, state_.uses, map_pages()});
    ring_.close(space_.record(on));
  }
  /// Gives every table its stamps for this step, and lowers old stamps before they run out.
  void rebase(stream on) {
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      table_ref const& t = tables_[i];
      std::uint32_t const last = t.format.last_stamp();
      if (next_stamp_[i] + static_cast<std::uint32_t>(t.steps) > last) {
        std::uint32_t const by = next_stamp_[i] - 1 - last / 2;
        space_.run(on, sizes_.requests, rebase_body{t.words, t.ways, t.format, by});
        next_stamp_[i] -= by;
      }
      header_[static_cast<std::size_t>(t.stamp_word)] = next_stamp_[i];
      next_stamp_[i] += static_cast<std::uint32_t>(t.steps);
    }
    if (staging_.ways > 0 && next_staging_ + static_cast<std::uint32_t>(staging_.steps) > staging_.format.last_stamp()) {
      space_.zero(on, staging_.words, static_cast<std::size_t>(sizes_.max_batch) * static_cast<std::size_t>(staging_.ways) * sizeof(std::uint32_t));
      next_staging_ = 1;
    }
    header_[header_words::staging_stamp] = next_staging_;
    next_staging_ += static_cast<std::uint32_t>(geometry_.groups());
  }

  resolve_body<P> resolve_of(int g, step const& s, std::int32_t const* selection, metadata_ref out) const {
    int const set = geometry_.set_of_group(g);
    int ordinal = 0;
    for (int k = 0; k < g; ++k) ordinal += geometry_.set_of_group(k) == set;
    resolve_body<P> body{.step = state_, .hot = {}, .staging = staging_, .sources = {}, .source_count = geometry_.sources_of_set(set), .rows_per_page = P::page_tokens / geometry_.ratio_of_set(set),
                         .ratio = geometry_.ratio_of_set(set), .queries = s.queries, .selection = selection, .out = out, .missing = missing_, .plan = plan_, .planned = planned_,
                         .counters = reinterpret_cast<std::uint64_t*>(counters_.get()), .zero_address = sizes_.frames * (P::page_tokens / geometry_.ratio_of_set(set))};
    if (!tables_.empty()) body.hot = tables_[static_cast<std::size_t>(set)];
    body.hot.ordinal = ordinal;
    body.staging.ordinal = g;
    for (int k = 0; k < body.source_count; ++k) body.sources[static_cast<std::size_t>(k)] = rows_.view(geometry_.source_of_set(set, k));
    return body;
  }

  void commit(stream on, std::span<int const> accepted) {
    std::vector<length_word> words;
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      words.push_back({batch_[i].slot, accepted[i]});
      request_record& r = book().at(batch_[i].slot);
      r.tokens += accepted[i];
      r.reserved = r.tokens;
    }
    if (words.empty()) return;
    auto const* list = ring_.put(std::span<length_word const>{words});
    space_.run(on, 1, commit_body<P>{state_, list, static_cast<int>(words.size())});
  }

  /// Every `use_period` steps the batch's use counts go to the host; they count once the step's ticket is done.
  void read_uses(stream on) {
    if constexpr (P::keep::wants_uses) {
      if (batch_.empty() || counts_.steps % defaults::use_period != 0) return;
      uses_snapshot* into = nullptr;
      for (uses_snapshot& s : uses_) into = s.at == ticket::none ? &s : into;
      if (into == nullptr) return;
      if (!into->memory) into->memory = space_.shared_memory(static_cast<std::size_t>(sizes_.max_batch) * static_cast<std::size_t>(map_pages()) * sizeof(std::uint32_t));
      into->requests = batch_;
      into->pages = 0;
      std::vector<std::int32_t> slots;
      for (request_id id : batch_) {
        slots.push_back(id.slot);
        into->pages = std::max(into->pages, static_cast<int>(book().at(id.slot).pages.size()));
      }
      into->at = book().next_job();
      auto const* list = ring_.put(std::span<std::int32_t const>{slots});
      space_.run(on, static_cast<int>(slots.size()), uses_body<P>{state_, list, into->pages, reinterpret_cast<std::uint32_t*>(into->memory.get())});
    }
  }

  S space_;
  geometry<P> geometry_;
  int tail_ = 0;
  int hot_ = 0;
  int staging_ways_ = 0;
  int bits_ = 0;
  ebb::sizes sizes_;
  stream side_;
  loan_allocator<P> allocator_;
  arenas<P, S> rows_;
  resident_map<P, S> map_;
  upload_ring<S> ring_;
  ticket_log<S, std::vector<page_copy>> log_;

  std::vector<std::shared_ptr<std::byte>> owned_;
  step_ref<P> state_{};
  std::vector<std::uint32_t> header_;
  std::vector<table_ref> tables_;  ///< of each set
  std::vector<std::uint32_t> next_stamp_;
  table_ref staging_;
  std::uint32_t next_staging_ = 1;
  std::shared_ptr<std::byte> clear_tables_;
  missing_row* missing_ = nullptr;
  planned_row* plan_ = nullptr;
  int* planned_ = nullptr;
  std::shared_ptr<std::byte> counters_;
  std::array<uses_snapshot, 2> uses_{};

  step open_;
  std::vector<request_id> batch_;
  std::vector<resolved> resolved_;  ///< of each group in the open step
  std::vector<std::function<void()>> later_;
  std::vector<importing> imports_;
  std::deque<typename S::event> unfinished_;
  typename S::event last_end_{};
  counters counts_{};
  std::string poison_;
};

}  // namespace ebb

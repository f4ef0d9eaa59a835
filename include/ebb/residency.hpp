#pragma once
/// The class an engine holds: resident map, loans, host store and resolver, composed by the step protocol.

#include <ebb/acceptances.hpp>
#include <ebb/counters.hpp>
#include <ebb/imports.hpp>
#include <ebb/policy_parts.hpp>
#include <ebb/side_copies.hpp>
#include <ebb/step_tables.hpp>

#include <functional>
#include <numeric>
#include <optional>
#include <span>

namespace ebb {

/// The requests of a step. `padded`: requests that captured kernels are launched for, 0 = as many as there are. Every
/// request has `queries` queries. Or they differ: `counts` says how many each has, or the device array `offsets`
/// ([padded + 1], rising from 0, the engine's until end_step's ticket) where each one's begin, at most `queries` of one
/// request; the arrays of a step then have `rows` rows in all (0: as many as `counts` names), of which those behind the
/// last request's are padding. A captured step is launched for batches of its own kind, `padded` and `rows` alone; a batch
/// without requests that names `rows` is of the kind of `counts`.
struct batch {
  std::span<request_id const> requests = {};
  int queries = 1;
  int padded = 0;
  std::span<int const> counts = {};
  std::int32_t const* offsets = nullptr;
  int rows = 0;
};

/// Residency of all sessions of one GPU. See docs/integrate.md for the protocol of a step and what the engine promises.
///
/// Concurrency: one control thread; counts(), pools() and progress() belong to it, too.
/// Stream: calls that take a stream enqueue on it and do not wait, but begin_step, which waits for the end of step n −
/// steps_in_flight and for the work up to `progress`; where more small arguments are under way than the upload ring holds,
/// any call waits for the oldest.
/// Errors: std::invalid_argument refuses an argument or a call's order: nothing changed. `frames_refused`: see begin_step.
/// Whatever else is thrown inside a call that decides something puts the instance out of use; every later call says so.
template <policy P, space S>
class residency {
  static_assert(check_policy<P>() && check_parts<P>());
  using geo = geometry_of<P>;

 public:
  using stream = typename S::stream;
  using metadata_ref = typename P::metadata::ref;

  /// Throws: std::invalid_argument naming parameter, value and legal range; what the space throws where memory falls
  /// short.
  residency(S space, ebb::sizes const& sizes)
      : space_{space},
        geometry_{sizes.layers},
        sizing_{sizes, geometry_},
        allocator_{make_books(allocator_sizes_of(sizing_))},
        rows_{space,
              geometry_,
              {sizes.frames, sizes.host_pages, sizing_.staging_ways, sizes.max_batch, sizes.host, sizes.arenas,
               sizes.host_memory}},
        ring_{space, std::max(std::size_t{8} << 20, 4 * sizing_.largest_upload())},
        copies_{space, geometry_, rows_, ring_, allocator_.book()},
        tables_{space, geometry_, sizing_, rows_, ring_, allocator_},
        sides_{space, geometry_, rows_, tables_},
        imports_{space, geometry_, rows_, allocator_, copies_, sizes.requests},
        acceptances_{space, sizing_.s.steps_in_flight + 1, sizing_.s.max_batch} {
    if constexpr (P::draft.layers > 0) rings_.emplace(space, P::draft, P::max_queries, sizing_.s.draft_rings);
    book().refuses = [space](copy_kind kind, int slot, int page) { return space.refuses_copy(kind, slot, page); };
  }
  residency(residency const&) = delete;
  residency& operator=(residency const&) = delete;
  /// Waits for everything enqueued through this instance.
  ~residency() {
    auto const wait = [](auto f) {
      try {
        f();
      } catch (...) {
      }
    };
    if (begun_on_) wait([&] { space_.synchronize(space_.record(*begun_on_)); });
    for (auto const& e : unfinished_) wait([&] { space_.synchronize(e); });
    wait([&] { sides_.drain(); });
    wait([&] { copies_.drain(); });
  }

  // ---- admission: decided at once

  /// Admits a request that may grow to `tokens_max` tokens; `tokens`: how many will be imported first, so that their
  /// frames are ready. Returns: a handle, perhaps still pending (`ready`), or the limiting pool with numbers. `hold`: a
  /// promise made earlier, used up.
  outcome<request_id> admit(std::int64_t tokens_max, std::int64_t tokens = 0, hold_id hold = hold_id::none) {
    return decided([&] {
      auto const id = allocator_.admit(tokens_max, tokens, hold);
      if (id) take_ring(book().at(id->slot));
      return id;
    });
  }
  /// False while frames of an admission or resumption are on their way; a batch that names such a request is refused.
  bool ready(request_id id) const { return allocator_.ready(record(id, "ready")); }
  /// Promises room to a queued request: other admissions leave it alone and refill never takes its frames. Holds are
  /// served in the order in which they were given: room that an older one keeps is not a younger one's.
  /// Returns: a shortage where it can never be had.
  outcome<hold_id> hold(std::int64_t tokens_max) {
    return decided([&] { return allocator_.hold(tokens_max); });
  }
  /// Gives a hold up. Throws: std::invalid_argument for one that was used or released.
  void release(hold_id id) {
    decided([&] { allocator_.release(id); });
  }

  /// Frames for the engine's own use. `collect` hands them over once earlier readers and writers are done, by
  /// begin_step's progress.
  outcome<take_id> take(int frames) {
    return decided([&] { return allocator_.take(frames); });
  }
  std::optional<std::vector<frame_id>> collect(take_id id) {
    return decided([&] { return allocator_.collect(id); });
  }
  /// Returns frames that were taken. Stream: what `on` holds so far is the engine's last work on them; whatever uses
  /// them next waits for it there.
  void give(stream on, std::span<frame_id const> frames) {
    require(!space_.capturing(on), "give: stream", "being captured", "one that is not");
    allocator_.require_collected(frames, "give: frame");
    decided([&] { allocator_.give(frames, copies_.fence_engine(on)); });
  }

  // ---- history that comes in

  /// Makes room for history up to `tokens`. Returns the ticket after which the engine may write to `import_pages`
  /// itself.
  ticket reserve_import(request_id id, std::int64_t tokens) {
    request_record& r = idle_record(id, "reserve_import");
    require(r.phase == phase::running, "reserve_import: request", r.id.slot, "one that is ready");
    require(tokens > r.tokens && tokens <= r.tokens_max, "reserve_import: tokens", tokens, r.tokens + 1, " to ",
            r.tokens_max);
    require(r.reserved == r.tokens, "reserve_import: request", r.id.slot, "one without an import under way");
    return decided([&] { return imports_.reserve(r, tokens); });
  }
  /// Where rows of a source of the reserved pages belong. Effects: pages on loan go to the host store alone, so that
  /// every address stays the request's until publish.
  std::vector<import_page> import_pages(request_id id, source_id source) {
    request_record& r = idle_record(id, "import_pages");
    require(r.reserved > r.tokens, "import_pages: request", r.id.slot, "one with room from reserve_import");
    int const s = geometry_.source(source);
    return decided([&] { return imports_.pages(r, s); });
  }
  /// Copies the source's rows of tokens [committed, reserved) in, on the side stream; row 0 is the first that those
  /// tokens complete. Requires: `rows` is written already, readable by bodies (device, pinned or managed memory on a
  /// GPU), and stays so until the returned ticket is reached, also where the request is aborted before.
  ticket import(request_id id, source_id source, import_rows rows) {
    request_record& r = idle_record(id, "import");
    require(r.reserved > r.tokens, "import: request", r.id.slot, "one with room from reserve_import");
    int const s = geometry_.source(source);
    std::int64_t const stride = rows.row_stride == 0 ? P::row.total() : rows.row_stride;
    require(rows.rows != nullptr, "import: rows", "null", "readable by bodies");
    require(stride >= P::row.total(), "import: row_stride", stride, "at least ", P::row.total());
    return guarded([&] { return imports_.copy(r, s, rows.rows, stride); });
  }
  /// The history reaches `tokens` from the next begin_step on, ordered after the imports into it.
  /// Throws: std::runtime_error naming the page where an import was refused and not repeated; std::invalid_argument where
  /// a source has rows to come and neither `import` nor `import_pages` was called for it. Nothing changed then.
  void publish(request_id id, std::int64_t tokens) {
    request_record& r = idle_record(id, "publish");
    require(tokens > r.tokens && tokens <= r.reserved, "publish: tokens", tokens, r.tokens + 1, " to ", r.reserved,
            ", the reserved room");
    imports_.check_publish(r, tokens);
    decided([&] { imports_.publish(r, tokens); });
  }
  /// Taken frames that the engine wrote become the request's next pages, without a copy. Stream: the writes are what `on`
  /// holds so far; steps and backups of these pages wait for them there.
  /// Requires: the committed length is on a page boundary.
  void adopt(stream on, request_id id, std::span<frame_id const> frames, std::int64_t tokens) {
    request_record& r = idle_record(id, "adopt");
    require(r.phase == phase::running && r.reserved == r.tokens, "adopt: request", r.id.slot,
            "one that is ready and without an import under way");
    require(r.tokens % P::page_tokens == 0, "adopt: committed tokens", r.tokens, "a multiple of page_tokens");
    require(tokens > r.tokens && tokens <= r.tokens_max &&
                book().pages_of(tokens) - book().pages_of(r.tokens) == static_cast<int>(frames.size()),
            "adopt: tokens", tokens, "as many as fill ", frames.size(), " frames behind ", r.tokens,
            " tokens, up to tokens_max");
    require(!space_.capturing(on), "adopt: stream", "being captured", "one that is not");
    allocator_.require_collected(frames, "adopt: frame");
    decided([&] {
      if (P::draft.layers > 0) r.draft_from = tokens;
      if (r.drafted < r.tokens) r.draft_from = r.tokens;
      allocator_.adopt(r, frames, tokens, copies_.fence_engine(on));
    });
  }

  // ---- a step

  /// Decides who keeps what for this step and uploads it. `progress`: decisions see copies up to this ticket (default:
  /// all that are done); ranks that pass the same value decide the same.
  /// Stream: whatever `on` gets from here on is ordered behind the step before, whose stream may be another one.
  /// Throws: std::invalid_argument for a batch it refuses, nothing changed then; `frames_refused` where a request lacks a
  /// frame because the space refused the copies that would free or fill one: no step is open then, and the call may be
  /// repeated.
  step begin_step(stream on, batch const& b, std::optional<ticket> progress = {}) {
    check_sound();
    require(open_.number == 0, "begin_step: step", static_cast<long long>(open_.number),
            "none open: end_step comes first");
    ticket const asked = progress.value_or(ticket::none);
    require(asked <= book().last, "begin_step: progress", static_cast<long long>(asked), "up to the newest ticket, ",
            static_cast<long long>(book().last));
    check_batch(on, b);
    auto const range = named_range(space_, "ebb begin_step");
    enqueued([&] { limit_steps(); });
    guarded([&] {
      advance(progress);
      settle([&](std::uint64_t step, ticket at) {
        return at <= book().done || step + static_cast<std::uint64_t>(sizing_.s.steps_in_flight) <= steps_ + 1;
      });
    });
    for (request_id id : b.requests) {
      bool const stays = !waits(id) && allocator_.ready(book().at(id.slot));
      if (!stays) refuse("begin_step", "request", id.slot, "one that no earlier call preempts, truncates or finishes");
    }
    return guarded([&] {
      allocator_.settle();
      queries_.assign(b.counts.begin(), b.counts.end());
      if (b.counts.empty()) queries_.assign(b.requests.size(), b.queries);
      for (std::size_t i = 0; i < b.requests.size(); ++i) {
        request_record& r = book().at(b.requests[i].slot);
        allocator_.grow(r, r.writable(queries_[i] + geo::drafts_ahead));
      }
      allocator_.serve();
      allocator_.refill(sizing_.refill_pages(geometry_.page_bytes()));
      ++steps_;
      open_ = opened(b);
      batch_.assign(b.requests.begin(), b.requests.end());
      resolved_.assign(static_cast<std::size_t>(geometry_.groups()), false);
      sides_.begin();
      begun_on_ = on;
      if (!unfinished_.empty()) space_.wait(on, unfinished_.back());  // of another stream, perhaps
      tables_.upload(on, open_, batch_, queries_, is_ragged(b) && b.offsets == nullptr, copies_);
      allocator_.open_step();
      return open_;
    });
  }

  /// Head of the captured part: write addresses and causal bounds of every query, from the committed lengths on the
  /// device.
  void addresses(stream on, step const& s) {
    check_open(s, "addresses");
    enqueued([&] { space_.run(on, s.padded, tables_.addresses(s.shape)); });
  }
  /// Device array `[rows]`: the row address where a query's token is written, −1 where it completes no row of the source.
  std::int32_t const* write_addresses(source_id source) const { return tables_.writes(geometry_.source(source)); }
  /// The same for tokens that the engine names, device array `[rows]` in `tokens.positions`: of a drafter that writes
  /// ahead within the step, say. −1 for a token that is committed (for a drafter's source: by the drafter), that lies
  /// behind the room of the step (the step's queries, for a drafter max_queries more), or that completes no row.
  void write_addresses(stream on, step const& s, source_id source, selected const& tokens, std::int32_t* out) {
    check_open(s, "write_addresses");
    check_selected(s, tokens, "write_addresses: tokens", false);
    require(out != nullptr, "write_addresses: out", "null", "a device array");
    int const k = geometry_.source(source);
    enqueued([&] { space_.run(on, s.padded, tables_.places(s, k, tokens, out)); });
  }
  /// Device array `[rows]`: exclusive causal bound in tokens.
  std::int32_t const* bounds() const { return tables_.ref().bounds; }

  /// Resolves a group's selection, device array `[rows][top_k]`, into metadata for the first source of its set; rows that
  /// are missing are fetched for that source here, for the others beside the layers (`replay`). The addresses hold until
  /// the next resolve. Capturable. Waits, on the stream, for candidates announced to its table and for all copies of the
  /// group before. Requires: `addresses` ran in this step; without it every position is rejected.
  void resolve(stream on, step const& s, group_id group, std::int32_t const* selection, metadata_ref out) {
    resolve(on, s, group, selected{selection}, out);
  }
  void resolve(stream on, step const& s, group_id group, selected const& selection, metadata_ref out) {
    check_open(s, "resolve");
    int const g = geometry_.group(group);
    char& resolved = resolved_[static_cast<std::size_t>(g)];
    int const passes = g == geometry_.drafter() ? P::drafter_passes : 1;
    require(selection.pass >= 0 && selection.pass < passes, "resolve: pass", selection.pass, "0 to ", passes - 1);
    require(selection.pass >= resolved, "resolve: group", index(group),
            "a group that was not resolved in this step yet");
    check_selected(s, selection, "resolve: selection", true);
    check_out(out, "resolve: out");
    auto const range = named_range(space_, "ebb resolve");
    check_joined(on, "resolve");
    enqueued([&] {
      sides_.before_resolve(on, geometry_.set_of_group(g));
      space_.run(on, s.padded, tables_.resolve(g, s, selection, out));
      sides_.resolved(on, g, out, s.padded, tables_.shape_of(s, selection).rows);
    });
    resolved = static_cast<char>(selection.pass + 1);
  }
  /// Metadata of another source of the set, from what `group`'s resolve of this step wrote, once the source's rows are
  /// there; `on` waits for them. Sources come in the order of the set, each after everything that reads the one before
  /// is enqueued on `on`: the copy for the source behind it starts here and may reuse the slots of the one before it.
  /// Requires: the resolve's metadata is unchanged. Throws: std::invalid_argument unless the group is the one that this
  /// step resolved last: later resolves reuse its slots, and an earlier step's addresses are never given.
  void replay(stream on, step const& s, group_id group, source_id source, metadata_ref out) {
    check_open(s, "replay");
    int const g = geometry_.group(group);
    int const to = geometry_.source(source);
    require(sides_.group() == g, "replay: group", index(group), "the group that this step resolved last");
    check_out(out, "replay: out");
    require(geometry_.set_of_source(to) == geometry_.set_of_group(g), "replay: source", index(source),
            "a source of the group's set");
    int k = 0;
    while (geometry_.source_of_set(geometry_.set_of_group(g), k) != to) ++k;
    require(k >= sides_.next(), "replay: source", index(source), "one at or behind the source that was given last");
    check_joined(on, "replay");
    enqueued([&] { sides_.replay(on, k, out); });
  }
  /// Copies announced candidates into the hot rows of the group's table, beside the stream, for every source of its set.
  /// Comes before the group's own resolve and behind the resolves of earlier groups of its table. The table's next resolve
  /// waits for the copies, finds what is there and fetches the rest on demand: exact either way. Nothing that the
  /// table's resolves of this step gave out is evicted. Capturable; see `join`. Requires: `addresses` ran in this step.
  void prefetch(stream on, step const& s, group_id group, candidates const& pool)
    requires(P::tiers::caches && P::candidate_pool > 0)
  {
    check_open(s, "prefetch");
    int const g = geometry_.group(group);
    require(!resolved_[static_cast<std::size_t>(g)], "prefetch: group", index(group),
            "a group that was not resolved in this step yet");
    require(pool.positions != nullptr, "prefetch: candidates", "null", "a device array");
    require(pool.size >= 1 && pool.size <= P::candidate_pool, "prefetch: size", pool.size, "1 to candidate_pool, ",
            P::candidate_pool);
    check_joined(on, "prefetch");
    auto const range = named_range(space_, "ebb prefetch");
    enqueued([&] { sides_.prefetch(on, s, g, pool); });
  }
  /// Whether the copies of the last `prefetch` of the group's table are done; true where there was none. Requires: it was
  /// not captured.
  bool prefetched(group_id group) const { return sides_.prefetched(geometry_.set_of_group(geometry_.group(group))); }
  /// What is enqueued on `on` from here on comes after all copies beside it. Belongs at the end of a captured part that
  /// prefetches, or resolves a set of several sources: a capture may not leave work that nothing waits for. Where one ended
  /// without it, its graph must not be launched; `join` on a stream that is not captured lets the step go on.
  void join(stream on, step const& s) {
    check_open(s, "join");
    enqueued([&] { sides_.join(on); });
  }

  /// Commits `accepted[i]` (0 … queries) tokens of the batch's i-th request, asks for backups, and fences the step.
  /// `drafted`: what the own committed length of a drafter with full history grows by, each; by default it is as far as
  /// the target. One that falls behind more than max_queries is given up: its rows count from here on.
  ticket end_step(stream on, step const& s, std::span<int const> accepted, std::span<int const> drafted = {}) {
    check_end(on, s);
    require(drafted.empty() || drafted.size() == batch_.size(), "end_step: drafted",
            static_cast<long long>(drafted.size()), "none, or one for each of the ", batch_.size(), " requests");
    for (int d : drafted) require(d >= 0, "end_step: drafted", d, "0 or more");
    require(accepted.size() == batch_.size(), "end_step: accepted", static_cast<long long>(accepted.size()),
            "one for each of the ", batch_.size(), " requests");
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      request_record const& r = book().at(batch_[i].slot);
      std::int64_t const room = r.tokens_max - r.tokens - r.pending;  // below 0 where earlier steps may have filled it
      std::int64_t const most = std::clamp<std::int64_t>(room, 0, queries_[i]);
      require(accepted[i] >= 0 && accepted[i] <= most, "end_step: accepted", accepted[i], "0 to ", most);
    }
    auto const range = named_range(space_, "ebb end_step");
    return guarded([&] {
      std::vector<accepted_word> words;
      for (std::size_t i = 0; i < batch_.size(); ++i)
        words.push_back({batch_[i].slot, accepted[i], drafted.empty() ? -1 : drafted[i]});
      // A drafter's own length depends on the order of the steps: where an earlier one's numbers are not known yet, these
      // come behind them.
      return end(on, s, words, on_device{nullptr}, P::drafter_group < 0 || acceptances_.empty());
    });
  }
  /// The same for numbers that only the device knows yet. The host learns them when a later begin_step waits for this
  /// step, or sees its ticket done; until then `tokens` gives what is certain, room for the most is kept, and what
  /// depends on the length (preempt, truncate) waits.
  ticket end_step(stream on, step const& s, on_device accepted) {
    check_end(on, s);
    require(accepted.accepted != nullptr, "end_step: accepted", "null", "a device array");
    auto const range = named_range(space_, "ebb end_step");
    return guarded([&] {
      std::vector<accepted_word> words;
      for (request_id id : batch_) words.push_back({id.slot, 0, -1});
      return end(on, s, words, accepted, false);
    });
  }

  // ---- control: at once between steps, at the end of an open one

  /// Ends a request: everything returns once, after outstanding copies.
  void finish(request_id id) {
    idle_or_open(id, "finish");
    at_end_of_step({id, waiting_call::finish, 0});
  }
  /// Ends a request in whatever state it is, an import under way included.
  void abort(request_id id) { finish(id); }
  /// Gives up the request's frames; slot, incarnation and host pages stay. Scratch is dropped.
  void preempt(request_id id) {
    request_record const& r = idle_or_open(id, "preempt");
    require(r.phase == phase::running && r.reserved == r.tokens && !waits(id, waiting_call::preempt),
            "preempt: request", id.slot, "one that is ready and without an import under way");
    at_end_of_step({id, waiting_call::preempt, 0});
  }
  /// Brings a preempted request back, `tokens` (default: its committed length) being what it will hold soon. May be
  /// pending: `ready`. `hold`: a promise made earlier, used up.
  outcome<request_id> resume(request_id id, std::int64_t tokens = -1, hold_id hold = hold_id::none) {
    request_record& r = idle_record(id, "resume");
    require(r.phase == phase::preempted, "resume: request", id.slot, "a preempted one");
    require(tokens <= r.tokens_max, "resume: tokens", tokens, "up to tokens_max, ", r.tokens_max);
    return decided([&] {
      auto const resumed = allocator_.resume(r, std::max(tokens, r.tokens), hold);
      if (resumed) take_ring(r);
      return resumed;
    });
  }
  /// Keeps the first `tokens` committed tokens.
  void truncate(request_id id, std::int64_t tokens) {
    request_record const& r = idle_or_open(id, "truncate");
    require(r.reserved == r.tokens, "truncate: request", id.slot, "one without an import under way");
    std::int64_t most = r.tokens;
    for (waiting_call const& c : later_)
      if (c.id == id && c.what == waiting_call::truncate) most = c.tokens;
    require(tokens >= 0 && tokens <= most, "truncate: tokens", tokens, "0 to ", most);
    at_end_of_step({id, waiting_call::truncate, tokens});
  }
  /// Keeps all pages of the request on the GPU, while a prefill attends densely, say. May be pending: `whole`.
  outcome<request_id> require_whole(request_id id) {
    request_record& r = idle_record(id, "require_whole");
    require(r.phase == phase::running && !r.pinned && r.reserved == r.tokens, "require_whole: request", id.slot,
            "one that is ready, without an import under way and not required whole yet");
    return decided([&] { return allocator_.require_whole(r); });
  }
  /// Ends `require_whole`: its older pages are loans again.
  void release_whole(request_id id) {
    request_record& r = idle_record(id, "release_whole");
    require(r.pinned && r.reserved == r.tokens, "release_whole: request", id.slot,
            "one that is required whole, without an import under way");
    decided([&] { allocator_.release_whole(r); });
  }

  // ---- drafters

  /// The drafter's rows of tokens [from, committed) are there: the engine wrote them, into the ring of a windowed drafter,
  /// or into pages before. From the next begin_step on; 0 to committed, the latter: none are. None are in the ring of a
  /// request that got history by import or adopt, or was resumed, until this says so.
  void set_draft_from(request_id id, std::int64_t from)
    requires(P::draft.layers > 0 || P::drafter_group >= 0)
  {
    request_record& r = idle_record(id, "set_draft_from");
    require(from >= 0 && from <= r.tokens, "set_draft_from: from", from, "0 to ", r.tokens);
    r.draft_from = from;
    book().out.lengths.push_back(id.slot);
  }
  /// Of a windowed drafter: where the step's queries write (`draft_writes`), and what they see (`draft_ring.hpp`):
  /// addresses `[rows][window]` and lengths `[rows]`, device arrays. `bounds`: null: those of `addresses`. Capturable.
  /// Requires: `addresses` ran in this step.
  void draft_addresses(stream on, step const& s, std::int32_t* addresses, std::int32_t* lengths,
                       std::int32_t const* bounds = nullptr)
    requires(P::draft.layers > 0)
  {
    check_open(s, "draft_addresses");
    require(addresses != nullptr && lengths != nullptr, "draft_addresses: out", "null", "device arrays");
    enqueued([&] {
      draft_batch const rows = tables_.draft(s);
      space_.run(on, s.padded, rings_->writes(rows, tables_.ring_writes()));
      space_.run(on, s.padded,
                 rings_->windows(rows, bounds != nullptr ? bounds : tables_.ref().bounds, tables_.ref().draft_from,
                                 addresses, lengths));
    });
  }
  /// Device array `[rows]`: the address where the drafter's row of a query's token is written, −1: nowhere.
  std::int32_t const* draft_writes() const { return tables_.ring_writes(); }
  draft_ring<S> const& rings() const
    requires(P::draft.layers > 0)
  {
    return *rings_;
  }
  /// The ring of a running request, so that its rows can be saved and restored; −1: it has none.
  int ring(request_id id) const { return record(id, "ring").ring; }
  /// First token whose drafter rows are there.
  std::int64_t draft_from(request_id id) const { return record(id, "draft_from").draft_from; }

  // ---- look

  /// Committed tokens, those of steps whose acceptance only the device knows left out.
  std::int64_t tokens(request_id id) const { return record(id, "tokens").tokens; }
  /// True where every committed page is in a frame that the map names. Cost: one look at each page.
  bool whole(request_id id) const {
    request_record const& r = record(id, "whole");
    return std::all_of(r.pages.begin(), r.pages.begin() + book().pages_of(r.tokens),
                       [](page_record const& p) { return p.mapped; });
  }
  /// The newest ticket up to which everything is done.
  ticket progress() const { return copies_.progress(); }
  /// Whether all jobs up to `t`, a ticket that was given out, are done.
  bool reached(ticket t) const { return copies_.reached(given_out(t, "reached")); }
  /// The calling thread waits for them. Throws: what the space throws where they cannot end.
  void wait(ticket t) const { copies_.synchronize(given_out(t, "wait")); }
  /// Copies that were refused since the last call, the newest `ledger::most_failures` of them.
  std::vector<copy_failure> take_failures() {
    auto const all = std::exchange(book().failures, {});
    return {all.begin(), all.end()};
  }

  /// Totals since construction. Stream: the caller waits for one copy of the device's counters, beside all streams.
  counters counts() const {
    std::uint64_t n[device_counts];
    tables_.peek(n);
    return counters_of(n, P::row.total(), copies_.bytes(), steps_, book().counts);
  }
  /// The pools at this moment. Cost: one look at every request slot.
  gauges pools() const {
    gauges g = gauges_of(book(), allocator_.promised());
    g.frames_wanted = allocator_.outstanding();
    g.gpu_bytes = rows_.gpu_bytes() + (rings_ ? rings_->bytes() : 0);
    g.draft_rings = rings_ ? rings_->rings() : 0;
    g.draft_rings_free = rings_ ? rings_->free() : 0;
    g.host_bytes = rows_.host_bytes();
    return g;
  }
  /// Where one request's history is.
  request_gauges pools(request_id id) const {
    request_record const& r = record(id, "pools");
    return {static_cast<int>(r.pages.size()), static_cast<int>(r.pages.size()) - r.missing, r.lent,
            static_cast<int>(r.hot.size()), r.reserve};
  }

  /// The sources, groups and sets of this rank.
  geometry<P> const& local() const { return geometry_; }
  /// Where rows of a source are: address a is at `page_layout` offsets from base, staged rows included.
  source_view const& view(source_id source) const { return rows_.view(geometry_.source(source)); }
  /// The books and the map behind it all, for tests and tools.
  loan_allocator<P> const& allocator() const { return allocator_; }
  resident_map_ref<P> map() const { return tables_.ref().map; }

 private:
  ledger& book() { return allocator_.book(); }
  ledger const& book() const { return allocator_.book(); }
  static loan_allocator<P> make_books(allocator_sizes const& sizes) {
    try {
      return loan_allocator<P>{sizes};
    } catch (std::bad_alloc const&) {
      throw std::runtime_error("ebb: no host memory for the books of " + std::to_string(sizes.frames) + " frames, " +
                               std::to_string(sizes.host_pages) + " host pages and " + std::to_string(sizes.requests) +
                               " requests");
    }
  }
  allocator_sizes allocator_sizes_of(sizing<P> const& z) const {
    std::int64_t const page = std::max<std::int64_t>(1, geometry_.page_bytes() / geometry_.sources());
    return {z.s.frames,
            z.s.host_pages,
            z.s.requests,
            z.s.max_tokens,
            z.tail,
            z.hot,
            static_cast<int>(std::clamp<std::int64_t>(defaults::run_bytes / page, 1, z.s.host_pages)),
            z.s.draft_rings};
  }

  // ---- checks

  void check_sound() const {
    if (!poison_.empty()) throw std::runtime_error("ebb: this instance is out of use " + poison_);
  }
  /// A call that changes the books. What is thrown in its middle leaves them, the streams or memory unknown and poisons
  /// the instance; a refusal does not.
  template <class F>
  auto guarded(F f) {
    check_sound();
    try {
      return f();
    } catch (std::exception const& e) {
      bool const refusal = dynamic_cast<std::invalid_argument const*>(&e) != nullptr ||
                           dynamic_cast<frames_refused const*>(&e) != nullptr;
      if (!refusal || space_.broken()) poison_ = std::string{"after an error: "} + e.what();
      throw;
    }
  }
  /// A call that only enqueues: it may be repeated unless the device failed.
  template <class F>
  void enqueued(F f) {
    try {
      f();
    } catch (std::exception const& e) {
      if (space_.broken()) poison_ = std::string{"after an error: "} + e.what();
      throw;
    }
  }
  /// A decision of the allocator, and the copies it asked for.
  template <class F>
  auto decided(F f) {
    return guarded([&] {
      if constexpr (std::is_void_v<decltype(f())>) {
        f();
        copies_.flush();
      } else {
        auto result = f();
        copies_.flush();
        return result;
      }
    });
  }
  request_record const& record(request_id id, char const* call) const {
    bool const live = id.slot >= 0 && id.slot < sizing_.s.requests && book().at(id.slot).phase != phase::vacant &&
                      book().at(id.slot).id == id;
    if (!live) refuse(call, "request", id.slot, "a live request's handle; its incarnation is ", id.incarnation);
    return book().at(id.slot);
  }
  request_record& idle_record(request_id id, char const* call) {
    check_sound();
    record(id, call);
    bool const busy = open_.number != 0 && std::find(batch_.begin(), batch_.end(), id) != batch_.end();
    if (busy) refuse(call, "request", id.slot, "one that is not in the open step");
    learn(id);
    if (waits(id)) refuse(call, "request", id.slot, "one without a call that waits for the end of the open step");
    return book().at(id.slot);
  }
  template <class... Parts>
  [[noreturn]] static void refuse(char const* call, char const* argument, long long value, Parts const&... legal) {
    require(false, (std::string{call} + ": " + argument).c_str(), value, legal...);
    std::terminate();
  }
  request_record const& idle_or_open(request_id id, char const* call) {
    check_sound();
    if (waits(id, waiting_call::finish)) refuse(call, "request", id.slot, "one that is not finished already");
    return record(id, call);
  }
  ticket given_out(ticket t, char const* call) const {
    if (t > book().last) refuse(call, "ticket", static_cast<long long>(t), "one that was given out");
    return t;
  }
  static void check_out(metadata_ref const& out, char const* what) {
    bool given = P::metadata::entries(out) != nullptr;
    if constexpr (P::metadata::packed) given &= P::metadata::lengths(out) != nullptr;
    require(given, what, "null", "device arrays, as `metadata` says");
  }
  void check_open(step const& s, char const* call) const {
    check_sound();
    if (s.number == 0 || s.number != open_.number)
      refuse(call, "step", static_cast<long long>(s.number), "the open step");
  }
  void check_end(stream on, step const& s) const {
    check_open(s, "end_step");
    require(!space_.capturing(on), "end_step: stream", "being captured",
            "one that is not: what happens between steps cannot be replayed");
    check_joined(on, "end_step");
  }
  void check_joined(stream on, char const* call) const {
    require(!sides_.loose() || space_.capturing(on), (std::string{call} + ": captured part").c_str(),
            "left copies behind that nothing waits for", "one that ends with join");
  }
  void check_selected(step const& s, selected const& what, char const* name, bool bounded) const {
    require(what.positions != nullptr, name, "null", "a device array");
    require(what.queries >= 0 && what.queries <= P::max_queries, "resolve: queries", what.queries, "0 to ",
            P::max_queries);
    if (what.offsets != nullptr) {
      require(what.queries > 0, "resolve: queries", what.queries, "at least 1 where offsets are given");
      require(what.rows > 0, "resolve: rows", what.rows, "at least 1 where offsets are given");
    } else {
      require(what.rows == 0, "resolve: rows", what.rows, "0 where no offsets are given");
    }
    bool const own = what.offsets != nullptr || (what.queries > 0 && (what.queries != s.queries || s.shape.offsets));
    require(!bounded || !own || what.bounds != nullptr, "resolve: bounds", "null",
            "a device array where the rows are not the step's");
  }
  static bool is_ragged(batch const& b) {
    return !b.counts.empty() || b.offsets != nullptr || (b.requests.empty() && b.rows > 0);
  }
  /// Its step, once checked.
  step opened(batch const& b) const {
    int const n = static_cast<int>(b.requests.size());
    int const least = b.rows > 0 ? std::max(n, 1) : n;  // somebody writes the padding
    int const padded = b.padded == 0 ? least : b.padded;
    if (!is_ragged(b)) return {steps_, n, padded, b.queries, {b.queries, padded * b.queries, nullptr}};
    int const named = std::accumulate(b.counts.begin(), b.counts.end(), 0);
    int const most = b.offsets != nullptr ? b.queries : P::max_queries;
    return {steps_,
            n,
            padded,
            most,
            {most, b.rows == 0 ? named : b.rows, b.offsets != nullptr ? b.offsets : tables_.ref().offsets}};
  }
  void check_batch(stream on, batch const& b) const {
    require(!space_.capturing(on), "begin_step: stream", "being captured",
            "one that is not: what happens between steps cannot be replayed");
    int const n = static_cast<int>(b.requests.size());
    require(n <= sizing_.s.max_batch, "begin_step: requests", n, "up to max_batch, ", sizing_.s.max_batch);
    require(b.queries >= 1 && b.queries <= P::max_queries, "begin_step: queries", b.queries, "1 to ", P::max_queries);
    require(b.padded == 0 || (b.padded >= n && b.padded <= sizing_.s.max_batch), "begin_step: padded", b.padded, n,
            " to ", sizing_.s.max_batch);
    bool const ragged = is_ragged(b);
    int const most_rows = sizing_.s.max_batch * P::max_queries;
    require(b.counts.empty() || b.offsets == nullptr, "begin_step: counts", "given beside offsets", "one of the two");
    require(b.counts.empty() || static_cast<int>(b.counts.size()) == n, "begin_step: counts",
            static_cast<long long>(b.counts.size()), "one for each of the ", n, " requests");
    int named = 0;
    for (int count : b.counts) {
      require(count >= 1 && count <= P::max_queries, "begin_step: counts", count, "1 to ", P::max_queries);
      named += count;
    }
    require(ragged || b.rows == 0, "begin_step: rows", b.rows, "0 where all requests have `queries` queries");
    require(b.offsets == nullptr || b.rows > 0, "begin_step: rows", b.rows, "given where offsets are");
    require(b.rows == 0 || (b.rows >= named && b.rows <= most_rows), "begin_step: rows", b.rows, named, " to ",
            most_rows);
    for (int i = 0; i < n; ++i) {
      request_id const id = b.requests[static_cast<std::size_t>(i)];
      request_record const& r = record(id, "begin_step");
      require(allocator_.ready(r) && r.reserved == r.tokens, "begin_step: request", id.slot,
              "one that is ready, not pending, preempted or importing");
      require(r.tokens < r.tokens_max, "begin_step: tokens", r.tokens, "less than the request's tokens_max, ",
              r.tokens_max);
      require(std::find(b.requests.begin(), b.requests.begin() + i, id) == b.requests.begin() + i,
              "begin_step: request", id.slot, "named once");
    }
  }

  // ---- calls that an open step puts off

  struct waiting_call {
    request_id id;
    enum kind { finish, preempt, truncate } what;
    std::int64_t tokens;
  };
  bool waits(request_id id) const {
    return std::any_of(later_.begin(), later_.end(), [&](waiting_call const& c) { return c.id == id; });
  }
  bool waits(request_id id, typename waiting_call::kind what) const {
    return std::any_of(later_.begin(), later_.end(), [&](auto const& c) { return c.id == id && c.what == what; });
  }
  /// It was promised one. What an earlier owner wrote there is never shown.
  void take_ring(request_record& r) {
    if (!rings_) return;
    r.ring = rings_->take();
    r.draft_from = r.tokens;
  }
  void at_end_of_step(waiting_call c) {
    later_.push_back(c);
    if (open_.number == 0) decided([&] { carry_out_later(); });
  }
  /// Calls whose requests are out of the step, in order. What depends on a length waits until that is known.
  void carry_out_later() {
    std::vector<waiting_call> still;
    for (waiting_call const& c : std::exchange(later_, {})) {
      if (book().at(c.id.slot).phase == phase::vacant || book().at(c.id.slot).id != c.id)
        continue;  // finished meanwhile
      bool const unknown = c.what != waiting_call::finish && book().at(c.id.slot).pending > 0;
      unknown ? still.push_back(c) : carry_out(c);
    }
    later_ = std::move(still);
  }
  void carry_out(waiting_call const& c) {
    request_record& r = book().at(c.id.slot);
    if (c.what != waiting_call::truncate) {
      if (r.ring >= 0) rings_->give_back(std::exchange(r.ring, -1));
    } else {
      if (rings_) r.draft_from = rings_->first_after_truncate(r.draft_from, r.tokens, c.tokens);
      r.draft_from = std::min(r.draft_from, c.tokens);
    }
    switch (c.what) {
      case waiting_call::finish:
        return allocator_.finish(r);
      case waiting_call::preempt:
        return allocator_.preempt(r);
      case waiting_call::truncate:
        return allocator_.truncate(r, c.tokens);
    }
  }

  // ---- the end of a step

  /// `known`: the host adds the numbers up at once.
  ticket end(stream on, step const& s, std::span<accepted_word const> words, on_device device, bool known) {
    sides_.join(on);
    tables_.commit(on, s, words, device, known ? nullptr : acceptances_.room(s.number));
    ticket const t = fence(on, s);
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      request_record& r = book().at(batch_[i].slot);
      if (known) {
        add_tokens(r, words[i]);
      } else {
        r.pending += queries_[i];
      }
    }
    if (!known) acceptances_.add(s.number, t, unfinished_.back(), batch_, queries_);
    close();
    return t;
  }
  /// The step's last work is enqueued.
  ticket fence(stream on, step const& s) {
    ticket* const counted = tables_.read_uses(on, s.number, batch_);
    auto const end = space_.record(on);
    ring_.close(end);
    unfinished_.push_back(end);
    ticket const t = copies_.fence(end);
    if (counted != nullptr) *counted = t;
    return t;
  }
  void close() {
    begun_on_.reset();
    open_ = {};
    allocator_.close_step();
    for (request_id id : batch_) allocator_.back_up(book().at(id.slot));
    carry_out_later();
    copies_.flush();
  }
  void add_tokens(request_record& r, accepted_word const& w) {
    committed_lengths all{r.tokens, P::drafter_group >= 0 ? r.drafted : r.tokens, r.draft_from};
    all.advance(w.tokens, w.drafted, P::max_queries);
    std::int64_t const drafted = std::exchange(r.drafted, all.drafted);
    r.tokens = r.reserved = all.tokens;
    r.draft_from = all.draft_from;
    if (P::drafter_group >= 0) allocator_.drafted(r, drafted, r.drafted);
  }
  /// The host learns what steps accepted, as long as `due` says so, in their order.
  template <class Due>
  void settle(Due due) {
    acceptances_.settle(due, [&](request_id id, int queries, accepted_word const& accepted) {
      request_record& r = book().at(id.slot);
      if (r.phase == phase::vacant || r.id != id) return;  // finished meanwhile
      r.pending -= queries;
      add_tokens(r, accepted);
      allocator_.back_up(r);
    });
    if (open_.number == 0) carry_out_later();
  }
  /// Waits for the acceptance of a request's last step.
  void learn(request_id id) {
    if (!acceptances_.waits_for(id)) return;
    guarded([&] { settle([&](std::uint64_t, ticket) { return acceptances_.waits_for(id); }); });
  }

  void limit_steps() {
    while (!unfinished_.empty() &&
           (static_cast<int>(unfinished_.size()) >= sizing_.s.steps_in_flight || space_.reached(unfinished_.front()))) {
      space_.synchronize(unfinished_.front());
      unfinished_.pop_front();
    }
  }
  /// Decisions see what is done up to `progress`.
  void advance(std::optional<ticket> progress) {
    ticket const until = progress ? *progress : copies_.progress();
    if (until <= book().done) return;
    // A copy that failed on its way counts as over, too: nothing may be concluded from it.
    if (space_.broken()) throw std::runtime_error("ebb: earlier work of the device failed");
    copies_.complete(until);
    tables_.take_uses(until);
  }

  S space_;
  geometry<P> geometry_;
  sizing<P> sizing_;
  loan_allocator<P> allocator_;
  arenas<P, S> rows_;
  upload_ring<S> ring_;
  copy_queue<P, S> copies_;
  step_tables<P, S> tables_;
  side_copies<P, S> sides_;
  imports<P, S> imports_;
  acceptances<S> acceptances_;
  std::optional<draft_ring<S>> rings_;  ///< of a windowed drafter

  step open_;
  std::optional<stream> begun_on_;  ///< stream of a step that was begun and has no end yet
  std::vector<request_id> batch_;
  std::vector<int> queries_;         ///< of each request of the batch
  std::vector<char> resolved_;       ///< whether each group was, in the open step
  std::vector<waiting_call> later_;  ///< in the order of the calls
  std::deque<typename S::event> unfinished_;
  std::uint64_t steps_ = 0;
  std::string poison_;
};

}  // namespace ebb

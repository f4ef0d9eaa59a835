#pragma once
// What the scenarios share: rows whose every byte says who wrote them and when, an engine that writes and checks them by enqueued bodies,
// a model of what every entry must name, and the balance of the pools. The model knows nothing of frames, loans or caches.

#include <ebb/ebb.hpp>

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../spaces_under_test.hpp"

namespace ebb::testing {

/// What a row must hold. Row −1: no row, the metadata's filler. Key 0: a row of zeroes.
struct row_pattern {
  std::uint32_t key = 0;  ///< of a request's life: its slot and incarnation
  std::int32_t source = 0;
  std::int32_t row = -1;
  std::uint32_t version = 0;  ///< of all writes in the scenario, which one
};
/// Byte i of a row: page-end bytes are counted behind those in the row.
EBB_FN constexpr std::uint8_t byte_of(row_pattern const& p, int i) {
  if (p.key == 0) return 0;
  std::uint32_t x = p.key * 0x9e3779b1u ^ static_cast<std::uint32_t>(p.row) * 0x85ebca77u;
  x = (x ^ (x >> 15)) * 0xc2b2ae3du ^ static_cast<std::uint32_t>(p.source) * 0x27d4eb2fu;
  x = (x ^ (x >> 13)) * 0x165667b1u ^ p.version * 0x9e3779b1u;
  x = (x ^ (x >> 16)) * 0x85ebca77u + static_cast<std::uint32_t>(i / 4) * 0xc2b2ae3du;
  x = (x ^ (x >> 15)) * 0x27d4eb2fu;
  return static_cast<std::uint8_t>((x ^ (x >> 14)) >> 8 * (i % 4));
}
EBB_FN inline std::byte* byte_at(source_view const& v, std::int64_t address, int i) {
  return i < v.layout.row.in_row ? v.base + v.layout.in_row_offset(address) + i
                                 : v.base + v.layout.page_end_offset(address) + (i - v.layout.row.in_row);
}

/// What was found wrong: addresses that are there and should not be, or the other way round; bytes of rows; fillers; lengths.
enum wrong_kind { wrong_place, wrong_bytes, wrong_filler, wrong_length, wrong_kinds };

/// Writes row `item` to its address.
struct write_rows_body {
  source_view view;
  std::int32_t const* addresses;
  row_pattern const* rows;
  std::uint32_t* wrong;

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    row_pattern const p = rows[item];
    std::int32_t const at = addresses[item];
    if ((at >= 0) != (p.row >= 0) && t.rank() == 0) t.add(wrong + wrong_place, 1u);
    if (at < 0 || p.row < 0) return;
    for (int i = t.rank(); i < view.layout.row.total(); i += T::width) *byte_at(view, at, i) = std::byte{byte_of(p, i)};
  }
};

/// Compares every entry of metadata row `item` with what it must name.
template <policy P>
struct check_rows_body {
  using metadata = typename P::metadata;
  source_view view;
  typename metadata::ref found;
  row_pattern const* rows;      ///< [items][width]
  std::int32_t const* lengths;  ///< where packed
  std::uint32_t* wrong;

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    constexpr int width = metadata::width(P::top_k);
    for (int column = t.rank(); column < width; column += T::width) {
      row_pattern const want = rows[std::int64_t{item} * width + column];
      auto const entry = metadata::entries(found)[std::int64_t{item} * width + column];
      if (entry == metadata::invalid() || want.row < 0) {
        if (entry != metadata::invalid()) t.add(wrong + wrong_filler, 1u);
        if (want.row >= 0) t.add(wrong + wrong_place, 1u);
        continue;
      }
      bool same = true;
      for (int i = 0; i < view.layout.row.total(); ++i)
        same = same && *byte_of_entry(entry, i) == std::byte{byte_of(want, i)};
      if (!same) t.add(wrong + (want.key == 0 ? wrong_filler : wrong_bytes), 1u);
    }
    if constexpr (metadata::packed) {
      if (t.rank() == 0 && metadata::lengths(found)[item] != lengths[item]) t.add(wrong + wrong_length, 1u);
    }
  }

 private:
  /// Interleaved entries count rows, without page-end bytes, from the base of source 0.
  template <class Entry>
  EBB_FN std::byte const* byte_of_entry(Entry entry, int i) const {
    if constexpr (std::is_same_v<metadata, interleaved>) {
      return view.base - view.ordinal * view.host_layout.stride + std::int64_t{entry} * view.layout.row.in_row + i;
    } else {
      return byte_at(view, address_of(entry), i);
    }
  }
  EBB_FN std::int64_t address_of(std::int32_t entry) const { return entry; }
  EBB_FN std::int64_t address_of(std::byte const* entry) const {
    std::int64_t const offset = entry - view.base;
    return offset / view.layout.stride * view.layout.rows + offset % view.layout.stride / view.layout.row.in_row;
  }
};

/// Fills bytes; for canaries and poison.
struct fill_body {
  std::byte* to;
  std::int64_t bytes;
  std::byte value;
  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int) const {
    for (std::int64_t i = t.rank(); i < bytes; i += T::width) to[i] = value;
  }
};

/// A space that counts what is asked of it, and puts canaries behind all memory it gives out.
template <class S>
class watched_space : public S {
 public:
  struct block {
    std::weak_ptr<std::byte> owner;
    std::byte* memory;
    std::size_t bytes;
  };
  struct state {
    long long runs = 0;
    std::vector<block> device, shared, history;
    std::vector<host_kind> kinds;
  };

  explicit watched_space(S const& of) : S{of} {}

  template <class Body>
  void run(typename S::stream on, int items, Body const& body) const {
    ++seen->runs;
    S::run(on, items, body);
  }
  std::shared_ptr<std::byte> device_memory(std::size_t bytes) const {
    return with_canary(S::device_memory(bytes + canary), bytes, seen->device);
  }
  std::shared_ptr<std::byte> shared_memory(std::size_t bytes) const {
    return with_canary(S::shared_memory(bytes + canary), bytes, seen->shared);
  }
  std::shared_ptr<std::byte> history_memory(std::size_t bytes, host_kind kind) const {
    seen->kinds.push_back(kind);
    return with_canary(S::history_memory(bytes + canary, kind), bytes, seen->history);
  }
  long long allocations() const {
    return static_cast<long long>(seen->device.size() + seen->shared.size() + seen->history.size());
  }

  /// Blocks whose canary was overwritten.
  int dead_canaries() const {
    int dead = 0;
    for (auto const* list : {&seen->device, &seen->shared, &seen->history}) {
      for (block const& b : *list) {
        if (b.owner.expired()) continue;
        std::byte now[canary];
        S::peek(now, b.memory + b.bytes, canary);
        dead += std::any_of(now, now + canary, [](std::byte v) { return v != alive; });
      }
    }
    return dead;
  }
  /// The bytes of a block as they are now.
  std::vector<std::byte> look(block const& b) const {
    std::vector<std::byte> out(b.bytes);
    S::peek(out.data(), b.memory, b.bytes);
    return out;
  }

  std::shared_ptr<state> seen = std::make_shared<state>();

 private:
  static constexpr std::size_t canary = 48;
  static constexpr std::byte alive{0xC7};
  std::shared_ptr<std::byte> with_canary(std::shared_ptr<std::byte> memory, std::size_t bytes,
                                         std::vector<block>& list) const {
    auto const stream = S::make_stream();
    S::run(stream, 1, fill_body{memory.get() + bytes, static_cast<std::int64_t>(canary), alive});
    S::synchronize(S::record(stream));
    list.push_back({memory, memory.get(), bytes});
    return memory;
  }
};

/// Every frame and host page in exactly one state, and the counts add up (I7); the first disagreement, or nothing.
template <class Kv>
std::string out_of_balance(Kv const& kv) {
  ledger const& book = kv.allocator().book();
  std::set<int> frames;
  std::set<int> hosts;
  auto const frame = [](frame_id f) { return "frame " + std::to_string(index(f)) + ": "; };
  for (request_record const& r : book.requests()) {
    int framed = 0;
    int lent = 0;
    if (r.phase == phase::vacant && (!r.pages.empty() || !r.hot.empty() || !r.idle.empty()))
      return "a vacant slot holds something";
    for (int p = 0; p < static_cast<int>(r.pages.size()); ++p) {
      map_entry const at = book.page(r, p).at;
      if (at.host == host_page_id::none || !book.hosts.is_used(index(at.host)) || !hosts.insert(index(at.host)).second)
        return "host page " + std::to_string(index(at.host)) + ": free or held twice";
      if (at.frame == frame_id::none) continue;
      if (!frames.insert(index(at.frame)).second) return frame(at.frame) + "held twice";
      frame_record const& f = book.frames[at.frame];
      if (f.slot != r.id.slot || f.page != p) return frame(at.frame) + "its record names another holder";
      if (f.state == frame_state::free || f.state == frame_state::taken)
        return frame(at.frame) + "held by a page and free";
      ++framed;
      lent += f.state == frame_state::lent;
    }
    if (framed != r.framed || lent != r.lent)
      return "slot " + std::to_string(r.id.slot) + ": counts of pages in frames are wrong";
    for (auto const* list : {&r.hot, &r.idle}) {
      for (frame_id f : *list) {
        if (!frames.insert(index(f)).second) return frame(f) + "held twice";
        if (book.frames[f].state != frame_state::required || book.frames[f].slot != r.id.slot)
          return frame(f) + "hot or idle, not required";
      }
    }
  }
  int counts[frame_states]{};
  for (int f = 0; f < book.frames.size(); ++f) {
    frame_state const s = book.frames[frame_id{f}].state;
    ++counts[static_cast<int>(s)];
    bool const held = frames.count(f) > 0;
    if (s == frame_state::free || s == frame_state::taken ? held : !held && s != frame_state::revoking)
      return frame(frame_id{f}) + "state and holder disagree";
  }
  gauges const g = kv.pools();
  int const shown[frame_states] = {g.frames_free,  g.frames_required, g.frames_lent,
                                   g.frames_taken, g.frames_filling,  g.frames_revoking};
  int all = 0;
  for (int s = 0; s < frame_states; ++s) {
    if (counts[s] != shown[s])
      return "frames in state " + std::to_string(s) + ": " + std::to_string(counts[s]) + ", gauge " +
             std::to_string(shown[s]);
    all += counts[s];
  }
  if (all != g.frames) return "frames do not add up";
  if (static_cast<int>(hosts.size()) + g.host_pages_free != g.host_pages) return "host pages do not add up";
  return "";
}

/// One request as the engine and the model know it.
struct session {
  request_id id;
  std::uint32_t key = 0;
  std::int64_t tokens_max = 0;
  std::int64_t tokens = 0;                ///< committed
  std::vector<std::uint32_t> versions{};  ///< of every token, the write it has
};

/// An engine in small: admits and imports, runs steps whose rows are written and checked by bodies, and knows what must be found.
/// Memory that bodies read is taken from a ring and reused after `settle`.
template <policy P, class S>
class engine {
  using geo = geometry_of<P>;
  using metadata = typename P::metadata;
  using entry = typename metadata::entry;

 public:
  static constexpr int width = metadata::width(P::top_k);

  engine(S const& of, sizes const& given, std::size_t room_bytes = std::size_t{16} << 20)
      : space{of}, room_{space, room_bytes}, wrong_{space, wrong_kinds}, kv{space, given}, main{space.make_stream()} {}
  engine(engine const&) = delete;
  engine& operator=(engine const&) = delete;

  S space;

 private:
  shared_array<std::byte> room_;  // outlives what is still enqueued, which kv waits for
  shared_array<std::uint32_t> wrong_;

 public:
  residency<P, S> kv;
  typename S::stream main;
  long long checked = 0;  ///< rows whose bytes were compared

  // ---- requests ----------------------------------------------------------------------------------------------------------------------

  /// Admits a request and imports `tokens` of history, after empty steps where it is pending. Throws where it is refused.
  session start(std::int64_t tokens_max, std::int64_t tokens = 0) {
    session s = name(or_throw(kv.admit(tokens_max, tokens)), tokens_max);
    for (int i = 0; i < 10 && !kv.ready(s.id); ++i) {
      kv.wait(kv.allocator().book().last);
      end(begin({}), {});
    }
    if (tokens > 0) import(s, tokens);
    return s;
  }
  session name(request_id id, std::int64_t tokens_max) const {
    return {id, id.incarnation * 4096 + static_cast<std::uint32_t>(id.slot) + 1, tokens_max};
  }
  /// Brings history up to `tokens` in; rows lie `padding` bytes apart. Returns when the engine could have written itself.
  ticket import(session& s, std::int64_t tokens, int padding = 0) {
    ticket const room = kv.reserve_import(s.id, tokens);
    for (int source = 0; source < kv.local().sources(); ++source) import_source(s, source, tokens, padding);
    kv.publish(s.id, tokens);
    s.tokens = tokens;
    return room;
  }
  ticket import_source(session& s, int source, std::int64_t tokens, int padding = 0) {
    if (static_cast<std::int64_t>(s.versions.size()) < tokens || source == 0) {
      s.versions.resize(static_cast<std::size_t>(s.tokens));
      s.versions.resize(static_cast<std::size_t>(tokens), ++writes_);
    }
    int const r = kv.local().ratio(source);
    std::int64_t const first = s.tokens / r;
    int const stride = P::row.total() + padding;
    std::byte* const rows = take<std::byte>(static_cast<std::size_t>((tokens / r - first) * stride));
    for (std::int64_t p = first; p < tokens / r; ++p) {
      row_pattern const want = pattern(s, source, p);
      for (int i = 0; i < P::row.total(); ++i) rows[(p - first) * stride + i] = std::byte{byte_of(want, i)};
    }
    return kv.import(s.id, kv.local().id_of_source(source), {rows, stride});
  }
  /// Engine-written frames become the next pages. Requires: the frames were collected.
  void adopt(session& s, std::span<frame_id const> frames, std::int64_t tokens) {
    s.versions.resize(static_cast<std::size_t>(s.tokens));
    s.versions.resize(static_cast<std::size_t>(tokens), ++writes_);
    for (int source = 0; source < kv.local().sources(); ++source) {
      int const r = kv.local().ratio(source);
      int const rows = P::page_tokens / r;
      std::int64_t const first = s.tokens / r;
      int const n = static_cast<int>(tokens / r - first);
      auto* const addresses = take<std::int32_t>(static_cast<std::size_t>(n));
      auto* const wanted = take<row_pattern>(static_cast<std::size_t>(n));
      for (int i = 0; i < n; ++i) {
        addresses[i] = index(frames[static_cast<std::size_t>(i / rows)]) * rows + i % rows;
        wanted[i] = pattern(s, source, first + i);
      }
      space.run(main, n, write_rows_body{kv.view(kv.local().id_of_source(source)), addresses, wanted, wrong_.data()});
    }
    kv.adopt(main, s.id, frames, tokens);
    s.tokens = tokens;
  }
  void truncate(session& s, std::int64_t tokens) {
    kv.truncate(s.id, tokens);
    s.tokens = tokens;
  }

  // ---- steps -------------------------------------------------------------------------------------------------------------------------

  /// What the enqueued part of a step reads and writes, at fixed addresses: `padded` requests of `queries` each, or `all` rows in which
  /// requests have as many as the step says.
  struct buffers {
    int padded = 0;
    int queries = 0;
    std::vector<row_pattern*> writes;             ///< of each source: [all]
    std::vector<std::int32_t*> selections;        ///< of each group: [all][top_k]
    std::vector<std::vector<row_pattern*>> rows;  ///< of each group and source of its set: [all][width]
    std::vector<std::vector<typename metadata::ref>> out;
    std::vector<std::int32_t*> lengths;  ///< of each group
    std::vector<std::int64_t> checks;    ///< rows to compare, filled anew by `fill`
    int all = 0;
    std::vector<candidates> pools{};  ///< of each group, announced before its resolve; without positions: none
    std::vector<int> replayed{};      ///< of each group, how many sources of its set are asked for; empty: all
  };
  buffers make_buffers(int padded, int queries, int all = 0) {
    buffers b{padded, queries, {}, {}, {}, {}, {}, {0}, all == 0 ? padded * queries : all};
    std::size_t const n = static_cast<std::size_t>(b.all);
    for (int s = 0; s < kv.local().sources(); ++s) b.writes.push_back(take<row_pattern>(n));
    for (int g = 0; g < kv.local().groups(); ++g) {
      b.selections.push_back(take<std::int32_t>(n * P::top_k));
      b.lengths.push_back(take<std::int32_t>(n));
      b.rows.emplace_back();
      b.out.emplace_back();
      for (int k = 0; k < kv.local().sources_of_set(kv.local().set_of_group(g)); ++k) {
        b.rows.back().push_back(take<row_pattern>(n * static_cast<std::size_t>(width)));
        auto* const entries = take<entry>(n * static_cast<std::size_t>(width));
        std::fill_n(reinterpret_cast<std::uint32_t*>(entries),
                    n * static_cast<std::size_t>(width) * (sizeof(entry) / 4), 123456u);
        if constexpr (metadata::packed) {
          auto* const lengths = take<std::int32_t>(n);
          std::fill_n(lengths, n, 123456);
          b.out.back().push_back({entries, lengths});
        } else {
          b.out.back().push_back({entries});
        }
      }
    }
    return b;
  }

  /// Opens a step. `who`: live sessions; they must stay where they are until `end`.
  step begin(std::vector<session*> who, int queries = 1, int padded = 0, std::optional<ticket> progress = {}) {
    std::vector<request_id> ids;
    for (session const* s : who) ids.push_back(s->id);
    step const s = kv.begin_step(main, {ids, queries, padded}, progress);
    counts_.assign(static_cast<std::size_t>(s.padded), queries);
    who_ = std::move(who);
    return s;
  }
  /// The same where requests have `counts` queries, which the host names, or `offsets` in device memory, written by now.
  step begin_ragged(std::vector<session*> who, std::vector<int> const& counts, int padded = 0, int all = 0,
                    std::int32_t const* offsets = nullptr) {
    std::vector<request_id> ids;
    for (session const* s : who) ids.push_back(s->id);
    batch b{.requests = ids, .padded = padded, .rows = all};
    if (offsets == nullptr) {
      b.counts = counts;
    } else {
      b.queries = P::max_queries;
      b.offsets = offsets;
    }
    step const s = kv.begin_step(main, b);
    counts_ = counts;
    who_ = std::move(who);
    return s;
  }
  /// Decides what the step writes and selects, and what must be found. `select(session, group, query, column, rows)`: a position, of `rows`
  /// that may be selected.
  template <class Select>
  void fill(buffers const& b, Select select) {
    for (std::size_t i = 0; i < who_.size(); ++i) {
      session* const s = who_[i];
      std::int64_t const end = std::min(s->tokens + counts_[i], s->tokens_max);
      s->versions.resize(static_cast<std::size_t>(s->tokens));
      for (std::int64_t t = s->tokens; t < end; ++t) s->versions.push_back(++writes_);
    }
    for (int source = 0; source < kv.local().sources(); ++source) {
      int const r = kv.local().ratio(source);
      for (int row = 0; row < b.all; ++row) {
        auto const [i, j] = query_of(row);
        row_pattern& w = b.writes[static_cast<std::size_t>(source)][row];
        w = {};
        if (i < 0) continue;
        session const& s = *who_[static_cast<std::size_t>(i)];
        if (s.tokens + j < s.tokens_max && (s.tokens + j + 1) % r == 0) w = pattern(s, source, (s.tokens + j) / r);
      }
    }
    for (int g = 0; g < kv.local().groups(); ++g) {
      for (int row = 0; row < b.all; ++row) fill_query(b, g, row, select);
    }
  }
  /// Request and query of a row of the step's arrays; request −1: padding.
  std::pair<int, int> query_of(int row) const {
    for (std::size_t i = 0; i < who_.size(); row -= counts_[i++]) {
      if (row < counts_[i]) return {static_cast<int>(i), row};
    }
    return {-1, 0};
  }
  /// Enqueues the head of the part that may be captured: addresses and rows.
  void write(step const& s, buffers const& b) {
    kv.addresses(main, s);
    for (int source = 0; source < kv.local().sources(); ++source) {
      source_id const id = kv.local().id_of_source(source);
      space.run(main, b.all,
                write_rows_body{kv.view(id), kv.write_addresses(id), b.writes[static_cast<std::size_t>(source)],
                                wrong_.data()});
    }
  }
  void announce(step const& s, buffers const& b, int g) {
    if constexpr (P::candidate_pool > 0)
      kv.prefetch(main, s, kv.local().id_of_group(g), b.pools[static_cast<std::size_t>(g)]);
  }
  void resolve(step const& s, buffers const& b, int g) {
    std::size_t const at = static_cast<std::size_t>(g);
    kv.resolve(main, s, kv.local().id_of_group(g), b.selections[at], b.out[at][0]);
  }
  void replay(step const& s, buffers const& b, int g, int k) {
    kv.replay(main, s, kv.local().id_of_group(g), source_of(g, k),
              b.out[static_cast<std::size_t>(g)][static_cast<std::size_t>(k)]);
  }
  /// Compares what a resolve, or a replay, gave for source `k` of the group's set.
  void check(buffers const& b, int g, int k) {
    std::size_t const at = static_cast<std::size_t>(g), of = static_cast<std::size_t>(k);
    space.run(
        main, b.all,
        check_rows_body<P>{kv.view(source_of(g, k)), b.out[at][of], b.rows[at][of], b.lengths[at], wrong_.data()});
  }
  /// All of the part that may be captured. Pools are announced as early as may be, and then, or where not all sources are asked for, the
  /// side streams are joined.
  void enqueue(step const& s, buffers const& b) {
    bool joins = !b.replayed.empty();
    auto const announce_if = [&](int g) {
      if (g < 0 || b.pools.empty() || b.pools[static_cast<std::size_t>(g)].positions == nullptr) return;
      announce(s, b, g);
      joins = true;
    };
    write(s, b);
    for (int g = 0; g < kv.local().groups(); ++g) {
      if (neighbour(g, -1) < 0) announce_if(g);
    }
    for (int g = 0; g < kv.local().groups(); ++g) {
      std::size_t const at = static_cast<std::size_t>(g);
      resolve(s, b, g);
      announce_if(neighbour(g, 1));
      int const sources = b.replayed.empty() ? static_cast<int>(b.out[at].size()) : b.replayed[at];
      for (int k = 0; k < sources; ++k) {
        if (k > 0) replay(s, b, g, k);
        check(b, g, k);
      }
    }
    if (joins) kv.join(main, s);
  }
  /// Commits `accepted` tokens of each request.
  ticket end(step const& s, std::vector<int> const& accepted) {
    ticket const t = kv.end_step(main, s, accepted);
    for (std::size_t i = 0; i < who_.size(); ++i) who_[i]->tokens += accepted[i];
    return t;
  }
  /// Commits what a device array says, once the stream is there: `accepted` tokens of each request, which the model knows already.
  ticket end(step const& s, on_device device, std::vector<int> const& accepted) {
    ticket const t = kv.end_step(main, s, device);
    for (std::size_t i = 0; i < who_.size(); ++i) who_[i]->tokens += accepted[i];
    return t;
  }
  /// A whole step, eager; `accepted` of every request.
  template <class Select>
  ticket run_step(std::vector<session*> const& who, int queries, std::vector<int> const& accepted, Select select,
                  int padded = 0) {
    step const s = begin(who, queries, padded);
    buffers const b = make_buffers(s.padded, queries);
    fill(b, select);
    enqueue(s, b);
    return end(s, accepted);
  }
  template <class Select>
  ticket run_step(std::vector<session*> const& who, int queries, int accepted, Select select, int padded = 0) {
    return run_step(who, queries, std::vector<int>(who.size(), accepted), select, padded);
  }

  /// Waits for everything enqueued and says whether every entry and every byte was right.
  void settle() {
    finish(space, main);
    CHECK(wrong_[wrong_place] == 0);
    CHECK(wrong_[wrong_bytes] == 0);
    CHECK(wrong_[wrong_filler] == 0);
    CHECK(wrong_[wrong_length] == 0);
    std::fill(wrong_.begin(), wrong_.end(), 0u);
    next_ = fixed_;
  }
  /// Where bodies of a test's own count what is wrong, by `wrong_kind`.
  std::uint32_t* wrong() const { return wrong_.data(); }
  /// Buffers made so far are never reused: for graphs.
  void keep_buffers() { fixed_ = next_; }

  request_record const& record(session const& s) const { return kv.allocator().book().at(s.id.slot); }
  page_record const& page(session const& s, int p) const { return record(s).pages[static_cast<std::size_t>(p)]; }
  row_pattern pattern(session const& s, int source, std::int64_t row) const {
    int const r = kv.local().ratio(source);
    return {s.key, index(kv.local().id_of_source(source)), static_cast<std::int32_t>(row),
            s.versions[static_cast<std::size_t>((row + 1) * r - 1)]};
  }
  /// Memory that bodies read, until the next `settle`.
  template <class T>
  T* take(std::size_t n) {
    std::size_t const bytes = (n * sizeof(T) + 63) / 64 * 64;
    if (next_ + bytes > room_.size) settle();
    if (next_ + bytes > room_.size) throw std::length_error("scenario: give the engine more room");
    T* const out = reinterpret_cast<T*>(room_.data() + next_);
    next_ += bytes;
    return out;
  }

 private:
  source_id source_of(int group, int k) const {
    return kv.local().id_of_source(kv.local().source_of_set(kv.local().set_of_group(group), k));
  }

  /// The group before (−1) or behind (1) one of the same set; −1: none.
  int neighbour(int g, int way) const {
    for (int k = g + way; k >= 0 && k < kv.local().groups(); k += way) {
      if (kv.local().set_of_group(k) == kv.local().set_of_group(g)) return k;
    }
    return -1;
  }
  template <class Select>
  void fill_query(buffers const& b, int g, int row, Select& select) {
    std::size_t const at = static_cast<std::size_t>(g);
    std::int64_t const query = row;
    auto const [i, j] = query_of(row);
    int const set = kv.local().set_of_group(g);
    int const r = kv.local().ratio_of_set(set);
    session const* const s = i >= 0 ? who_[static_cast<std::size_t>(i)] : nullptr;
    std::int64_t const rows = s != nullptr && s->tokens + j < s->tokens_max ? (s->tokens + j + 1) / r : 0;
    std::vector<int> found;
    for (int c = 0; c < P::top_k; ++c) {
      int const position =
          s != nullptr ? static_cast<int>(select(*s, g, j, c, rows)) : 7 * c;  // padded rows: stale positions
      b.selections[at][query * P::top_k + c] = position;
      bool const valid = position >= 0 && position < rows;
      if (valid || !metadata::packed) found.push_back(valid ? position : -1);
    }
    int const entries = static_cast<int>(found.size());
    b.lengths[at][query] = std::max(1, entries);
    for (std::size_t k = 0; k < b.rows[at].size(); ++k) {
      int const source = kv.local().source_of_set(set, static_cast<int>(k));
      row_pattern filler{};
      if (metadata::packed)
        filler = s != nullptr && s->tokens / r > 0 ? pattern(*s, source, s->tokens / r - 1) : row_pattern{0, 0, 0, 0};
      for (int c = 0; c < width; ++c) {
        row_pattern& want = b.rows[at][k][query * width + c];
        want = c < entries && found[static_cast<std::size_t>(c)] >= 0
                   ? pattern(*s, source, found[static_cast<std::size_t>(c)])
                   : filler;
        checked += want.row >= 0;
      }
    }
  }

  std::size_t next_ = 0;
  std::size_t fixed_ = 0;
  std::vector<session*> who_;
  std::vector<int> counts_;  ///< queries of each
  std::uint32_t writes_ = 0;
};

/// Selections from a seed: `share` of 256 entries name a row that may be selected, the newest among them, the others nothing or too far.
struct random_rows {
  std::uint32_t state;
  std::uint32_t share = 240;
  std::uint32_t next() { return state = state * 1664525u + 1013904223u, state >> 8; }
  std::int64_t operator()(session const&, int, int, int column, std::int64_t rows) {
    std::uint32_t const what = next() % 256;
    if (rows > 0 && column == 0) return rows - 1;
    if (rows > 0 && what < share) return next() % static_cast<std::uint32_t>(rows);
    return what % 2 == 0 ? -1 : rows + next() % 40;
  }
};

}  // namespace ebb::testing

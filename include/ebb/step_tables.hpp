#pragma once
/// Owner of what a step's bodies read and write on the device, and of the stamps.

#include <ebb/acceptances.hpp>
#include <ebb/copy_queue.hpp>
#include <ebb/draft_ring.hpp>
#include <ebb/loan_allocator.hpp>
#include <ebb/lookahead.hpp>
#include <ebb/resident_map.hpp>
#include <ebb/resolver.hpp>
#include <ebb/sizes.hpp>

#include <array>
#include <bit>

namespace ebb {

/// A begun step. Cheap to copy; valid until its end_step.
struct step {
  std::uint64_t number = 0;
  int requests = 0;
  int padded = 0;
  int queries = 0;  ///< of a request, at most
  row_shape shape{};
};

/// What a resolve looks up: device array `[rows][top_k]` of positions, −1 = none. By default its rows are the step's;
/// with `queries` it has that many of every request instead (a drafter that runs again within the step) or, with
/// `offsets`, device array `[padded + 1]`, `rows` in all and at most `queries` of one. `bounds`: device array [rows] of
/// exclusive causal bounds in tokens, null: those of `addresses`, for the step's own rows.
struct selected {
  std::int32_t const* positions = nullptr;
  std::int32_t const* bounds = nullptr;
  int queries = 0;
  int rows = 0;
  std::int32_t const* offsets = nullptr;
  int pass = 0;  ///< of a drafter's group, which may resolve drafter_passes times a step, in the order of their numbers
};

/// Tables, map, header and work lists in device memory. Everything is allocated at construction: steps allocate nothing
/// on the device.
template <policy P, space S>
class step_tables {
  using geo = geometry_of<P>;

 public:
  using stream = typename S::stream;

  step_tables(S const& space, geometry<P> const& geometry, sizing<P> const& sizing, arenas<P, S> const& rows,
              upload_ring<S>& ring, loan_allocator<P>& allocator)
      : space_{space},
        geometry_{geometry},
        sizes_{sizing.s},
        hot_{sizing.hot},
        rows_{rows},
        ring_{ring},
        allocator_{allocator},
        map_{space, sizes_.requests, map_pages()} {
    make(sizing);
  }

  step_ref<P> const& ref() const { return state_; }
  int writes_stride() const { return sizes_.max_batch * P::max_queries; }
  /// Device counters as they are now, beside all streams.
  void peek(std::uint64_t (&n)[device_counts]) const {
    std::vector<std::uint64_t> rows(static_cast<std::size_t>(sizes_.max_batch) * device_counts);
    space_.peek(rows.data(), counters_.get(), rows.size() * sizeof(std::uint64_t));
    std::fill(std::begin(n), std::end(n), 0);
    for (std::size_t i = 0; i < rows.size(); ++i) n[i % device_counts] += rows[i];
  }

  /// Copies, waits, then tables, map and header of the step, in stream order.
  /// `queries`: of each request.
  void upload(stream on, step const& s, std::span<request_id const> batch, std::span<int const> queries,
              bool own_offsets, copy_queue<P, S>& copies) {
    copies.flush();
    effects& out = book().out;
    if (!out.waits.empty()) copies.wait(on, *std::max_element(out.waits.begin(), out.waits.end()));
    out.waits.clear();
    clear(on);
    rebase(on);

    bool direct = true;
    std::vector<row_record> rows;
    std::vector<std::int32_t> offsets;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      request_record const& r = book().at(batch[i].slot);
      direct &= r.missing == 0;
      rows.push_back({batch[i].slot, allocator_.tail_first(r),
                      static_cast<std::int32_t>(r.writable(queries[i] + geo::drafts_ahead))});
    }
    if (own_offsets) {
      offsets.push_back(0);
      for (int i = 0; i < s.padded; ++i)
        offsets.push_back(offsets.back() + (i < s.requests ? queries[static_cast<std::size_t>(i)] : 0));
    }
    header_[header_words::requests] = static_cast<std::uint32_t>(batch.size());
    header_[header_words::direct] = direct;
    std::vector<length_word> lengths;
    for (int slot : unique(out.lengths)) {
      request_record const& r = book().at(slot);
      lengths.push_back({slot, static_cast<std::int32_t>(r.tokens), static_cast<std::int32_t>(r.drafted),
                         static_cast<std::int32_t>(r.draft_from), r.ring});
    }
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
      auto put = [&]<class T>(std::vector<T> const& v) {
        return ring_.put(last ? std::span<T const>{v} : std::span<T const>{});
      };
      apply_body<P> const body{state_,
                               put(header_),
                               last ? static_cast<int>(header_.size()) : 0,
                               put(rows),
                               last ? static_cast<int>(rows.size()) : 0,
                               put(lengths),
                               last ? static_cast<int>(lengths.size()) : 0,
                               put(hot),
                               last && hot_ > 0 ? static_cast<int>(hot.size()) / (hot_ + 1) : 0,
                               put(offsets),
                               last ? static_cast<int>(offsets.size()) : 0,
                               ring_.put(std::span<map_word const>{words.data() + at, n}),
                               static_cast<int>(n),
                               writes_stride()};
      int const per_item = apply_body<P>::words_per_item;
      space_.run(on, 1 + (static_cast<int>(n) + per_item - 1) / per_item, body);
      ring_.close(space_.record(on));
      at += n;
    } while (at < words.size());
  }
  /// The head of the captured part.
  addresses_body<P> addresses(row_shape const& shape) const {
    addresses_body<P> body{state_, shape, writes_stride(), {}, 1};
    for (int r : P::ratios) body.ratios[geo::ratio_class(r)] = r;
    if (int const g = geometry_.drafter(); g >= 0)
      body.drafter_ratio = geometry_.ratio_of_set(geometry_.set_of_group(g));
    return body;
  }
  /// Where rows of given tokens of a local source are written.
  places_body<P> places(step const& s, int source, selected const& tokens, std::int32_t* out) const {
    return {state_, shape_of(s, tokens), tokens.positions, geometry_.ratio(source), geometry_.is_drafters(source), out};
  }
  /// Default write addresses of a local source.
  std::int32_t const* writes(int source) const {
    int const array = geometry_.is_drafters(source) ? ratio_count<P> : geo::ratio_class(geometry_.ratio(source));
    return state_.writes + std::int64_t{array} * writes_stride();
  }
  draft_batch draft(step const& s) const {
    return {state_.header, state_.rows, state_.committed, state_.rings, s.shape};
  }
  std::int32_t* ring_writes() const { return ring_writes_; }
  /// The resolve of local group g.
  resolve_body<P> resolve(int g, step const& s, selected const& what, typename P::metadata::ref out) const {
    int const set = geometry_.set_of_group(g);
    resolve_body<P> body{.step = state_,
                         .hot = {},
                         .staging = staging_,
                         .first_source = rows_.view(geometry_.source_of_set(set, 0)),
                         .source_count = geometry_.sources_of_set(set),
                         .page_shift = geometry_.layout(geometry_.source_of_set(set, 0)).shift,
                         .ratio_shift = std::countr_zero(static_cast<unsigned>(geometry_.ratio_of_set(set))),
                         .shape = shape_of(s, what),
                         .padded = s.padded,
                         .selection = what.positions,
                         .bounds = what.bounds != nullptr ? what.bounds : state_.bounds,
                         .out = out,
                         .lists = lists_,
                         .plan = geometry_.sources_of_set(set) > 1 ? plan_ : row_plan{},
                         .counters = reinterpret_cast<std::uint64_t*>(counters_.get()),
                         .zero_address = sizes_.frames * (P::page_tokens / geometry_.ratio_of_set(set)),
                         .drafter = g == geometry_.drafter()};
    if (!tables_.empty()) body.hot = tables_[static_cast<std::size_t>(set)];
    body.hot.ordinal = resolve_ordinal(g) + what.pass * stamps_per_resolve<P>;
    body.staging.ordinal = what.pass == 0 ? g : geometry_.groups() + what.pass - 1;
    return body;
  }
  /// Rows of a resolve, by default the step's.
  static row_shape shape_of(step const& s, selected const& what) {
    if (what.offsets != nullptr) return {what.queries, what.rows, what.offsets};
    if (what.queries > 0) return {what.queries, s.padded * what.queries, nullptr};
    return s.shape;
  }
  row_plan const& plan() const { return plan_; }
  /// The prefetch for local group g: behind the resolves of its table before g's, and before g's.
  prefetch_body<P> prefetch(int g, step const& s, candidates const& pool) const
    requires P::tiers::caches
  {
    int const set = geometry_.set_of_group(g);
    prefetch_body<P> body{.step = state_,
                          .hot = tables_[static_cast<std::size_t>(set)],
                          .page_shift = geometry_.layout(geometry_.source_of_set(set, 0)).shift,
                          .ratio_shift = std::countr_zero(static_cast<unsigned>(geometry_.ratio_of_set(set))),
                          .shape = s.shape,
                          .pool = pool,
                          .plan = ahead_,
                          .source_count = geometry_.sources_of_set(set),
                          .counters = reinterpret_cast<std::uint64_t*>(counters_.get())};
    body.hot.ordinal = resolve_ordinal(g) - 1;
    return body;
  }

  /// Committed lengths grow on the device.
  /// `device`: where it has the numbers and `words` only slots; `taken`: gets them, or null.
  void commit(stream on, step const& s, std::span<accepted_word const> words, on_device device, accepted_word* taken) {
    if (words.empty()) return;
    auto const* list = ring_.put(words);
    space_.run(
        on, 1,
        commit_body<P>{state_, list, static_cast<int>(words.size()), device.accepted, device.drafted, s.shape, taken});
  }

  /// Every `use_period` steps the batch's use counts go to the host. Returns: where the step's ticket goes once it has one,
  /// the counts being taken over when it is done; null where nothing is read.
  ticket* read_uses(stream on, std::uint64_t step, std::span<request_id const> batch) {
    if constexpr (P::keep::wants_uses) {
      if (batch.empty() || step % defaults::use_period != 0) return nullptr;
      uses_snapshot* into = nullptr;
      for (uses_snapshot& s : uses_) into = s.at == ticket::none ? &s : into;
      if (into == nullptr) return nullptr;
      into->requests.assign(batch.begin(), batch.end());
      into->pages = 0;
      std::vector<std::int32_t> slots;
      for (request_id id : batch) {
        slots.push_back(id.slot);
        into->pages = std::max(into->pages, static_cast<int>(book().at(id.slot).pages.size()));
      }
      auto const* list = ring_.put(std::span<std::int32_t const>{slots});
      space_.run(on, static_cast<int>(slots.size()),
                 uses_body<P>{state_, list, into->pages, reinterpret_cast<std::uint32_t*>(into->memory.get())});
      return &into->at;
    }
    return nullptr;
  }

  /// Use counts of steps whose tickets are done become the allocator's.
  void take_uses(ticket until) {
    if constexpr (P::keep::wants_uses) {
      for (uses_snapshot& s : uses_) {
        if (s.at == ticket::none || s.at > until) continue;
        auto const* words = reinterpret_cast<std::uint32_t const*>(s.memory.get());
        for (std::size_t i = 0; i < s.requests.size(); ++i) {
          request_record& r = book().at(s.requests[i].slot);
          if (r.phase != phase::vacant && r.id == s.requests[i])
            allocator_.set_uses(r, {words + i * static_cast<std::size_t>(s.pages), static_cast<std::size_t>(s.pages)});
        }
        s.at = ticket::none;
      }
    }
  }

 private:
  struct uses_snapshot {
    ticket at = ticket::none;
    std::vector<request_id> requests;
    int pages = 0;
    std::shared_ptr<std::byte> memory;
  };

  ledger& book() { return allocator_.book(); }
  int map_pages() const { return static_cast<int>(pages_for(sizes_.max_tokens, P::page_tokens)); }

  template <class T>
  T* device(std::size_t n) {
    owned_.push_back(space_.device_memory(std::max<std::size_t>(n, 1) * sizeof(T)));
    return reinterpret_cast<T*>(owned_.back().get());
  }
  void make(sizing<P> const& sizing) {
    std::size_t const requests = static_cast<std::size_t>(sizes_.requests);
    std::size_t const rows = static_cast<std::size_t>(writes_stride());
    header_.assign(static_cast<std::size_t>(header_words::set_stamps + geometry_.sets()), 0);
    state_ = {
        device<std::uint32_t>(header_.size()),
        device<row_record>(static_cast<std::size_t>(sizes_.max_batch)),
        device<std::int32_t>(requests),
        geometry_.drafter() >= 0 ? device<std::int32_t>(requests) : nullptr,
        geometry_.drafter() >= 0 || P::draft.layers > 0 ? device<std::int32_t>(requests) : nullptr,
        P::draft.layers > 0 ? device<std::int32_t>(requests) : nullptr,
        device<std::int32_t>(static_cast<std::size_t>(sizes_.max_batch) + 1),
        device<std::int32_t>(requests * static_cast<std::size_t>(hot_)),
        device<std::int32_t>(rows),
        device<std::int32_t>(rows * static_cast<std::size_t>(ratio_count<P> + (geometry_.drafter() >= 0 ? 1 : 0))),
        P::keep::wants_uses ? device<std::uint32_t>(requests * static_cast<std::size_t>(map_pages())) : nullptr,
        map_.ref(),
        hot_};
    if constexpr (resolve_body<P>::list_rows > 0)
      lists_ = device<wanted_row>(static_cast<std::size_t>(sizes_.max_batch) * resolve_body<P>::list_rows);
    if (P::draft.layers > 0) ring_writes_ = device<std::int32_t>(rows);
    if (P::tiers::caches && geometry_.largest_set() > 1) plan_ = plan_of(P::max_queries * P::top_k);
    if (P::tiers::caches && P::candidate_pool > 0) ahead_ = plan_of(sizes_.prefetch_rows);
    counters_ =
        space_.device_memory(static_cast<std::size_t>(sizes_.max_batch) * device_counts * sizeof(std::uint64_t));
    for (uses_snapshot& s : uses_) {
      if (P::keep::wants_uses)
        s.memory = space_.shared_memory(static_cast<std::size_t>(sizes_.max_batch) *
                                        static_cast<std::size_t>(map_pages()) * sizeof(std::uint32_t));
    }
    if constexpr (P::tiers::caches) {
      for (int set = 0; set < geometry_.sets(); ++set) {
        int const ways = table_ways(hot_, P::page_tokens / geometry_.ratio_of_set(set));
        tables_.push_back({device<std::uint32_t>(requests * static_cast<std::size_t>(std::max(ways, set_ways))),
                           ways,
                           {sizing.bits, P::tiers::cache::exponent_bits},
                           header_words::set_stamps + set,
                           0,
                           (geometry_.groups_of_set(set) + extra_passes(set)) * stamps_per_resolve<P>});
        next_stamp_.push_back(1);
      }
      staging_ = {device<std::uint32_t>(static_cast<std::size_t>(sizes_.max_batch) *
                                        static_cast<std::size_t>(std::max(sizing.staging_ways, set_ways))),
                  sizing.staging_ways,
                  {sizing.bits, 0},
                  header_words::staging_stamp,
                  0,
                  geometry_.groups() + (geometry_.drafter() >= 0 ? P::drafter_passes - 1 : 0)};
      clear_tables_ = space_.shared_memory(tables_.size() * sizeof(clear_body::table));
      for (std::size_t i = 0; i < tables_.size(); ++i)
        reinterpret_cast<clear_body::table*>(clear_tables_.get())[i] = {tables_[i].words, tables_[i].ways,
                                                                        tables_[i].stride()};
    }
  }

  row_plan plan_of(int rows) {
    std::size_t const batch = static_cast<std::size_t>(sizes_.max_batch);
    return {device<wanted_row>(batch * static_cast<std::size_t>(rows)), device<std::uint32_t>(batch), rows};
  }
  /// Resolves of a set's table beside one of each group.
  int extra_passes(int set) const {
    return geometry_.drafter() >= 0 && geometry_.set_of_group(geometry_.drafter()) == set ? P::drafter_passes - 1 : 0;
  }
  /// Stamp of a group's resolve among those of its table in a step, fixed at capture; that of its prefetch is one less.
  int resolve_ordinal(int g) const {
    int before = 0;
    for (int k = 0; k < g; ++k) before += geometry_.set_of_group(k) == geometry_.set_of_group(g);
    return (before + 1) * stamps_per_resolve<P> - 1;
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
    space_.run(on, static_cast<int>(slots.size()) * sets,
               clear_body{list, reinterpret_cast<clear_body::table const*>(clear_tables_.get()), sets, state_.uses,
                          map_pages()});
    ring_.close(space_.record(on));
  }
  /// Gives every table its stamps for this step, and lowers old stamps before they run out.
  void rebase(stream on) {
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      table_ref const& t = tables_[i];
      std::uint32_t const last = t.format.last_stamp();
      if (next_stamp_[i] + static_cast<std::uint32_t>(t.steps) > last) {
        std::uint32_t const by = next_stamp_[i] - 1 - last / 2;
        space_.run(on, sizes_.requests, rebase_body{t.words, t.ways, t.stride(), t.format, by});
        next_stamp_[i] -= by;
      }
      header_[static_cast<std::size_t>(t.stamp_word)] = next_stamp_[i];
      next_stamp_[i] += static_cast<std::uint32_t>(t.steps);
    }
    if (staging_.ways > 0 &&
        next_staging_ + static_cast<std::uint32_t>(staging_.steps) > staging_.format.last_stamp()) {
      space_.zero(on, staging_.words,
                  static_cast<std::size_t>(sizes_.max_batch) * static_cast<std::size_t>(staging_.stride()) *
                      sizeof(std::uint32_t));
      next_staging_ = 1;
    }
    header_[header_words::staging_stamp] = next_staging_;
    next_staging_ += static_cast<std::uint32_t>(staging_.steps);
  }

  S space_;
  geometry<P> const& geometry_;
  sizes sizes_;
  int hot_;
  arenas<P, S> const& rows_;
  upload_ring<S>& ring_;
  loan_allocator<P>& allocator_;
  resident_map<P, S> map_;

  std::vector<std::shared_ptr<std::byte>> owned_;
  step_ref<P> state_{};
  std::vector<std::uint32_t> header_;
  std::vector<table_ref> tables_;  ///< of each set
  std::vector<std::uint32_t> next_stamp_;
  table_ref staging_;
  std::uint32_t next_staging_ = 1;
  std::shared_ptr<std::byte> clear_tables_;
  wanted_row* lists_ = nullptr;
  std::int32_t* ring_writes_ = nullptr;  ///< [max_batch · max_queries] of a windowed drafter
  row_plan plan_, ahead_;                ///< of the last resolve, and of the last prefetch
  std::shared_ptr<std::byte> counters_;  ///< [max_batch][device_counts]
  std::array<uses_snapshot, 2> uses_{};
};

}  // namespace ebb

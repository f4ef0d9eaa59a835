#pragma once
/// The resolve body: every selected position becomes a GPU address, every missing row is fetched once.

#include <ebb/capacity.hpp>
#include <ebb/device_counters.hpp>
#include <ebb/metadata/metadata.hpp>
#include <ebb/orders/keep.hpp>
#include <ebb/row_in_flight.hpp>
#include <ebb/step_state.hpp>
#include <ebb/tiers/host_pages.hpp>
#include <ebb/tiers/row_table.hpp>

#include <algorithm>
#include <type_traits>

namespace ebb {

/// A position that was not found: where it comes from and where its address goes.
struct alignas(16) wanted_row {
  std::int64_t backing;  ///< row of the backing tier
  std::int32_t row;      ///< its position; once claimed, the address of its slot in the group's first source
  std::int32_t entry;    ///< index into the request's metadata; once claimed, 1 where the row is to be fetched
};

/// The table of one place for all requests: `ways` words each.
struct table_ref {
  std::uint32_t* words = nullptr;
  int ways = 0;
  word_format format{};
  int stamp_word = 0;  ///< header word with the step's first stamp
  int ordinal = 0;     ///< of this resolve among those of the step, fixed at capture
  int steps = 1;

  /// Words from one request's table to the next: a look reads whole sets, so a table has one at least.
  EBB_FN int stride() const { return ways < set_ways ? set_ways : ways; }
};

/// Resolves one group for one request of the batch: find, barrier, claim, barrier, copy (docs/architecture.md).
///
/// Shapes: selection `[padded · queries][top_k]` positions in rows of the group's sources, −1 = none; metadata as its
/// policy says. Concurrency: one team per request; teams share nothing but counters. Cost: two map and table looks for
/// each position, bytes of missing rows over the link; neither history length nor loans matter. A row cache of up to
/// `near_ways` ways is read once into shared memory and searched there, where a larger one is searched in device memory.
template <policy P>
struct resolve_body {
  static constexpr int threads(int blocks) { return blocks <= 2 ? 1024 : 512; }
  static constexpr int most_blocks = 8;
  static constexpr int near_ways = 8192;
  static constexpr int near_frames = 512;
  static constexpr int near_list = 1024;  ///< wanted rows of a block that shared memory holds
  using metadata = typename P::metadata;
  using cache = typename P::tiers::cache;
  using geo = geometry_of<P>;
  static constexpr int largest_set = geo::largest_set();
  static constexpr int width = metadata::width(P::top_k);
  /// Wanted rows of a request that shared memory may lack room for, whatever its team.
  static constexpr int list_rows = [] {
    int most = 0;
    for (int blocks = 1; blocks <= most_blocks; blocks *= 2) {
      int const columns = (P::top_k + 32 * blocks - 1) / (32 * blocks) * 32;  // that the lanes of a block look at
      int const rows = blocks * (P::max_queries * columns - near_list);
      most = rows > most ? rows : most;
    }
    return most;
  }();

  step_ref<P> step;
  table_ref hot;
  table_ref staging;
  source_view sources[largest_set];
  int source_count;
  int page_shift;  ///< log2 of rows per page
  int ratio_shift;
  int queries;
  std::int32_t const* selection;
  typename metadata::ref out;
  wanted_row* lists;          ///< [max_batch][list_rows]
  std::uint64_t* counters;    ///< [max_batch][device_counts]
  std::int32_t zero_address;  ///< a row of zeroes, where the metadata needs one

  /// Rows that queries want after another has listed them.
  struct repetitions {
    static constexpr int slots = 4096;
    static constexpr int most = std::min(P::max_queries * P::top_k, 16384);
    std::uint32_t noted;
    std::uint32_t row[slots];        ///< position + 1, 0: free
    std::uint16_t place[slots];      ///< of the row in the list
    std::uint32_t slot_entry[most];  ///< slot · 65,536 + index into the request's metadata
  };
  static constexpr bool notes_repetitions = P::max_queries > 1 && P::max_queries* width <= 1 << 16;

  struct shared {
    std::uint32_t missing;
    std::int32_t frames[near_frames];
    alignas(16) std::uint32_t words[near_ways];
    alignas(16) std::uint32_t tags[near_ways / 4];
    wanted_row list[near_list];
    std::conditional_t<notes_repetitions, repetitions, no_shared> again;
  };

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item, shared& s) const {
    chunk<T> first;
    read_positions(t, item, 0, 0, first);
    view<T> const v{*this, t, s, item};
    tally n{};
    if (t.block_rank() == 0) s.missing = 0;
    if constexpr (notes_repetitions) {
      if (t.block_rank() == 0) s.again.noted = 0;
      EBB_ROLL
      for (int i = t.block_rank(); queries > 1 && i < repetitions::slots; i += T::block_width) s.again.row[i] = 0;
    }
    read_map(v, 0, first, n);
    if (v.cached) stage(v);
    t.block_sync();
    EBB_ROLL
    for (int j = 0; j < queries; ++j) find(v, j, first, n);
    report(v, n);
    if (!v.cached) return;  // all was found in frames
    t.block_sync();
    std::uint32_t const missing = s.missing;
    t.sync_or_leave(missing == 0);
    if (missing > 0) {
      claim(v, static_cast<int>(missing));
      t.block_sync();
      repeat(v);
    }
    if (v.hot.words == s.words) put_back(v);
    if (missing > 0) copy(v, static_cast<int>(missing));
  }

 private:
  /// What one lane counted.
  struct tally {
    std::uint32_t tail, lent, hot, invalid;
  };
  /// One request as its team sees it.
  template <class T>
  struct view {
    T const& t;
    shared& s;
    int item;
    bool real;
    bool cached;  ///< the row cache is to be asked
    row_record row;
    std::uint32_t staging_now;
    row_table hot;
    std::uint32_t* far_words;  ///< of the row cache, in device memory
    wanted_row* far;           ///< this block's part of the request's list
    typename metadata::entry* entries;
    std::uint64_t* counters;

    EBB_FN view(resolve_body const& b, T const& team, shared& memory, int i)
        : t{team},
          s{memory},
          item{i},
          real{i < static_cast<int>(b.step.header[header_words::requests])},
          cached{real && b.step.header[header_words::direct] == 0},
          row{b.step.rows[i]},
          staging_now{b.step.header[header_words::staging_stamp] + static_cast<std::uint32_t>(b.staging.ordinal)} {
      if (!real) row = {0, 0, 0};
      bool const near = cached && b.hot.ways > 0 && b.hot.ways <= near_ways && b.step.hot <= near_frames;
      far_words = b.hot.words + std::int64_t{row.slot} * b.hot.stride();
      hot = {.words = near && T::blocks == 1 ? memory.words : far_words,
             .ways = b.hot.ways,
             .format = b.hot.format,
             .now = b.step.header[b.hot.stamp_word] + static_cast<std::uint32_t>(b.hot.ordinal),
             .steps = b.hot.steps,
             .seen = memory.words,
             .tags = memory.tags,
             .near = near};
      far = b.lists + std::int64_t{i} * list_rows + t.block() * (list_rows / T::blocks);
      entries = metadata::entries(b.out) + std::int64_t{i} * b.queries * width;
      counters = b.counters + i * device_counts;
    }
    EBB_FN wanted_row& wanted(int i) const { return i < near_list ? s.list[i] : far[i - near_list]; }
  };

  /// Counts what is rare at once.
  template <class T>
  EBB_FN void tell(view<T> const& v, count c, std::uint32_t n) const {
    if constexpr (P::count) v.t.add(v.counters + static_cast<int>(c), std::uint64_t{n});
  }

  /// Brings the row cache's words and frames near: as many loads at a time as a table of 8 words a lane needs.
  template <class T>
  EBB_FN void stage(view<T> const& v) const {
    if (!v.hot.near) return;
    EBB_ROLL
    for (int i = v.t.block_rank(); i < step.hot; i += T::block_width)
      v.s.frames[i] = step.hot_frames[std::int64_t{v.row.slot} * step.hot + i];
    int const all = hot.stride() / 4;
    int const stamp_and_exponent = 32 - hot.format.position_bits;
    EBB_ROLL
    for (int first = v.t.block_rank(); first < all; first += 2 * T::block_width) {
      four_words held[2];
      EBB_UNROLL
      for (int k = 0; k < 2; ++k) {
        int const i = first + k * T::block_width;
        // By words: another block of the team may be pinning some of them already.
        if (i < all)
          v.t.load_set(static_cast<std::uint32_t const*>(__builtin_assume_aligned(v.far_words + 4 * i, 16)), 4,
                       held[k].of);
      }
      EBB_UNROLL
      for (int k = 0; k < 2; ++k) {
        int const i = first + k * T::block_width;
        if (i >= all) continue;
        reinterpret_cast<four_words*>(v.s.words)[i] = held[k];
        std::uint32_t tags = 0;
        EBB_UNROLL
        for (int b = 0; b < 4; ++b) tags |= tag_of(held[k].of[b] >> stamp_and_exponent) << 8 * b;
        v.s.tags[i] = tags;
      }
    }
  }
  /// A team of one block changes the near words: they replace the far ones.
  template <class T>
  EBB_FN void put_back(view<T> const& v) const {
    four_words* const to = reinterpret_cast<four_words*>(v.far_words);
    EBB_ROLL
    for (int i = v.t.block_rank(); i < hot.stride() / 4; i += T::block_width)
      to[i] = reinterpret_cast<four_words const*>(v.s.words)[i];
  }

  /// The row slot of a way, as an address from the first source.
  template <class T>
  EBB_FN std::int32_t hot_address(view<T> const& v, int way) const {
    int const k = way >> page_shift;
    std::int32_t const frame = v.hot.near ? v.s.frames[k] : step.hot_frames[std::int64_t{v.row.slot} * step.hot + k];
    return (frame << page_shift) + (way & ((1 << page_shift) - 1));
  }

  /// What a lane looks for at a time.
  template <class T>
  struct chunk {
    static constexpr int passes = (P::top_k + T::width - 1) / T::width;  ///< of a query
    static constexpr int size = passes < 4 ? passes : 4;
    std::int32_t bound;           ///< of the query, tokens
    std::int32_t position[size];  ///< −1: none
    map_entry where[size];

    /// The next column's turn.
    EBB_FN void turn() {
      EBB_UNROLL
      for (int k = 0; k + 1 < size; ++k) {
        position[k] = position[k + 1];
        where[k] = where[k + 1];
      }
    }
  };
  template <class T>
  EBB_FN void read_positions(T const& t, int item, int j, int first, chunk<T>& c) const {
    int const query = item * queries + j;
    std::int32_t const* const from = selection + std::int64_t{query} * P::top_k;
    EBB_UNROLL
    for (int k = 0; k < chunk<T>::size; ++k) {
      int const column = (first + k) * T::width + t.rank();
      c.position[k] = column < P::top_k ? from[column] : -1;
    }
    c.bound = step.bounds[query];
  }
  template <class T>
  EBB_FN void read_map(view<T> const& v, int first, chunk<T>& c, tally& n) const {
    map_entry const* const map = &step.map.at(v.row.slot, 0);
    EBB_UNROLL
    for (int k = 0; k < chunk<T>::size; ++k) {
      int const column = (first + k) * T::width + v.t.rank();
      std::int32_t const bound = v.real ? c.bound >> ratio_shift : 0;
      bool const valid = c.position[k] >= 0 && c.position[k] < bound;
      bool const refused = v.real && column < P::top_k && !valid;
      n.invalid += refused && c.position[k] == -1;
      if (refused && c.position[k] != -1) [[unlikely]]
        tell(v, count::rejected, 1);
      if (!valid) c.position[k] = -1;
      if (valid) c.where[k] = map[c.position[k] >> page_shift];
    }
  }

  /// One query; `c` holds its first chunk, and afterwards the next query's.
  template <class T>
  EBB_FN void find(view<T> const& v, int j, chunk<T>& c, tally& n) const {
    typename metadata::entry* const entries = v.entries + j * width;
    typename metadata::entry filler = metadata::invalid();
    if constexpr (metadata::packed) filler = metadata::make(sources[0], newest_row(v));
    int valid_before = 0;
    EBB_ROLL
    for (int first = 0; first < chunk<T>::passes; first += chunk<T>::size) {
      chunk<T> next;
      bool const ends = first + chunk<T>::size >= chunk<T>::passes;
      bool const more = !ends || j + 1 < queries;
      int const next_query = ends ? j + 1 : j, next_first = ends ? 0 : first + chunk<T>::size;
      if (more) read_positions(v.t, v.item, next_query, next_first, next);
      EBB_ROLL
      for (int k = 0; k < chunk<T>::size; ++k, c.turn()) {
        int const column = (first + k) * T::width + v.t.rank();
        bool const valid = c.position[0] >= 0;
        int at = column;
        if constexpr (metadata::packed) {
          vote const all = v.t.prefix(valid);
          at = valid_before + all.before;
          valid_before += all.all;
        }
        if (valid) {
          look(v, c.position[0], c.where[0], entries, at, j * width + at, n);
        } else if (!metadata::packed && column < P::top_k) {
          entries[column] = filler;
        }
      }
      if (more) {
        read_map(v, next_first, next, n);
        c = next;
      }
    }
    int const used = metadata::packed ? valid_before : P::top_k;
    EBB_ROLL
    for (int i = used + v.t.rank(); i < width; i += T::width) entries[i] = filler;
    if constexpr (metadata::packed) {
      if (v.t.rank() == 0)
        metadata::lengths(out)[std::int64_t{v.item} * queries + j] = valid_before > 1 ? valid_before : 1;
    }
  }

  /// One valid position: in a frame, in the row cache, or noted as missing.
  template <class T>
  EBB_FN void look(view<T> const& v, std::int32_t position, map_entry const& where, typename metadata::entry* entries,
                   int at, int entry, tally& n) const {
    std::int32_t const page = position >> page_shift;
    int const offset = position & ((1 << page_shift) - 1);
    if constexpr (P::keep::wants_uses) {
      if (mix(static_cast<std::uint32_t>(position), mix(v.staging_now, 0)) % defaults::use_sample == 0) {
        v.t.add(step.uses + std::int64_t{v.row.slot} * step.map.pages + page, std::uint32_t{1});
      }
    }
    if (where.frame != frame_id::none) {
      entries[at] = metadata::make(sources[0], (index(where.frame) << page_shift) + offset);
      bool const tail = page >= v.row.tail_first;
      n.tail += tail;
      n.lent += !tail;
      return;
    }
    if constexpr (P::tiers::caches) {
      if (v.cached) {
        int const way = cache::find(v.t, v.hot, position);
        if (way >= 0) {
          entries[at] = metadata::make(sources[0], hot_address(v, way));
          ++n.hot;
          return;
        }
      }
    }
    std::int64_t const backing = v.cached ? P::tiers::fetch(where, offset, 1 << page_shift) : -1;
    if (backing < 0) [[unlikely]] {
      entries[at] = lost();
      tell(v, count::lost, 1);
      return;
    }
    if constexpr (notes_repetitions) {
      if (queries > 1 && repeats(v, position, entry, backing)) return;
    }
    v.wanted(static_cast<int>(v.t.add(&v.s.missing, 1u))) = {backing, position, entry};
  }
  /// True where a row is listed by now, by this lane or by another; else the lane lists it once more, which costs a
  /// claim.
  template <class T>
  EBB_FN bool repeats(view<T> const& v, std::int32_t position, int entry, std::int64_t backing) const {
    repetitions& again = v.s.again;
    std::uint32_t const row = static_cast<std::uint32_t>(position) + 1;
    int slot = onto(mix(row, 0x9e3779b9u), repetitions::slots);
    EBB_ROLL
    for (int tries = 0; tries < 8; ++tries, slot = (slot + 1) % repetitions::slots) {
      std::uint32_t const found = v.t.exchange(again.row + slot, 0, row);
      if (found == 0) {
        std::uint32_t const place = v.t.add(&v.s.missing, 1u);
        again.place[slot] = static_cast<std::uint16_t>(place);
        v.wanted(static_cast<int>(place)) = {backing, position, entry};
        return true;
      }
      if (found != row) continue;
      std::uint32_t const n = v.t.add(&again.noted, 1u);
      if (n < repetitions::most)
        again.slot_entry[n] = static_cast<std::uint32_t>(slot) << 16 | static_cast<std::uint32_t>(entry);
      return n < repetitions::most;
    }
    return false;
  }
  /// Gives the repetitions what was claimed for the first of them.
  template <class T>
  EBB_FN void repeat(view<T> const& v) const {
    if constexpr (notes_repetitions) {
      if (queries == 1) return;
      repetitions const& again = v.s.again;
      int const all =
          static_cast<int>(again.noted) < repetitions::most ? static_cast<int>(again.noted) : repetitions::most;
      EBB_ROLL
      for (int i = v.t.block_rank(); i < all; i += T::block_width) {
        std::uint32_t const n = again.slot_entry[i];
        std::int32_t const address = v.wanted(again.place[n >> 16]).row;
        v.entries[n & 0xffff] = address < 0 ? lost() : metadata::make(sources[0], address);
      }
      if (v.t.block_rank() == 0) tell(v, count::misses, static_cast<std::uint32_t>(all));
    }
  }
  EBB_FN typename metadata::entry lost() const {
    return metadata::packed ? metadata::make(sources[0], zero_address) : metadata::invalid();
  }

  /// Gives each wanted row a slot, a bundle of lanes a row. All claims come before the first copy: what is read
  /// over the link holds up later loads of the same multiprocessor, claims among them (decision 10).
  template <class T>
  EBB_FN void claim(view<T> const& v, int all) const {
    std::uint32_t fetched = 0, staged = 0;
    EBB_ROLL
    for (int first = 0; first < all; first += T::block_width / T::bundle) {
      int const i = first + v.t.block_rank() / T::bundle;
      bool const wants = i < all;
      wanted_row const w = wants ? v.wanted(i) : wanted_row{0, -1, 0};
      slot_of const slot = claim_one(v, w.row);
      if (!wants || v.t.bundle_rank() != 0) continue;
      v.entries[w.entry] = slot.address < 0 ? lost() : metadata::make(sources[0], slot.address);
      if (slot.address < 0) [[unlikely]]
        tell(v, count::lost, 1);
      v.wanted(i).row = slot.address;
      v.wanted(i).entry = slot.fetch;
      fetched += slot.fetch;
      staged += slot.fetch && slot.staged;
    }
    if constexpr (P::count) {
      if (v.t.block_rank() == 0) tell(v, count::misses, static_cast<std::uint32_t>(all));
      v.t.add_all(v.counters + static_cast<int>(count::fetched_rows),
                  fetched * static_cast<std::uint32_t>(source_count));
      v.t.add_all(v.counters + static_cast<int>(count::staged_rows), staged);
    }
  }
  /// Copies the rows that were given slots, for every source of the set, a bundle a row.
  template <class T>
  EBB_FN void copy(view<T> const& v, int all) const {
    EBB_ROLL
    for (int i = v.t.block_rank() / T::bundle; i < all; i += T::block_width / T::bundle) {
      wanted_row const w = v.wanted(i);
      if (w.entry == 0) continue;
      EBB_ROLL
      for (int k = 0; k < source_count; ++k) {
        row_in_flight<P, T> flying;
        flying.read(v.t, sources[k], w.backing);
        flying.write(v.t, sources[k], w.backing, address_in(sources[k], w.row));
      }
    }
  }
  struct slot_of {
    std::int32_t address = -1;
    bool fetch = false;
    bool staged = false;
  };
  /// The places in list order, then once more for anything unpinned: with hot rows + staging ≥ queries · top_k a claim
  /// always succeeds. Collective of the warp; position −1: nothing is wanted.
  template <class T>
  EBB_FN slot_of claim_one(view<T> const& v, std::int32_t position) const {
    row_table const staged_rows{staging.words + std::int64_t{v.item} * staging.stride(), staging.ways, staging.format,
                                v.staging_now, staging.steps};
    slot_of slot{};
    EBB_ROLL
    for (int last = 0; last < 2; ++last) {
      P::tiers::for_each_place([&]<class Place>() {
        std::int32_t const wanted = slot.address < 0 ? position : -1;
        if (!v.t.some(wanted >= 0)) return;
        constexpr bool staged = Place::kind == tier_kind::staging;
        claimed const c = Place::claim(v.t, staged ? staged_rows : v.hot, wanted, last == 1);
        bool const fetch = v.t.least(c.fetch ? 0 : 1) == 0;  // where lanes of a bundle raced, one of them won
        if (wanted < 0 || c.way < 0) return;
        slot = {staged ? sources[0].staging + v.item * staging.ways + c.way : hot_address(v, c.way), fetch, staged};
      });
    }
    return slot;
  }

  /// The same row slot in another source of the set.
  EBB_FN std::int32_t address_in(source_view const& v, std::int32_t address) const {
    return sources[0].is_staged(address) ? address - sources[0].staging + v.staging : address;
  }
  /// The request's newest committed row, or the row of zeroes: a legal dummy.
  template <class T>
  EBB_FN std::int32_t newest_row(view<T> const& v) const {
    if (!v.real) return zero_address;
    std::int32_t const rows = step.committed[v.row.slot] >> ratio_shift;
    if (rows == 0) return zero_address;
    map_entry const where = step.map.at(v.row.slot, (rows - 1) >> page_shift);
    return where.frame == frame_id::none ? zero_address
                                         : (index(where.frame) << page_shift) + ((rows - 1) & ((1 << page_shift) - 1));
  }

  template <class T>
  EBB_FN void report(view<T> const& v, tally const& n) const {
    if constexpr (P::count) {
      auto const sum = [&](count c, std::uint32_t k) { v.t.add_all(v.counters + static_cast<int>(c), k); };
      sum(count::tail_hits, n.tail);
      sum(count::lent_hits, n.lent);
      sum(count::hot_hits, n.hot);
      sum(count::invalid, n.invalid);
    }
  }
};

/// Rewrites the metadata of a group's leader for a follower: the same slots, of another source.
template <policy P>
struct replay_body {
  using metadata = typename P::metadata;
  static constexpr int width = metadata::width(P::top_k);
  source_view from;
  source_view to;
  typename P::metadata::ref in;
  typename P::metadata::ref out;
  int queries;

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    std::int64_t const first = std::int64_t{item} * queries * width;
    for (int i = t.rank(); i < queries * width; i += T::width) {
      metadata::entries(out)[first + i] = metadata::translate(metadata::entries(in)[first + i], from, to);
    }
    if constexpr (metadata::packed) {
      for (int j = t.rank(); j < queries; j += T::width)
        metadata::lengths(out)[item * queries + j] = metadata::lengths(in)[item * queries + j];
    }
  }
};

}  // namespace ebb

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

namespace ebb {

/// A position that was not found: where it comes from and where its address goes.
struct alignas(16) wanted_row {
  std::int64_t backing;  ///< row of the backing tier
  std::int32_t row;      ///< its position; once claimed, the address of its slot in the group's first source
  std::int32_t entry;    ///< index into the request's metadata; once claimed, 1 where the row is to be fetched
};

/// Rows that get slots: of each request a list, `counts` long.
struct row_plan {
  wanted_row* rows = nullptr;  ///< [max_batch][stride]; `entry` −1: to be copied
  std::uint32_t* counts = nullptr;
  int stride = 0;
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
/// Shapes: selection `[rows][top_k]` positions in rows of the group's sources, −1 = none; metadata as its
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
  source_view first_source;
  int source_count;
  int page_shift;  ///< log2 of rows per page
  int ratio_shift;
  row_shape shape;
  int padded;
  std::int32_t const* selection;
  std::int32_t const* bounds;  ///< of each row, tokens, exclusive
  typename metadata::ref out;
  wanted_row* lists;          ///< [max_batch][list_rows]
  row_plan plan;              ///< what it copies for the first source, for the others; null where there are none
  std::uint64_t* counters;    ///< [max_batch][device_counts]
  std::int32_t zero_address;  ///< a row of zeroes, where the metadata needs one
  bool drafter;               ///< rows before the request's `draft_from` are not there

  static constexpr int near_slots = P::max_queries > 1 ? 4096 : 1;  ///< of the table that finds repetitions

  struct shared {
    std::uint32_t missing;
    std::int32_t frames[near_frames];
    alignas(16) std::uint32_t words[near_ways];
    alignas(16) std::uint32_t tags[near_ways / 4];
    wanted_row list[near_list];
    std::uint32_t listed[near_slots];  ///< 1 + place in the list of a row, 0: free
  };

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item, shared& s) const {
    chunk<T> first;
    query_rows const own = shape.of(item);
    read_positions(t, own, 0, 0, first);
    view<T> const v{*this, t, s, item, own};
    tally n{};
    if (t.block_rank() == 0) s.missing = 0;
    if (plan.rows != nullptr && t.rank() == 0) plan.counts[item] = 0;
    read_map(v, 0, 0, first, n);
    if (v.cached) stage(v);
    t.block_sync();
    EBB_ROLL
    for (int j = 0; j < v.own.count; j += chunk<T>::side) find(v, j, first, n);
    if (shape.offsets != nullptr) pad(v);
    report(v, n);
    if (!v.cached) return;  // all was found in frames
    t.block_sync();
    std::uint32_t const missing = s.missing;
    t.sync_or_leave(missing == 0);
    if (missing > 0) {
      bool const repeats = P::max_queries > 1 && v.own.count > 1;
      if (repeats) mark_repetitions(v, static_cast<int>(missing));
      claim(v, static_cast<int>(missing));
      t.block_sync();
      if (repeats) repeat(v, static_cast<int>(missing));
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
    query_rows own;
    bool real;
    bool cached;  ///< the row cache is to be asked
    row_record row;
    std::uint32_t staging_now;
    std::int32_t first_row = 0;  ///< that is there
    row_table hot;
    std::uint32_t* far_words;  ///< of the row cache, in device memory
    wanted_row* far;           ///< this block's part of the request's list
    typename metadata::entry* entries;
    std::uint64_t* counters;

    EBB_FN view(resolve_body const& b, T const& team, shared& memory, int i, query_rows rows)
        : t{team},
          s{memory},
          item{i},
          own{rows},
          real{i < static_cast<int>(b.step.header[header_words::requests])},
          cached{real && b.step.header[header_words::direct] == 0},
          row{b.step.rows[i]},
          staging_now{b.step.header[header_words::staging_stamp] + static_cast<std::uint32_t>(b.staging.ordinal)} {
      if (!real) row = {0, 0, 0};
      if (!real && b.shape.offsets != nullptr) own.count = 0;
      if constexpr (P::drafter_group >= 0) {
        if (real && b.drafter) first_row = (b.step.draft_from[row.slot] + (1 << b.ratio_shift) - 1) >> b.ratio_shift;
      }
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
      entries = metadata::entries(b.out) + std::int64_t{own.first} * width;
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
    /// Queries that the team looks at side by side, where it has lanes for more than one.
    static constexpr int side = [] {
      int n = 1;
      while (!metadata::packed && 2 * n <= P::max_queries && T::width % (2 * n) == 0 && T::width / (2 * n) >= P::top_k)
        n *= 2;
      return n;
    }();
    static constexpr int lanes = T::width / side;  ///< of a query
    static constexpr int passes = (P::top_k + lanes - 1) / lanes;
    static constexpr int size = passes < 4 ? passes : 4;
    std::int32_t bound;           ///< of the query, tokens; 0 where there is none
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
  EBB_FN void read_positions(T const& t, query_rows rows, int j, int first, chunk<T>& c) const {
    int const own = j + t.rank() / chunk<T>::lanes;
    int const query = rows.first + own;
    std::int32_t const* const from = selection + std::int64_t{query} * P::top_k;
    EBB_UNROLL
    for (int k = 0; k < chunk<T>::size; ++k) {
      int const column = (first + k) * chunk<T>::lanes + t.rank() % chunk<T>::lanes;
      c.position[k] = own < rows.count && column < P::top_k ? from[column] : -1;
    }
    c.bound = own < rows.count ? bounds[query] : 0;
  }
  template <class T>
  EBB_FN void read_map(view<T> const& v, int j, int first, chunk<T>& c, tally& n) const {
    map_entry const* const map = &step.map.at(v.row.slot, 0);
    EBB_UNROLL
    for (int k = 0; k < chunk<T>::size; ++k) {
      int const column = (first + k) * chunk<T>::lanes + v.t.rank() % chunk<T>::lanes;
      std::int32_t const bound = v.real ? c.bound >> ratio_shift : 0;
      bool const valid = c.position[k] >= v.first_row && c.position[k] < bound;
      bool const refused = v.real && !valid && column < P::top_k && j + v.t.rank() / chunk<T>::lanes < v.own.count;
      n.invalid += refused && c.position[k] == -1;
      if (refused && c.position[k] != -1) [[unlikely]]
        tell(v, count::rejected, 1);
      if (!valid) c.position[k] = -1;
      if (valid) c.where[k] = map[c.position[k] >> page_shift];
    }
  }

  /// The queries from j on that are looked at side by side; `c` holds their first chunk, and afterwards the next ones'.
  template <class T>
  EBB_FN void find(view<T> const& v, int j, chunk<T>& c, tally& n) const {
    int const own = j + v.t.rank() / chunk<T>::lanes;
    typename metadata::entry* const entries = v.entries + own * width;
    typename metadata::entry filler = metadata::invalid();
    if constexpr (metadata::packed) filler = metadata::make(first_source, newest_row(v));
    int valid_before = 0;
    EBB_ROLL
    for (int first = 0; first < chunk<T>::passes; first += chunk<T>::size) {
      chunk<T> next;
      bool const ends = first + chunk<T>::size >= chunk<T>::passes;
      bool const more = !ends || j + chunk<T>::side < v.own.count;
      int const next_query = ends ? j + chunk<T>::side : j, next_first = ends ? 0 : first + chunk<T>::size;
      if (more) read_positions(v.t, v.own, next_query, next_first, next);
      EBB_ROLL
      for (int k = 0; k < chunk<T>::size; ++k, c.turn()) {
        int const column = (first + k) * chunk<T>::lanes + v.t.rank() % chunk<T>::lanes;
        bool const valid = c.position[0] >= 0;
        int at = column;
        if constexpr (metadata::packed) {
          vote const all = v.t.prefix(valid);
          at = valid_before + all.before;
          valid_before += all.all;
        }
        if (valid) {
          look(v, c.position[0], c.where[0], entries, at, own * width + at, n);
        } else if (!metadata::packed && column < P::top_k && own < v.own.count) {
          entries[column] = filler;
        }
      }
      if (more) {
        read_map(v, next_query, next_first, next, n);
        c = next;
      }
    }
    int const used = metadata::packed ? valid_before : P::top_k;
    EBB_ROLL
    for (int i = used + v.t.rank() % chunk<T>::lanes; i < width && own < v.own.count; i += chunk<T>::lanes)
      entries[i] = filler;
    if constexpr (metadata::packed) {
      if (v.t.rank() == 0) metadata::lengths(out)[v.own.first + j] = valid_before > 1 ? valid_before : 1;
    }
  }

  /// Rows that belong to no request: the teams share them out.
  template <class T>
  EBB_FN void pad(view<T> const& v) const {
    typename metadata::entry filler = metadata::invalid();
    if constexpr (metadata::packed) filler = metadata::make(first_source, zero_address);
    int const requests = static_cast<int>(step.header[header_words::requests]);
    EBB_ROLL
    for (int row = shape.end(requests) + v.item; row < shape.rows; row += padded) {
      EBB_ROLL
      for (int i = v.t.rank(); i < width; i += T::width) metadata::entries(out)[std::int64_t{row} * width + i] = filler;
      if constexpr (metadata::packed) {
        if (v.t.rank() == 0) metadata::lengths(out)[row] = 1;
      }
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
      entries[at] = metadata::make(first_source, (index(where.frame) << page_shift) + offset);
      bool const tail = page >= v.row.tail_first;
      n.tail += tail;
      n.lent += !tail;
      return;
    }
    if constexpr (P::tiers::caches) {
      if (v.cached) {
        int const way = cache::find(v.t, v.hot, position);
        if (way >= 0) {
          entries[at] = metadata::make(first_source, hot_address(v, way));
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
    v.wanted(static_cast<int>(v.t.add(&v.s.missing, 1u))) = {backing, position, entry};
  }
  /// Marks wanted rows that are in the list already, which need no claim of their own: `row` becomes −2 − the first's
  /// place. What finds no room in the table stays: two claims of a row get one slot, too.
  template <class T>
  EBB_FN void mark_repetitions(view<T> const& v, int all) const {
    EBB_ROLL
    for (int i = v.t.block_rank(); i < near_slots; i += T::block_width) v.s.listed[i] = 0;
    v.t.block_sync();
    EBB_ROLL
    for (int i = v.t.block_rank(); i < all; i += T::block_width) {
      std::int32_t const row = v.wanted(i).row;
      int slot = onto(mix(static_cast<std::uint32_t>(row), 0x9e3779b9u), near_slots);
      EBB_ROLL
      for (int tries = 0; tries < 8; ++tries, slot = (slot + 1) % near_slots) {
        std::uint32_t const found = v.t.exchange(v.s.listed + slot, 0, static_cast<std::uint32_t>(i) + 1);
        if (found == 0) break;
        int const first = static_cast<int>(found) - 1;
        // A first one is never marked: nobody writes its row before the barrier.
        if (v.wanted(first).row != row) continue;
        v.wanted(i).row = -2 - first;
        break;
      }
    }
    v.t.block_sync();
  }
  /// Gives the repetitions the slots of the first ones.
  template <class T>
  EBB_FN void repeat(view<T> const& v, int all) const {
    EBB_ROLL
    for (int i = v.t.block_rank(); i < all; i += T::block_width) {
      wanted_row const w = v.wanted(i);
      if (w.row > -2) continue;
      std::int32_t const address = v.wanted(-2 - w.row).row;
      v.entries[w.entry] = address < 0 ? lost() : metadata::make(first_source, address);
    }
  }
  EBB_FN typename metadata::entry lost() const {
    return metadata::packed ? metadata::make(first_source, zero_address) : metadata::invalid();
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
      if (!v.t.some(w.row >= 0)) continue;
      slot_of const slot = claim_one(v, w.row);
      if (w.row < 0 || v.t.bundle_rank() != 0) continue;
      v.entries[w.entry] = slot.address < 0 ? lost() : metadata::make(first_source, slot.address);
      if (slot.address < 0) [[unlikely]]
        tell(v, count::lost, 1);
      v.wanted(i).row = slot.address;
      if (slot.fetch) v.wanted(i).entry = -1;
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
  /// Copies the rows that were given slots for the first source, a bundle a row, and leaves the plan for the others.
  template <class T>
  EBB_FN void copy(view<T> const& v, int all) const {
    EBB_ROLL
    for (int i = v.t.block_rank() / T::bundle; i < all; i += T::block_width / T::bundle) {
      wanted_row const w = v.wanted(i);
      if (w.entry >= 0) continue;
      row_in_flight<P, T> flying;
      flying.read(v.t, first_source, w.backing);
      if (plan.rows != nullptr && v.t.bundle_rank() == 0)
        plan.rows[std::int64_t{v.item} * plan.stride + v.t.add(plan.counts + v.item, 1u)] = w;
      flying.write(v.t, first_source, w.backing, w.row);
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
        slot = {staged ? first_source.staging + v.item * staging.ways + c.way : hot_address(v, c.way), fetch, staged};
      });
    }
    return slot;
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

  /// Item = query row.
  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    std::int64_t const first = std::int64_t{item} * width;
    for (int i = t.rank(); i < width; i += T::width) {
      metadata::entries(out)[first + i] = metadata::translate(metadata::entries(in)[first + i], from, to);
    }
    if constexpr (metadata::packed) {
      if (t.rank() == 0) metadata::lengths(out)[item] = metadata::lengths(in)[item];
    }
  }
};

}  // namespace ebb

#pragma once
/// The resolve body: every selected position becomes a GPU address, every missing row is fetched once.

#include <ebb/capacity.hpp>
#include <ebb/device_counters.hpp>
#include <ebb/metadata/metadata.hpp>
#include <ebb/orders/keep.hpp>
#include <ebb/step_state.hpp>
#include <ebb/tiers/host_pages.hpp>
#include <ebb/tiers/row_table.hpp>

namespace ebb {

/// A position that was not found, and where its address goes.
struct missing_row {
  std::int32_t position;
  std::int32_t entry;    ///< index into the request's metadata
  std::int64_t backing;  ///< row of the backing tier
};
/// A claimed row: where it comes from and the row slot it goes to.
struct planned_row {
  std::int64_t backing;
  std::int32_t address;  ///< of the group's first source
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
/// each position, bytes of missing rows over the link; neither history length nor loans matter.
template <policy P>
struct resolve_body {
  static constexpr int threads = 512;
  using metadata = typename P::metadata;
  using cache = typename P::tiers::cache;
  using geo = geometry_of<P>;
  static constexpr int largest_set = geo::largest_set();
  static constexpr int width = metadata::width(P::top_k);

  step_ref<P> step;
  table_ref hot;
  table_ref staging;
  source_view sources[largest_set];
  int source_count;
  int rows_per_page;
  int ratio;
  int queries;
  std::int32_t const* selection;
  typename metadata::ref out;
  missing_row* missing;  ///< [max_batch][max_queries · top_k]
  planned_row* plan;     ///< the same
  std::uint64_t* counters;
  std::int32_t zero_address;  ///< a row of zeroes, where the metadata needs one

  struct shared {
    std::uint32_t missing;
    std::uint32_t fetched;
    std::uint32_t counts[device_counts];
  };

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item, shared& s) const {
    bool const real = item < static_cast<int>(step.header[header_words::requests]);
    row_record const row = real ? step.rows[item] : row_record{0, 0, 0};
    if (t.rank() == 0) s.missing = s.fetched = 0;
    for (int i = t.rank(); i < device_counts; i += T::width) s.counts[i] = 0;
    t.sync();

    tally n{};
    std::int64_t const first = std::int64_t{item} * queries;
    for (int j = 0; j < queries; ++j) find(t, item, row, real, j, metadata::entries(out) + (first + j) * width, s, n);
    t.sync();
    if (s.missing > 0) {
      claim(t, item, row, metadata::entries(out) + first * width, s, n);
      t.sync();
      copy(t, item, static_cast<int>(s.fetched));
    }
    report(t, s, n);
  }

 private:
  /// What one lane counted.
  struct tally {
    std::uint32_t of[device_counts];
    EBB_FN void add(count c, std::uint32_t k = 1) {
      if constexpr (P::count) of[static_cast<int>(c)] += k;
    }
  };

  EBB_FN row_table table_of(table_ref const& ref, int owner) const {
    std::uint32_t const now = step.header[ref.stamp_word] + static_cast<std::uint32_t>(ref.ordinal);
    return {ref.words + std::int64_t{owner} * ref.stride(), ref.ways, ref.format, now, ref.steps};
  }

  /// The row slot of a way, as an address from the first source.
  EBB_FN std::int32_t hot_address(row_record const& row, int way) const {
    return step.hot_frames[std::int64_t{row.slot} * step.hot + way / rows_per_page] * rows_per_page +
           way % rows_per_page;
  }

  template <class T>
  EBB_FN void find(T const& t, int item, row_record const& row, bool real, int j, typename metadata::entry* entries,
                   shared& s, tally& n) const {
    constexpr int passes = (P::top_k + T::width - 1) / T::width;
    std::int64_t const query = std::int64_t{item} * queries + j;
    std::int32_t const bound = real ? step.bounds[query] / ratio : 0;
    bool const direct = step.header[header_words::direct] != 0;
    typename metadata::entry filler = metadata::invalid();
    if constexpr (metadata::packed) filler = metadata::make(sources[0], newest_row(row, real));
    int valid_before = 0;
    for (int pass = 0; pass < passes; ++pass) {
      int const column = pass * T::width + t.rank();
      std::int32_t const position = real && column < P::top_k ? selection[query * P::top_k + column] : -1;
      bool const valid = position >= 0 && position < bound;
      if (real && column < P::top_k && !valid) n.add(position == -1 ? count::invalid : count::rejected);
      int at = column;
      if constexpr (metadata::packed) {
        vote const v = t.prefix(valid);
        at = valid_before + v.before;
        valid_before += v.all;
      }
      if (valid) {
        look(t, item, row, position, entries, at, j * width + at, direct, s, n);
      } else if (!metadata::packed && column < P::top_k) {
        entries[column] = filler;
      }
    }
    int const used = metadata::packed ? valid_before : P::top_k;
    for (int i = used + t.rank(); i < width; i += T::width) entries[i] = filler;
    if constexpr (metadata::packed) {
      if (t.rank() == 0) metadata::lengths(out)[query] = valid_before > 1 ? valid_before : 1;
    }
  }

  /// One valid position: in a frame, in the row cache, or noted as missing.
  template <class T>
  EBB_FN void look(T const& t, int item, row_record const& row, std::int32_t position,
                   typename metadata::entry* entries, int at, int entry, bool direct, shared& s, tally& n) const {
    std::int64_t const page = position / rows_per_page;
    int const offset = position % rows_per_page;
    map_entry const where = step.map.at(row.slot, page);
    if constexpr (P::keep::wants_uses) {
      std::uint32_t const now = step.header[header_words::staging_stamp] + static_cast<std::uint32_t>(staging.ordinal);
      if (mix(static_cast<std::uint32_t>(position), mix(now, 0)) % defaults::use_sample == 0) {
        t.add(step.uses + std::int64_t{row.slot} * step.map.pages + page, std::uint32_t{1});
      }
    }
    if (where.frame != frame_id::none) {
      entries[at] = metadata::make(sources[0], index(where.frame) * rows_per_page + offset);
      n.add(page >= row.tail_first ? count::tail_hits : count::lent_hits);
      return;
    }
    if constexpr (P::tiers::caches) {
      if (!direct) {
        int const way = cache::find(t, table_of(hot, row.slot), position);
        if (way >= 0) {
          entries[at] = metadata::make(sources[0], hot_address(row, way));
          n.add(count::hot_hits);
          return;
        }
      }
    }
    std::int64_t const backing = direct ? -1 : P::tiers::fetch(where, offset, rows_per_page);
    if (backing < 0) {
      entries[at] = metadata::packed ? metadata::make(sources[0], zero_address) : metadata::invalid();
      n.add(count::lost);
      return;
    }
    n.add(count::misses);
    missing[std::int64_t{item} * P::max_queries * P::top_k + t.add(&s.missing, 1u)] = {position, entry, backing};
  }

  template <class T>
  EBB_FN void claim(T const& t, int item, row_record const& row, typename metadata::entry* entries, shared& s,
                    tally& n) const {
    missing_row const* const wanted = missing + std::int64_t{item} * P::max_queries * P::top_k;
    planned_row* const rows = plan + std::int64_t{item} * P::max_queries * P::top_k;
    int const all = static_cast<int>(s.missing);
    for (int i = t.rank(); i < all; i += T::width) {
      missing_row const m = wanted[i];
      slot_of const slot = claim_one(t, item, row, m.position);
      if (slot.address < 0) {
        entries[m.entry] = metadata::packed ? metadata::make(sources[0], zero_address) : metadata::invalid();
        n.add(count::lost);
        continue;
      }
      entries[m.entry] = metadata::make(sources[0], slot.address);
      if (!slot.fetch) continue;
      rows[t.add(&s.fetched, 1u)] = {m.backing, slot.address};
      n.add(count::fetched_rows, static_cast<std::uint32_t>(source_count));
      if (slot.staged) n.add(count::staged_rows);
    }
  }

  struct slot_of {
    std::int32_t address = -1;
    bool fetch = false;
    bool staged = false;
  };
  /// The places in list order, then once more for anything unpinned: with hot rows + staging ≥ queries · top_k a claim
  /// always succeeds.
  template <class T>
  EBB_FN slot_of claim_one(T const& t, int item, row_record const& row, std::int32_t position) const {
    slot_of slot{};
    for (int last = 0; last < 2 && slot.address < 0; ++last) {
      P::tiers::for_each_place([&]<class Place>() {
        if (slot.address >= 0) return;
        constexpr bool staged = Place::kind == tier_kind::staging;
        claimed const c =
            Place::claim(t, staged ? table_of(staging, item) : table_of(hot, row.slot), position, last == 1);
        if (c.way < 0) return;
        slot = {staged ? sources[0].staging + item * staging.ways + c.way : hot_address(row, c.way), c.fetch, staged};
      });
    }
    return slot;
  }

  /// Rows of the plan for every source of the set: neighbouring lanes on neighbouring bytes, several pieces in flight each.
  template <class T>
  EBB_FN void copy(T const& t, int item, int rows) const {
    planned_row const* const from = plan + std::int64_t{item} * P::max_queries * P::top_k;
    for (int k = 0; k < source_count; ++k) {
      source_view const& v = sources[k];
      copy_pieces<geo::in_row_width, P::row.in_row / geo::in_row_width>(
          t, rows, [&](int i, int part, std::byte*& a, std::byte const*& b) {
            a = v.base + v.layout.in_row_offset(address_in(v, from[i].address)) + part * geo::in_row_width;
            b = v.host + v.host_layout.in_row_offset(from[i].backing) + part * geo::in_row_width;
          });
      if constexpr (P::row.at_page_end > 0) {
        copy_pieces<geo::page_end_width, P::row.at_page_end / geo::page_end_width>(
            t, rows, [&](int i, int part, std::byte*& a, std::byte const*& b) {
              a = v.base + v.layout.page_end_offset(address_in(v, from[i].address)) + part * geo::page_end_width;
              b = v.host + v.host_layout.page_end_offset(from[i].backing) + part * geo::page_end_width;
            });
      }
    }
  }
  /// The same row slot in another source of the set.
  EBB_FN std::int32_t address_in(source_view const& v, std::int32_t address) const {
    return sources[0].is_staged(address) ? address - sources[0].staging + v.staging : address;
  }
  template <int Width, int Parts, class T, class Where>
  EBB_FN static void copy_pieces(T const& t, int rows, Where where) {
    constexpr int in_flight = 4;
    for (int first = t.rank(); first < rows * Parts; first += in_flight * T::width) {
      std::byte* to[in_flight] = {};
      std::byte const* from[in_flight] = {};
      for (int k = 0; k < in_flight; ++k) {
        int const piece = first + k * T::width;
        if (piece < rows * Parts) where(piece / Parts, piece % Parts, to[k], from[k]);
      }
      t.template copy<Width>(to, from);
    }
  }

  /// The request's newest committed row, or the row of zeroes: a legal dummy.
  EBB_FN std::int32_t newest_row(row_record const& row, bool real) const {
    if (!real) return zero_address;
    std::int64_t const rows = step.committed[row.slot] / ratio;
    if (rows == 0) return zero_address;
    map_entry const where = step.map.at(row.slot, (rows - 1) / rows_per_page);
    return where.frame == frame_id::none
               ? zero_address
               : index(where.frame) * rows_per_page + static_cast<int>((rows - 1) % rows_per_page);
  }

  template <class T>
  EBB_FN void report(T const& t, shared& s, tally const& n) const {
    if constexpr (P::count) {
      for (int i = 0; i < device_counts; ++i) {
        if (n.of[i] > 0) t.add(&s.counts[i], n.of[i]);
      }
      t.sync();
      for (int i = t.rank(); i < device_counts; i += T::width) {
        std::uint64_t const k = i == static_cast<int>(count::fetched_bytes)
                                    ? std::uint64_t{s.counts[static_cast<int>(count::fetched_rows)]} * P::row.total()
                                    : s.counts[i];
        if (k > 0) t.add(counters + i, k);
      }
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

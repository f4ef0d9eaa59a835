#pragma once
// What one resolve must give: metadata, bytes, counts. Made when it is enqueued, looked at when it has run.

#include <ebb/counters.hpp>
#include <ebb/metadata/interleaved.hpp>

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "invariants.hpp"

namespace ebb::testing {

/// One request of the open step, as the work that is enqueued now will see it.
struct member {
  int slot;
  std::vector<std::int32_t> frames;  ///< of each page, −1: not in the map
  std::vector<std::int32_t> hot;
};

/// Which rows of a step's or a resolve's arrays belong to which request, as the model has it.
struct array_rows {
  struct part {
    int first, count;
  };
  std::vector<part> of;  ///< each request of the batch
  int rows = 0;          ///< in all, padding included
};
inline array_rows uniform_rows(int requests, int padded, int queries) {
  array_rows out{{}, padded * queries};
  for (int i = 0; i < requests; ++i) out.of.push_back({i * queries, queries});
  return out;
}

template <class M>
typename M::ref metadata_in(std::vector<typename M::entry>& entries, std::vector<std::int32_t>& lengths) {
  if constexpr (M::packed) {
    return {entries.data(), lengths.data()};
  } else {
    return {entries.data()};
  }
}
template <class M>
typename M::entry garbage() {
  if constexpr (std::is_pointer_v<typename M::entry>) {
    static std::byte nothing{};
    return &nothing;
  } else {
    return 0x5A5A5A5A;
  }
}
/// What the prefetches of one step must have counted. Made while they are enqueued, looked at when the step has ended.
struct prefetch_check {
  counters before{};
  std::uint64_t rows_least = 0, rows_most = 0;  ///< copied, of all sources
  std::uint64_t dropped_most = 0;
  std::uint64_t either_least = 0, sources_most = 1;  ///< rows copied or dropped, of all sources

  void counts(counters const& now) const {
    std::uint64_t const rows = now.prefetched_rows - before.prefetched_rows;
    std::uint64_t const dropped = now.prefetch_dropped - before.prefetch_dropped;
    if (rows < rows_least || rows > rows_most)
      fail("prefetch: ", rows, " rows copied; at least ", rows_least, ", at most ", rows_most, " were missing");
    if (dropped > dropped_most)
      fail("prefetch: ", dropped, " candidates dropped, at most ", dropped_most, " lack room");
    if (rows + dropped * sources_most < either_least)
      fail("prefetch: ", rows, " rows copied and ", dropped, " dropped of ", either_least, " that were missing");
  }
};

/// The row address of an entry, by what the metadata's format says.
template <class M>
std::int64_t address_of(typename M::entry e, source_view const& v, [[maybe_unused]] int sources) {
  if constexpr (std::is_pointer_v<typename M::entry>) {
    if (e == nullptr) return -1;
    std::int64_t const offset = e - v.base;
    return offset / v.layout.stride * v.layout.rows + offset % v.layout.stride / v.layout.row.in_row;
  } else if constexpr (std::same_as<M, interleaved>) {
    if (e < 0) return -1;
    std::int64_t const all = std::int64_t{sources} * v.layout.rows;
    if (e % all / v.layout.rows != v.ordinal)
      fail("resolve: entry ", e, " is of layer ", e % all / v.layout.rows, ", not ", v.ordinal);
    return e / all * v.layout.rows + e % v.layout.rows;
  } else {
    return e;
  }
}
inline long long as_number(std::int32_t e) { return e; }
inline long long as_number(std::byte const* e) { return static_cast<long long>(reinterpret_cast<std::uintptr_t>(e)); }

template <policy P>
struct resolve_check {
  using metadata = typename P::metadata;
  using entry = typename metadata::entry;
  static constexpr int width = metadata::width(P::top_k);
  static constexpr std::int32_t no_length = 12'345;

  resolve_check(model_shape const& shape, int group, std::vector<member> const& of, array_rows const& arrays)
      : shape{shape},
        group{group},
        sources{shape.groups[static_cast<std::size_t>(group)]},
        of{of},
        arrays{arrays},
        rows_per_page{shape.rows_per_page(sources.front())} {
    auto const rows = static_cast<std::size_t>(arrays.rows);
    selection.assign(rows * P::top_k + 1, 3);
    valid.assign(rows * P::top_k, 0);
    frames.assign(rows * P::top_k, -1);
    seeds.assign(sources.size(), std::vector<std::uint64_t>(rows * P::top_k, 0));
    newest.assign(sources.size() * of.size(), 0);
    clear(entries, lengths);
  }
  /// One entry more than a resolve may write.
  void clear(std::vector<entry>& e, std::vector<std::int32_t>& l) const {
    e.assign(static_cast<std::size_t>(arrays.rows * width) + 1, garbage<metadata>());
    l.assign(static_cast<std::size_t>(arrays.rows) + 1, no_length);
  }

  model_shape const& shape;
  int group;
  std::vector<int> sources;  ///< of the group
  std::vector<member> of;
  array_rows arrays;
  int rows_per_page;
  std::vector<std::int32_t> selection;
  std::vector<std::int32_t> bounds, offsets;      ///< of its own, where it brings them
  std::vector<char> valid;                        ///< per entry of the selection
  std::vector<std::int32_t> frames;               ///< per entry: the frame of a page in the map, else −1
  std::vector<std::vector<std::uint64_t>> seeds;  ///< per source, per entry: the bytes
  std::vector<std::uint64_t> newest;              ///< per source, per request: its newest committed row, 0: none
  std::uint64_t invalid = 0, rejected = 0, mapped = 0, absent = 0, least = 0, most = 0;
  std::uint64_t found = 0;  ///< entries that the row cache must have
  counters before{};
  std::vector<entry> entries, other;  ///< of the resolve, and of a replay beside it
  std::vector<std::int32_t> lengths, other_lengths;

  /// Query j of request i selects; `m` is what the model knows, `bound` how many rows are selectable.
  void expect(std::size_t i, std::size_t query, model_request const& m, std::int64_t bound,
              std::set<std::int32_t> const& present, std::set<std::int32_t>& absent_rows) {
    for (std::size_t at = query * P::top_k; at < (query + 1) * P::top_k; ++at) {
      std::int32_t const p = selection[at];
      if (p == -1) {
        ++invalid;
      } else if (p < 0 || p >= bound) {
        ++rejected;
      } else {
        valid[at] = 1;
        frames[at] = of[i].frames.at(static_cast<std::size_t>(p / rows_per_page));
        for (std::size_t s = 0; s < sources.size(); ++s) seeds[s][at] = m.row(sources[s], p).seed;
        if (frames[at] < 0) absent_rows.insert(p);
        found += frames[at] < 0 && present.contains(p);
        ++(frames[at] < 0 ? absent : mapped);
      }
    }
  }

  /// The counters grew by exactly what was selected; I4: each missing row was fetched once.
  void counts(ebb::counters const& now) const {
    auto const grew = [&](auto member) { return now.*member - before.*member; };
    auto const n = static_cast<std::uint64_t>(sources.size());
    auto const is = [&](char const* what, std::uint64_t have, std::uint64_t want) {
      if (have != want) fail("counters: ", what, " grew by ", have, ", not ", want);
    };
    is("invalid", grew(&ebb::counters::invalid), invalid);
    is("rejected", grew(&ebb::counters::rejected), rejected);
    is("lost", grew(&ebb::counters::lost), 0);
    is("tail_hits + lent_hits", grew(&ebb::counters::tail_hits) + grew(&ebb::counters::lent_hits), mapped);
    is("hot_hits + misses", grew(&ebb::counters::hot_hits) + grew(&ebb::counters::misses), absent);
    if (grew(&ebb::counters::hot_hits) < found)
      fail("prefetch: ", grew(&ebb::counters::hot_hits), " hits in hot rows, though ", found,
           " entries were announced and had room");
    std::uint64_t const rows = grew(&ebb::counters::fetched_rows);
    is("fetched_bytes", grew(&ebb::counters::fetched_bytes), rows * P::row.total());
    if (rows % n != 0 || rows / n < least || rows / n > most)
      fail("I4: ", rows, " rows of ", n, " sources fetched; at least ", least, ", at most ", most,
           " of each were missing");
    if (grew(&ebb::counters::misses) < rows / n) fail("counters: fewer misses than rows fetched");
    if (grew(&ebb::counters::staged_rows) > rows / n) fail("counters: more rows staged than fetched");
  }

  /// The attention stand-in: every entry of source number s of the group, and the bytes behind it. `whose` names bytes in a message.
  /// Returns: how many rows it compared.
  int attend(std::vector<entry> const& e, std::vector<std::int32_t> const& l, std::size_t s, source_view const& v,
             std::function<std::string(std::byte const*)> const& whose) const {
    if (e.back() != garbage<metadata>() || l.back() != no_length) fail("resolve: wrote past the metadata");
    int compared = 0;
    std::vector<int> owners(static_cast<std::size_t>(arrays.rows), -1);
    for (std::size_t i = 0; i < arrays.of.size(); ++i)
      std::fill_n(owners.begin() + arrays.of[i].first, arrays.of[i].count, static_cast<int>(i));
    for (std::size_t query = 0; query < owners.size(); ++query) {
      int const i = owners[query];
      entry const* const row = e.data() + query * width;
      int used = 0;
      for (int k = 0; k < P::top_k; ++k) {
        std::size_t const at = query * P::top_k + static_cast<std::size_t>(k);
        if (i >= 0 && valid[at] != 0) {
          look(v, i, row[metadata::packed ? used : k], at, s, whose);
          ++used;
        } else if (!metadata::packed && row[k] != metadata::invalid()) {
          fail("resolve: entry ", at, " is invalid and says ", as_number(row[k]), ", source ", sources[s]);
        }
      }
      compared += used;
      for (int k = metadata::packed ? used : P::top_k; k < width; ++k) filler(v, row[k], i, query, s);
      if (metadata::packed && l[query] != std::max(1, used))
        fail("resolve: the length of row ", query, " is ", l[query], ", not ", std::max(1, used));
    }
    return compared;
  }

 private:
  std::int64_t address(entry e, source_view const& v) const {
    return address_of<metadata>(e, v, static_cast<int>(shape.ratios.size()));
  }
  /// An unused entry: invalid, or where the format is packed the request's newest committed row or the row of zeroes.
  void filler(source_view const& v, entry e, int item, std::size_t query, std::size_t s) const {
    if constexpr (metadata::packed) {
      std::int64_t const a = address(e, v);
      std::uint64_t const row = item >= 0 ? newest[s * of.size() + static_cast<std::size_t>(item)] : 0;
      bool const legal = a >= 0 && (row_is_zero(v.base, v.layout, a) || (row != 0 && row_is(v.base, v.layout, a, row)));
      if (!legal) fail("resolve: the filler of row ", query, " is ", a, ", no legal row");
    } else if (e != metadata::invalid()) {
      fail("resolve: the padding of row ", query, " says ", as_number(e));
    }
  }
  void look(source_view const& v, int item, entry e, std::size_t at, std::size_t s,
            std::function<std::string(std::byte const*)> const& whose) const {
    std::int64_t const a = address(e, v);
    member const& m = of[static_cast<std::size_t>(item)];
    std::int32_t const p = selection[at];
    std::int64_t const staged = v.staging + std::int64_t{item} * shape.staging_slots();
    if (frames[at] >= 0 && a != std::int64_t{frames[at]} * rows_per_page + p % rows_per_page) {
      fail("resolve: position ", p, " of slot ", m.slot, " is in frame ", frames[at], ", the address says ", a,
           " (source ", sources[s], ")");
    }
    bool const own = std::find(m.hot.begin(), m.hot.end(), a / rows_per_page) != m.hot.end() ||
                     (a >= staged && a < staged + shape.staging_slots());
    if (frames[at] < 0 && !own)
      fail("I9: position ", p, " of slot ", m.slot, " has address ", a,
           ", neither in its hot rows nor in its staging (source ", sources[s], ")");
    if (row_is(v.base, v.layout, a, seeds[s][at])) return;
    fail("I3: position ", p, " of slot ", m.slot, ", source ", sources[s], ": wrong bytes at address ", a,
         frames[at] >= 0 ? " (page)" : " (fetched)", ", which are ", whose(v.base + v.layout.in_row_offset(a)));
  }
};

}  // namespace ebb::testing

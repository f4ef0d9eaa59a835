#pragma once
/// What begin_step leaves on the device for the captured part of a step, and the small bodies that maintain it.

#include <ebb/capacity.hpp>
#include <ebb/resident_map_ref.hpp>
#include <ebb/source_view.hpp>
#include <ebb/team.hpp>

namespace ebb {

/// One request of the running step.
struct row_record {
  std::int32_t slot;
  std::int32_t tail_first;  ///< first page of its tail
  std::int32_t writable;    ///< tokens up to which it has pages
};

/// Query rows of one request in a step's arrays.
struct query_rows {
  int first = 0;
  int count = 0;
};

/// Which rows of a step's flattened arrays belong to which request. Uniform: `queries` of each. Ragged: offsets[i] …
/// offsets[i + 1] − 1 of request i, `queries` at most; rows behind those of the last request are padding. Numbers that
/// lead out of the arrays are cut, never followed.
struct row_shape {
  int queries = 1;
  int rows = 0;                           ///< in all, padding included: the captured width
  std::int32_t const* offsets = nullptr;  ///< device array [requests + 1], rising from 0; null: uniform

  EBB_FN query_rows of(int item) const {
    if (offsets == nullptr) return {item * queries, queries};
    int const first = within(offsets[item], 0, rows);
    return {first, within(offsets[item + 1], first, first + queries < rows ? first + queries : rows) - first};
  }
  /// First row that belongs to none of `requests` requests; the uniform shape has rows for padded requests, too.
  EBB_FN int end(int requests) const {
    return offsets == nullptr ? rows : requests == 0 ? 0 : of(requests - 1).first + of(requests - 1).count;
  }

 private:
  EBB_FN static int within(int v, int least, int most) { return v < least ? least : v > most ? most : v; }
};

/// Words in front of the row records: requests in the batch, 1 where all of them are whole, first stamp of the staging
/// table, then the first stamp of each set's table.
struct header_words {
  static constexpr int requests = 0;
  static constexpr int direct = 1;
  static constexpr int staging_stamp = 2;
  static constexpr int set_stamps = 3;
};

/// The step's state in device memory, at fixed addresses, so that a captured graph finds each step's values there.
template <policy P>
struct step_ref {
  std::uint32_t* header;     ///< header_words
  row_record* rows;          ///< [max_batch]
  std::int32_t* committed;   ///< [requests] tokens
  std::int32_t* drafted;     ///< [requests] tokens that a drafter with full history has committed; null: there is none
  std::int32_t* draft_from;  ///< [requests] first token whose drafter rows are there; null: no drafter
  std::int32_t* rings;       ///< [requests] draft ring or −1; null: no windowed drafter
  std::int32_t* offsets;     ///< [max_batch + 1] of a ragged step whose query counts the host gave
  std::int32_t* hot_frames;  ///< [requests][hot]
  std::int32_t* bounds;      ///< [max_batch · max_queries] exclusive causal bound, tokens
  std::int32_t* writes;      ///< [ratios][max_batch · max_queries] row address or −1; then those of the drafter
  std::uint32_t* uses;       ///< [requests][pages], null unless the keep order wants them
  resident_map_ref<P> map;
  int hot;

  /// A request of the batch with its query rows. A padded one has no room, and rows only where all requests have.
  struct batch_item {
    bool real;
    row_record row;
    query_rows own;
  };
  EBB_FN batch_item at(int item, row_shape const& shape) const {
    bool const real = item < static_cast<int>(header[header_words::requests]);
    return {real, real ? rows[item] : row_record{0, 0, 0},
            real || shape.offsets == nullptr ? shape.of(item) : query_rows{}};
  }
  EBB_FN std::int32_t write_address(int slot, std::int64_t token, int ratio) const {
    map_entry const entry = map.at(slot, token / P::page_tokens);
    int const rows = P::page_tokens / ratio;
    return entry.frame == frame_id::none ? -1 : index(entry.frame) * rows + static_cast<int>(token / ratio % rows);
  }
};

/// One map word to change.
struct map_word {
  std::int32_t slot;
  std::int32_t page;
  map_entry entry;
};
struct length_word {
  std::int32_t slot;
  std::int32_t tokens;
  std::int32_t drafted;
  std::int32_t draft_from;
  std::int32_t ring;
};

/// Committed lengths of a request: the target's, the drafter's own, and from where on the drafter's rows are there.
struct committed_lengths {
  std::int64_t tokens = 0;
  std::int64_t drafted = 0;
  std::int64_t draft_from = 0;

  /// A step ends: `accepted` tokens; the drafter's length grows by `by`, −1: as far as the target's. One that falls back
  /// more than `most_behind` tokens is given up: its rows count from here on.
  EBB_FN void advance(std::int64_t accepted, std::int64_t by, int most_behind) {
    tokens += accepted;
    drafted = by < 0 || drafted + by > tokens ? tokens : drafted + by;
    if (tokens - drafted <= most_behind) return;
    drafted = tokens;
    draft_from = tokens;
  }
};

/// Distinct ratios of a policy's sources.
template <policy P>
inline constexpr int ratio_count = geometry_of<P>::ratio_class(geometry_of<P>::largest_ratio) + 1;

/// Applies begin_step's upload: item 0 the header, lengths and hot frames, items 1 … the map, 256 words each. Write
/// addresses and bounds of the step before are void from then on: without `addresses` nothing is written or found.
template <policy P>
struct apply_body {
  static constexpr int words_per_item = 256;
  step_ref<P> step;
  std::uint32_t const* header;
  int header_size;
  row_record const* rows;
  int row_count;
  length_word const* lengths;
  int length_count;
  std::int32_t const* hot;  ///< per entry: slot, then `step.hot` frames
  int hot_count;
  std::int32_t const* offsets;
  int offset_count;
  map_word const* map;
  int map_count;
  int stride;  ///< max_batch · max_queries

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    if (item > 0) {
      int const end = item * words_per_item < map_count ? item * words_per_item : map_count;
      for (int i = (item - 1) * words_per_item + t.rank(); i < end; i += T::width) {
        map_word const w = map[i];
        step.map.entries[std::int64_t{w.slot} * step.map.pages + w.page] = w.entry;
      }
      return;
    }
    if (header_size > 0) {
      for (int i = t.rank(); i < stride; i += T::width) step.bounds[i] = 0;
      int const arrays = ratio_count<P> + (step.drafted != nullptr ? 1 : 0);
      for (int i = t.rank(); i < stride * arrays; i += T::width) step.writes[i] = -1;
    }
    for (int i = t.rank(); i < header_size; i += T::width) step.header[i] = header[i];
    for (int i = t.rank(); i < row_count; i += T::width) step.rows[i] = rows[i];
    for (int i = t.rank(); i < offset_count; i += T::width) step.offsets[i] = offsets[i];
    for (int i = t.rank(); i < length_count; i += T::width) {
      length_word const w = lengths[i];
      step.committed[w.slot] = w.tokens;
      if (step.drafted != nullptr) step.drafted[w.slot] = w.drafted;
      if (step.draft_from != nullptr) step.draft_from[w.slot] = w.draft_from;
      if (step.rings != nullptr) step.rings[w.slot] = w.ring;
    }
    int const words = 1 + step.hot;
    for (int i = t.rank(); i < hot_count * step.hot; i += T::width) {
      std::int32_t const* entry = hot + std::int64_t{i / step.hot} * words;
      step.hot_frames[std::int64_t{entry[0]} * step.hot + i % step.hot] = entry[1 + i % step.hot];
    }
  }
};

/// Head of the captured part: where each query's token is written and how far it may look, from the committed lengths.
template <policy P>
struct addresses_body {
  step_ref<P> step;
  row_shape shape;
  int stride;                  ///< max_batch · max_queries
  int ratios[ratio_count<P>];  ///< distinct ratios, rising
  int drafter_ratio;           ///< of a drafter with full history

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    auto const [real, row, own] = step.at(item, shape);
    for (int j = t.rank(); j < own.count; j += T::width) {
      int const out = own.first + j;
      std::int64_t const token = real ? std::int64_t{step.committed[row.slot]} + j : 0;
      bool const fits = real && token < row.writable;
      step.bounds[out] = fits ? static_cast<std::int32_t>(token + 1) : 0;
      for (int k = 0; k < ratio_count<P>; ++k) {
        int const r = ratios[k];
        step.writes[std::int64_t{k} * stride + out] =
            fits && (token + 1) % r == 0 ? step.write_address(row.slot, token, r) : -1;
      }
      if (step.drafted == nullptr) continue;
      std::int64_t const draft = real ? std::int64_t{step.drafted[row.slot]} + j : 0;
      bool const written = real && draft < row.writable && (draft + 1) % drafter_ratio == 0;
      step.writes[std::int64_t{ratio_count<P>} * stride + out] =
          written ? step.write_address(row.slot, draft, drafter_ratio) : -1;
    }
  }
};

/// Where rows of given tokens are written: of a source of ratio r, −1 where the token completes no row of it, is committed
/// already or lies behind the request's room.
template <policy P>
struct places_body {
  step_ref<P> step;
  row_shape shape;
  std::int32_t const* tokens;  ///< [rows]
  int ratio;
  bool drafter;
  std::int32_t* out;  ///< [rows]

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    auto const [real, row, own] = step.at(item, shape);
    std::int32_t const committed = !real ? 0 : drafter ? step.drafted[row.slot] : step.committed[row.slot];
    for (int j = t.rank(); j < own.count; j += T::width) {
      std::int32_t const token = tokens[own.first + j];
      bool const fits = real && token >= committed && token < row.writable && (token + 1) % ratio == 0;
      out[own.first + j] = fits ? step.write_address(row.slot, token, ratio) : -1;
    }
  }
};

/// What a step committed of one request: tokens, and what the drafter's own length grows by.
struct accepted_word {
  std::int32_t slot;
  std::int32_t tokens;
  std::int32_t drafted;
};

/// end_step: committed lengths grow by what was accepted, 0 to the request's queries, up to its room.
template <policy P>
struct commit_body {
  step_ref<P> step;
  accepted_word const* accepted;  ///< slots, and numbers where the host knows them
  int count;
  std::int32_t const* on_device;  ///< [count] the engine's, or null
  std::int32_t const* drafted;    ///< [count] the engine's, or null: as the target
  row_shape shape;
  accepted_word* taken;  ///< [count] host memory: what was committed; or null

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int) const {
    for (int i = t.rank(); i < count; i += T::width) {
      accepted_word w = accepted[i];
      if (on_device != nullptr) {
        std::int32_t const room = step.rows[i].writable - step.committed[w.slot], queries = shape.of(i).count;
        std::int32_t const most = room < queries ? room : queries;
        w.tokens = on_device[i] < most ? on_device[i] : most;
        w.tokens = w.tokens > 0 ? w.tokens : 0;
        w.drafted = drafted == nullptr ? -1 : drafted[i] > 0 ? drafted[i] : 0;
      }
      if (taken != nullptr) taken[i] = w;
      if (step.drafted != nullptr) {
        committed_lengths all{step.committed[w.slot], step.drafted[w.slot], step.draft_from[w.slot]};
        all.advance(w.tokens, w.drafted, P::max_queries);
        step.drafted[w.slot] = static_cast<std::int32_t>(all.drafted);
        step.draft_from[w.slot] = static_cast<std::int32_t>(all.draft_from);
      }
      step.committed[w.slot] += w.tokens;
    }
  }
};

/// Empties the tables of some requests: item = slot in the list × set.
struct clear_body {
  struct table {
    std::uint32_t* words;
    int ways;
    int stride;
  };
  std::int32_t const* slots;
  table const* tables;
  int sets;
  std::uint32_t* uses;  ///< null, or use counts to clear, too
  int pages;

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    std::int64_t const slot = slots[item / sets];
    table const w = tables[item % sets];
    for (int i = t.rank(); i < w.ways; i += T::width) w.words[slot * w.stride + i] = 0;
    if (uses == nullptr || item % sets != 0) return;
    for (int i = t.rank(); i < pages; i += T::width) uses[slot * pages + i] = 0;
  }
};

/// Lowers all stamps of a set's tables before they run out: the order of the newest half of the range survives. Item =
/// request slot.
struct rebase_body {
  std::uint32_t* words;
  int ways;
  int stride;
  word_format format;
  std::uint32_t by;

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    std::uint32_t* const table = words + std::int64_t{item} * stride;
    for (int i = t.rank(); i < ways; i += T::width) {
      std::uint32_t const w = table[i];
      std::uint32_t const stamp = format.stamp(w);
      if (stamp == 0) continue;
      table[i] = w - stamp + (stamp > by ? stamp - by : 1u);
    }
  }
};

/// Hands the use counts of the batch to the host and halves them. Item = request of the batch.
template <policy P>
struct uses_body {
  step_ref<P> step;
  std::int32_t const* slots;
  int pages;           ///< of one request in the snapshot
  std::uint32_t* out;  ///< [item][pages], host memory

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    std::uint32_t* const uses = step.uses + std::int64_t{slots[item]} * step.map.pages;
    for (int i = t.rank(); i < pages; i += T::width) {
      out[std::int64_t{item} * pages + i] = uses[i];
      uses[i] /= 2;
    }
  }
};

}  // namespace ebb

#pragma once
/// The replay's own work on rows, as bodies that run in every space: upload, write, check.

#include <ebb/rows.hpp>
#include <ebb/team.hpp>

#include <cstddef>
#include <cstdint>

#include "oracle.hpp"

namespace replay {

/// Copies words from memory the host wrote to memory the device owns; one item per `per_item` words.
struct upload_body {
  std::uint64_t const* from;
  std::uint64_t* to;
  int words;
  int per_item;

  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& team, int item) const {
    int const end = (item + 1) * per_item < words ? (item + 1) * per_item : words;
    for (int i = item * per_item + team.rank(); i < end; i += T::width) to[i] = from[i];
  }
};

/// Where rows are and what belongs into them.
struct row_store {
  std::byte* base;
  ebb::page_layout layout;
  std::uint64_t const* columns;  ///< detail::columns, where the space can read them

  EBB_FN void write_word(std::int32_t address, std::uint64_t seed, int i) const {
    std::uint64_t const w = row_word(seed, columns, i);
    std::memcpy(word_at(address, i), &w, 8);
  }
  EBB_FN bool holds(std::int32_t address, std::uint64_t seed) const {
    int const in_row = layout.row.in_row / 8;
    return same_words(base + layout.in_row_offset(address), seed, columns, 0, in_row) &&
           same_words(base + layout.page_end_offset(address), seed, columns, in_row, layout.row.at_page_end / 8);
  }

 private:
  EBB_FN std::byte* word_at(std::int32_t address, int i) const {
    int const in_row = layout.row.in_row / 8;
    return base + (i < in_row ? layout.in_row_offset(address) + 8LL * i
                              : layout.page_end_offset(address) + 8LL * (i - in_row));
  }
};

/// What the engine's kernel does in every layer: writes the new row of each query. One item per query.
struct write_rows_body {
  row_store rows;
  std::int32_t const* addresses;  ///< -1: nothing to write
  std::uint64_t const* seeds;

  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& team, int item) const {
    if (addresses[item] < 0) return;
    int const words = rows.layout.row.total() / 8;
    for (int i = team.rank(); i < words; i += T::width) rows.write_word(addresses[item], seeds[item], i);
  }
};

/// What attention would read, compared with the oracle: every byte of every resolved row. One item per query.
struct check_rows_body {
  row_store rows;
  std::int32_t const* addresses;  ///< [items][columns], -1 where nothing is to be read
  std::uint64_t const* seeds;     ///< [items][columns], no_row where nothing may be read
  int columns;
  std::uint64_t* wrong;  ///< [items], added to

  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& team, int item) const {
    std::uint64_t bad = 0;
    for (int c = team.rank(); c < columns; c += T::width) {
      std::int64_t const i = std::int64_t{item} * columns + c;
      bool const expected = seeds[i] != no_row;
      bool const there = addresses[i] >= 0;
      bad += expected != there || (there && !rows.holds(addresses[i], seeds[i]));
    }
    if (bad != 0) team.add(wrong + item, bad);
  }
};

}  // namespace replay

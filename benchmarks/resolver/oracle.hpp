#pragma once
/// What every row must hold: each word of 8 bytes is a function of request, position and place in the row.

#include <ebb/source_view.hpp>
#include <ebb/team.hpp>

#include <cstdint>

namespace bench {

EBB_FN inline std::uint64_t row_word(std::int32_t request, std::int32_t position, int i) {
  std::uint64_t x = (static_cast<std::uint64_t>(request) + 1) << 40 | static_cast<std::uint64_t>(position) << 9 |
                    static_cast<std::uint64_t>(i);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Writes rows of positions 0 … rows − 1 of a request, packed, 64 rows an item. Every `spoil`th position gets one wrong
/// bit in its last word (0: none), to see that the check finds it.
struct fill_body {
  static constexpr int rows_per_item = 64;
  std::uint64_t* to;
  std::int32_t request;
  int rows;
  int words;  ///< of a row
  int spoil;

  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    for (int i = t.rank(); i < rows_per_item * words; i += T::width) {
      int const position = item * rows_per_item + i / words;
      if (position >= rows) return;
      bool const wrong = spoil > 0 && position % spoil == 0 && i % words == words - 1;
      to[std::int64_t{position} * words + i % words] = row_word(request, position, i % words) ^ (wrong ? 1u : 0u);
    }
  }
};

/// Compares every row that a call returned with what it must hold, all of its bytes; one lane a row.
struct check_body {
  static constexpr int rows_per_item = 256;
  std::byte const* base;
  ebb::page_layout layout;
  std::int64_t addresses;        ///< row addresses from here on name nothing
  std::int32_t const* position;  ///< −1: no row, so no address
  std::int32_t const* address;
  std::int32_t const* request;  ///< of each entry, or null: entry / per_request
  int per_request;
  int entries;
  std::uint64_t* wrong;  ///< rows

  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    for (int i = t.rank(); i < rows_per_item; i += T::width) {
      int const e = item * rows_per_item + i;
      if (e < entries && !right(e)) t.add(wrong, std::uint64_t{1});
    }
  }

 private:
  EBB_FN bool right(int e) const {
    std::int32_t const at = address[e];
    if (position[e] < 0) return at == -1;
    if (at < 0 || at >= addresses) return false;
    int const owner = request == nullptr ? e / per_request : request[e];
    std::uint64_t different = 0;
    auto const compare = [&](std::byte const* from, int first, int words) {
      auto const* const at_word = reinterpret_cast<std::uint64_t const*>(from);  // rows are whole words, and aligned
      for (int i = 0; i < words; ++i) different |= at_word[i] ^ row_word(owner, position[e], first + i);
    };
    int const words = layout.row.in_row / 8;
    compare(base + layout.in_row_offset(at), 0, words);
    compare(base + layout.page_end_offset(at), words, layout.row.at_page_end / 8);
    return different == 0;
  }
};

}  // namespace bench

#pragma once
// What every row must hold, byte for byte: a function of who wrote it, where, and how often it was written there.

#include <ebb/rows.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ebb::testing {

/// A well-mixed 64-bit number (splitmix64's finaliser).
constexpr std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58'476D'1CE4'E5B9;
  z = (z ^ z >> 27) * 0x94D0'49BB'1331'11EB;
  return z ^ z >> 31;
}

/// Stands for the bytes of one row; never 0, which means "no row".
constexpr std::uint64_t row_seed(std::uint64_t request, int source, std::int64_t row, std::uint32_t version) {
  std::uint64_t const name = mixed(request * 0x9E37'79B9'7F4A'7C15 + static_cast<std::uint64_t>(source) + 1);
  return mixed(name + (static_cast<std::uint64_t>(row) << 24) + version) | 1;
}
constexpr std::uint64_t row_word(std::uint64_t seed, int i) {
  return (seed + static_cast<std::uint64_t>(i) * 0x9E37'79B9'7F4A'7C15) * 0xD6E8'FEB8'6659'FD93;
}

/// Bytes `first` … `first + bytes − 1` of the row, `first` a multiple of 8.
inline void write_bytes(std::byte* to, int bytes, std::uint64_t seed, int first) {
  for (int i = 0; i < bytes; i += 8) {
    std::uint64_t const w = row_word(seed, (first + i) / 8);
    std::memcpy(to + i, &w, static_cast<std::size_t>(bytes - i < 8 ? bytes - i : 8));
  }
}
inline bool same_bytes(std::byte const* at, int bytes, std::uint64_t seed, int first) {
  for (int i = 0; i < bytes; i += 8) {
    std::uint64_t const w = row_word(seed, (first + i) / 8);
    if (std::memcmp(at + i, &w, static_cast<std::size_t>(bytes - i < 8 ? bytes - i : 8)) != 0) return false;
  }
  return true;
}

/// Byte of the row where the page-end segment starts.
constexpr int second_segment(row_segments row) { return (row.in_row + 7) / 8 * 8; }

/// The row at an address of pages from `base` on, both segments.
inline void write_row(std::byte* base, page_layout const& at, std::int64_t address, std::uint64_t seed) {
  write_bytes(base + at.in_row_offset(address), at.row.in_row, seed, 0);
  write_bytes(base + at.page_end_offset(address), at.row.at_page_end, seed, second_segment(at.row));
}
inline bool row_is(std::byte const* base, page_layout const& at, std::int64_t address, std::uint64_t seed) {
  return same_bytes(base + at.in_row_offset(address), at.row.in_row, seed, 0) &&
         same_bytes(base + at.page_end_offset(address), at.row.at_page_end, seed, second_segment(at.row));
}
inline bool row_is_zero(std::byte const* base, page_layout const& at, std::int64_t address) {
  for (int i = 0; i < at.row.in_row; ++i) {
    if (base[at.in_row_offset(address) + i] != std::byte{0}) return false;
  }
  for (int i = 0; i < at.row.at_page_end; ++i) {
    if (base[at.page_end_offset(address) + i] != std::byte{0}) return false;
  }
  return true;
}

/// Bytes that nobody may write and nobody may take for a row.
inline constexpr int poison = 0xDB;
inline bool is_poison(std::byte const* at, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; ++i) {
    if (at[i] != static_cast<std::byte>(poison)) return false;
  }
  return true;
}

}  // namespace ebb::testing

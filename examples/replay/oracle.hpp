#pragma once
/// What every row must hold, known without looking at the library: its bytes are a function of who wrote it, where, and
/// for the how manieth time.

#include <ebb/config.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace replay {

/// The row that `request` wrote at `position` of `source` for the `version`th time. Numbers are the driver's own: a
/// request is counted at its admission, so a slot that is used again is another request.
struct row_name {
  std::uint32_t request;   ///< 1 … 2^20 - 1
  std::uint32_t source;    ///< below 64
  std::uint32_t position;  ///< below 2^22
  std::uint32_t version;   ///< below 2^16
};

/// 64 bits that stand for a row: distinct names give distinct seeds, never 0, because packing and mixing can both be
/// undone.
constexpr std::uint64_t row_seed(row_name n) {
  std::uint64_t x =
      std::uint64_t{n.request} << 44 | std::uint64_t{n.source} << 38 | std::uint64_t{n.position} << 16 | n.version;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// The seed of a row that must not be there: the address must be the invalid marker.
inline constexpr std::uint64_t no_row = 0;

/// Longest row in words of 8 bytes.
inline constexpr int most_words = 256;

namespace detail {
constexpr std::array<std::uint64_t, most_words> make_columns() {
  std::array<std::uint64_t, most_words> out{};
  for (std::uint32_t i = 0; i < out.size(); ++i) out[i] = row_seed({0xfffff, 63, i, 0xeb});
  return out;
}
inline constexpr auto columns = make_columns();
}  // namespace detail

/// Word `i` of a row: each word holds the whole seed, and its place, so that a torn, shifted or foreign row differs
/// somewhere.
EBB_FN inline std::uint64_t row_word(std::uint64_t seed, std::uint64_t const* columns, int i) {
  return seed ^ columns[i];
}

/// Writes `words` words of a row, starting with word `first`.
EBB_FN inline void write_words(std::byte* to, std::uint64_t seed, std::uint64_t const* columns, int first, int words) {
  for (int i = 0; i < words; ++i) {
    std::uint64_t const w = row_word(seed, columns, first + i);
    std::memcpy(to + 8 * i, &w, 8);
  }
}

/// True where all `words` words are as written. Looks at every byte, without a branch in the loop.
EBB_FN inline bool same_words(std::byte const* at, std::uint64_t seed, std::uint64_t const* columns, int first,
                              int words) {
  std::uint64_t different = 0;
  for (int i = 0; i < words; ++i) {
    std::uint64_t w;
    std::memcpy(&w, at + 8 * i, 8);
    different |= w ^ row_word(seed, columns, first + i);
  }
  return different == 0;
}

/// How often each position of one live request was written: all that the oracle remembers.
class write_history {
 public:
  write_history() = default;
  explicit write_history(std::uint32_t request) : request_{request} {}

  /// Notes that `position` is written once more, and returns the seed of its new row.
  std::uint64_t write(std::int64_t position) {
    auto const p = static_cast<std::size_t>(position);
    if (p >= versions_.size()) versions_.resize(p + 1, 0);
    ++versions_[p];
    return seed(position);
  }
  /// Room for `positions` without growing on the way.
  void expect(std::int64_t positions) {
    versions_.resize(std::max(versions_.size(), static_cast<std::size_t>(positions)), 0);
  }
  /// The seed of the row that `position` must hold.
  std::uint64_t seed(std::int64_t position) const {
    return row_seed({request_, 0, static_cast<std::uint32_t>(position), versions_[static_cast<std::size_t>(position)]});
  }
  std::int64_t positions() const { return static_cast<std::int64_t>(versions_.size()); }

 private:
  std::uint32_t request_ = 0;
  std::vector<std::uint16_t> versions_;
};

static_assert(row_seed({1, 0, 0, 0}) != row_seed({0, 1, 0, 0}) && row_seed({0, 0, 0, 0}) == no_row);

}  // namespace replay

#pragma once
/// How a row crosses the link: which lane moves which of its bytes.

#include <ebb/geometry.hpp>
#include <ebb/source_view.hpp>
#include <ebb/team.hpp>

#include <type_traits>

namespace ebb {

/// The pieces of one row that a lane holds on their way: neighbouring lanes of a bundle have neighbouring ones, and a
/// bundle reads whole aligned runs of them (128 bytes on a GPU), so that each crosses the link once.
template <team T, int Width, int Parts>
struct pieces_in_flight {
  static constexpr int reach = (Parts + 2 * (T::bundle - 1)) / T::bundle;  ///< runs that a row may touch
  static constexpr int size = reach < 8 ? reach : 8;
  piece<Width> held[size];

  EBB_FN static int part(T const& t, std::int64_t from, int k) {
    return k * T::bundle + t.bundle_rank() - static_cast<int>(from / Width % T::bundle);
  }
  EBB_FN void read(T const& t, std::byte const* host, std::int64_t from, int first) {
    std::byte const* at[size];
    EBB_UNROLL
    for (int k = 0; k < size; ++k) {
      int const i = part(t, from, first + k);
      at[k] = i >= 0 && i < Parts ? host + from + i * Width : nullptr;
    }
    t.read(held, at);
  }
  EBB_FN void write(T const& t, std::byte* base, std::int64_t to, std::int64_t from, int first) const {
    std::byte* at[size];
    EBB_UNROLL
    for (int k = 0; k < size; ++k) {
      int const i = part(t, from, first + k);
      at[k] = i >= 0 && i < Parts ? base + to + i * Width : nullptr;
    }
    t.write(at, held);
  }
};
/// One row on its way from the host to a slot, a bundle of lanes together.
template <policy P, team T>
struct row_in_flight {
  using geo = geometry_of<P>;
  using rows = pieces_in_flight<T, geo::in_row_width, P::row.in_row / geo::in_row_width>;
  using ends = pieces_in_flight<T, geo::page_end_width, P::row.at_page_end / geo::page_end_width>;
  static constexpr bool has_end = P::row.at_page_end > 0;
  rows row;
  std::conditional_t<has_end, ends, no_shared> end;

  /// The first pieces of a row; `write` brings the rest.
  EBB_FN void read(T const& t, source_view const& v, std::int64_t backing) {
    row.read(t, v.host, v.host_layout.in_row_offset(backing), 0);
    if constexpr (has_end) end.read(t, v.host, v.host_layout.page_end_offset(backing), 0);
  }
  EBB_FN void write(T const& t, source_view const& v, std::int64_t backing, std::int32_t address) {
    put(t, row, v, v.host_layout.in_row_offset(backing), v.layout.in_row_offset(address));
    if constexpr (has_end) put(t, end, v, v.host_layout.page_end_offset(backing), v.layout.page_end_offset(address));
  }

 private:
  template <class F>
  EBB_FN static void put(T const& t, F& flying, source_view const& v, std::int64_t from, std::int64_t to) {
    flying.write(t, v.base, to, from, 0);
    for (int first = F::size; first < F::reach; first += F::size) {
      flying.read(t, v.host, from, first);
      flying.write(t, v.base, to, from, first);
    }
  }
};

}  // namespace ebb

#pragma once
/// Bodies that move whole pages: between frames and the host store, and in from elsewhere.

#include <ebb/policy.hpp>
#include <ebb/source_view.hpp>
#include <ebb/team.hpp>

namespace ebb {

/// Teams that copy at once on the side stream: few, to leave room for attention.
inline constexpr int moving_teams = 4;

/// Tokens [from, to) of one page, every source, between its frame and its host page.
struct page_move {
  std::int32_t frame;
  std::int32_t host;
  std::int32_t from;
  std::int32_t to;
  std::int32_t outward;  ///< 1: frame to host
};

/// Copies `bytes` bytes, all lanes; Width divides every address and count.
EBB_BODY
template <int Width, class T>
EBB_FN void copy_range(T const& t, std::byte* to, std::byte const* from, std::int64_t bytes) {
  for (std::int64_t c = t.rank(); c < bytes / Width; c += T::width)
    t.template copy<Width>(to + c * Width, from + c * Width);
}

/// Moves pages; team k of `moving_teams` takes units (move, source) k, k + moving_teams, …
/// Only whole rows move: tokens of a group that is not complete stay behind.
template <policy P>
struct move_body {
  using geo = geometry_of<P>;
  static constexpr int threads = 512;
  page_move const* moves;
  int count;
  source_view const* sources;
  int source_count;

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    for (std::int64_t unit = item; unit < std::int64_t{count} * source_count; unit += moving_teams) {
      page_move const m = moves[unit / source_count];
      source_view const v = sources[unit % source_count];
      int const ratio = P::page_tokens / v.layout.rows;
      std::int64_t const first = m.from / ratio;
      std::int64_t const rows = m.to / ratio - first;
      std::int64_t const on_gpu = std::int64_t{m.frame} * v.layout.rows + first;
      std::int64_t const on_host = std::int64_t{m.host} * v.layout.rows + first;
      bool const out = m.outward != 0;
      std::byte* const gpu = v.base + v.layout.in_row_offset(on_gpu);
      std::byte* const host = v.host + v.host_layout.in_row_offset(on_host);
      copy_range<geo::in_row_width>(t, out ? host : gpu, out ? gpu : host, rows * P::row.in_row);
      if constexpr (P::row.at_page_end > 0) {
        std::byte* const gpu_end = v.base + v.layout.page_end_offset(on_gpu);
        std::byte* const host_end = v.host + v.host_layout.page_end_offset(on_host);
        copy_range<geo::page_end_width>(t, out ? host_end : gpu_end, out ? gpu_end : host_end,
                                        rows * P::row.at_page_end);
      }
    }
  }
};

/// Rows of one page that come in: to its frame, its host page, or both (−1: not there).
struct page_import {
  std::int32_t frame;
  std::int32_t host;
  std::int32_t first;  ///< row in the page
  std::int32_t rows;
  std::int64_t from;  ///< row in the caller's memory
};

/// Imports rows of one source; team k takes pages k, k + moving_teams, …
template <policy P, int Width>
struct import_body {
  using geo = geometry_of<P>;
  static constexpr int in_row = std::min(Width, geo::in_row_width);
  static constexpr int page_end = std::min(Width, geo::page_end_width);
  static constexpr int parts = P::row.in_row / in_row;
  static constexpr int threads = 512;
  page_import const* pages;
  int count;
  source_view view;
  std::byte const* rows;
  std::int64_t stride;  ///< of the caller's rows: in-row bytes, then page-end bytes

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    for (int p = item; p < count; p += moving_teams) {
      page_import const m = pages[p];
      for (int i = t.rank(); i < m.rows * parts; i += T::width) {
        std::byte const* const from = rows + (m.from + i / parts) * stride;
        if (m.frame >= 0)
          put(t, view.base, view.layout, std::int64_t{m.frame} * view.layout.rows + m.first + i / parts, from,
              i % parts);
        if (m.host >= 0)
          put(t, view.host, view.host_layout, std::int64_t{m.host} * view.layout.rows + m.first + i / parts, from,
              i % parts);
      }
    }
  }

 private:
  EBB_BODY
  template <class T>
  EBB_FN static void put(T const& t, std::byte* base, page_layout const& layout, std::int64_t row,
                         std::byte const* from, int part) {
    t.template copy<in_row>(base + layout.in_row_offset(row) + part * in_row, from + part * in_row);
    if constexpr (P::row.at_page_end > 0) {
      std::byte* const end = base + layout.page_end_offset(row);
      for (int c = part; c < P::row.at_page_end / page_end; c += parts)
        t.template copy<page_end>(end + c * page_end, from + P::row.in_row + c * page_end);
    }
  }
};

/// Copies a few words that were prepared on the host into device memory.
struct words_body {
  std::uint64_t const* from;
  std::uint64_t* to;
  int count;

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int) const {
    for (int i = t.rank(); i < count; i += T::width) to[i] = from[i];
  }
};

}  // namespace ebb

#pragma once
/// The one policy type: what changes generated code. Sizes are constructor arguments.

#include <ebb/ids.hpp>
#include <ebb/rows.hpp>
#include <ebb/tiers/tier_list.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>

namespace ebb {

struct newest;
struct sealed_pages;
struct plain_rows;

/// What one layer of the model reads: the index group whose selection it uses and the KV source it attends to.
struct layer_binding {
  int group;
  int source;
};

/// `Layers` layers, each its own group and source.
template <int Layers>
constexpr std::array<layer_binding, Layers> separate_layers() {
  std::array<layer_binding, Layers> out{};
  for (int i = 0; i < Layers; ++i) out[i] = {i, i};
  return out;
}

/// The compression ratio r of `Sources` sources that all have the same.
template <int Sources>
constexpr std::array<int, Sources> equal_ratios(int r = 1) {
  std::array<int, Sources> out{};
  out.fill(r);
  return out;
}

/// A drafter whose queries attend to the last `tokens` positions only, with KV of its own. All zero: there is none.
struct draft_window {
  int tokens = 0;     ///< positions before its causal bound that a query sees, at most
  int layers = 0;     ///< drafter layers with KV of their own
  int row_bytes = 0;  ///< of one position in one layer: a multiple of 16
};

/// Defaults of every knob but the geometry. A policy derives from it, or from a preset in `models.hpp`, and overrides
/// members.
struct policy_defaults {
  static constexpr int max_queries = 1;     ///< speculation width: queries of one request in one step
  static constexpr int page_multiple = 1;   ///< page strides are padded to a multiple of this many bytes
  static constexpr int candidate_pool = 0;  ///< positions announced early, 0 = none
  static constexpr int index_row_bytes =
      0;                                    ///< the engine's index key of one row, once per source set, for the planner
  static constexpr bool count = true;       ///< device counters compiled in
  static constexpr draft_window draft{};    ///< a windowed drafter's own KV: a ring per request
  static constexpr int drafter_group = -1;  ///< index group of a drafter that reads full history (MTP, EAGLE); −1: none
  static constexpr int drafter_passes = 1;  ///< how often that group may resolve in one step
  using tiers = tier_list<lent_pages, hot_rows<lrfu>, staging_rows, host_pages>;
  using keep = newest;
  using backup = sealed_pages;
  using metadata = plain_rows;
};

/// A policy: geometry (`row`, `page_tokens`, `top_k`, `layers`, `ratios`) and choices (`tiers`, `keep`, `backup`,
/// `metadata`, `max_queries`, `count`). The concept asks for the members; `check_policy` says in one sentence which
/// value is wrong.
template <class P>
concept policy = requires {
  { P::row } -> std::convertible_to<row_segments>;
  { P::page_tokens } -> std::convertible_to<int>;
  { P::top_k } -> std::convertible_to<int>;
  { P::max_queries } -> std::convertible_to<int>;
  { P::page_multiple } -> std::convertible_to<int>;
  { P::candidate_pool } -> std::convertible_to<int>;
  { P::index_row_bytes } -> std::convertible_to<int>;
  { P::count } -> std::convertible_to<bool>;
  { P::draft } -> std::convertible_to<draft_window>;
  { P::drafter_group } -> std::convertible_to<int>;
  { P::drafter_passes } -> std::convertible_to<int>;
  P::layers.size();
  P::ratios.size();
  typename P::tiers;
  typename P::keep;
  typename P::backup;
  typename P::metadata;
};

/// Values that follow from a policy's geometry.
template <policy P>
struct geometry_of {
  static constexpr int layers = static_cast<int>(P::layers.size());
  static constexpr int sources = static_cast<int>(P::ratios.size());
  static constexpr int groups = [] {
    int most = -1;
    for (auto l : P::layers) most = std::max(most, l.group);
    return most + 1;
  }();
  static constexpr int largest_ratio = *std::max_element(P::ratios.begin(), P::ratios.end());
  static constexpr int smallest_ratio = *std::min_element(P::ratios.begin(), P::ratios.end());

  static constexpr bool has_ratio(int r) {
    for (int s = 0; s < sources; ++s) {
      if (P::ratios[static_cast<std::size_t>(s)] == r) return true;
    }
    return false;
  }
  /// Place of a ratio among the distinct ratios in rising order.
  static constexpr int ratio_class(int r) {
    int k = 0;
    for (int q = 1; q < r; ++q) k += has_ratio(q);
    return k;
  }
  static constexpr int rows_per_page(int source) {
    return P::page_tokens / P::ratios[static_cast<std::size_t>(source)];
  }
  static constexpr page_layout layout(int source) { return {P::row, rows_per_page(source), P::page_multiple}; }

  static constexpr bool legal_numbers() {
    return std::all_of(P::layers.begin(), P::layers.end(),
                       [](layer_binding l) { return l.group >= 0 && l.source >= 0 && l.source < sources; });
  }
  /// The lowest group that reads each source, −1 where none does. Groups with the same sources have it in common,
  /// others differ.
  static constexpr std::array<int, sources> first_reader = [] {
    std::array<int, sources> out{};
    out.fill(-1);
    if (!legal_numbers()) return out;
    for (auto l : P::layers) {
      int& reader = out[static_cast<std::size_t>(l.source)];
      if (reader == -1 || l.group < reader) reader = l.group;
    }
    return out;
  }();
  /// How many sources each group reads.
  static constexpr std::array<int, groups> set_size = [] {
    std::array<int, groups> out{};
    std::array<std::array<bool, sources>, groups> read{};
    if (!legal_numbers()) return out;
    for (auto l : P::layers) {
      bool& known = read[static_cast<std::size_t>(l.group)][static_cast<std::size_t>(l.source)];
      out[static_cast<std::size_t>(l.group)] += known ? 0 : 1;
      known = true;
    }
    return out;
  }();
  /// Sources of two groups are the same or have none in common: a group's sources have one first reader, which reads as
  /// many.
  static constexpr bool equal_or_disjoint() {
    if (!legal_numbers()) return true;
    std::array<int, groups> reader{};
    reader.fill(-1);
    for (auto l : P::layers) {
      int const first = first_reader[static_cast<std::size_t>(l.source)];
      int& known = reader[static_cast<std::size_t>(l.group)];
      if ((known != -1 && known != first) ||
          set_size[static_cast<std::size_t>(l.group)] != set_size[static_cast<std::size_t>(first)])
        return false;
      known = first;
    }
    return true;
  }
  /// No other group reads the sources of a drafter.
  static constexpr bool drafter_alone() {
    if (P::drafter_group < 0) return true;
    if (P::drafter_group >= groups || !legal_numbers()) return false;
    for (auto l : P::layers)
      for (auto other : P::layers)
        if (l.source == other.source && (l.group == P::drafter_group) != (other.group == P::drafter_group))
          return false;
    return true;
  }
  /// Tokens that a drafter with full history writes beyond the queries of a step.
  static constexpr int drafts_ahead = P::drafter_group >= 0 ? P::max_queries : 0;
  /// Sources of one group have the same ratio.
  static constexpr bool equal_ratio_in_group() {
    if (!legal_numbers()) return true;
    std::array<int, groups> ratio{};
    for (auto l : P::layers) {
      int& known = ratio[static_cast<std::size_t>(l.group)];
      int const r = P::ratios[static_cast<std::size_t>(l.source)];
      if (known != 0 && known != r) return false;
      known = r;
    }
    return true;
  }
  /// Bytes that one lane copies at once of a row's segments, for every row of every source.
  static constexpr int in_row_width = [] {
    int w = copy_width(P::row.in_row);
    for (int s = 0; s < sources; ++s) w = std::min(w, copy_width(layout(s).stride));
    return w;
  }();
  static constexpr int page_end_width = [] {
    int w = std::min(in_row_width, copy_width(P::row.at_page_end));
    for (int s = 0; s < sources; ++s) w = std::min(w, copy_width(std::int64_t{rows_per_page(s)} * P::row.in_row));
    return w;
  }();
  /// Most sources that one group reads.
  static constexpr int largest_set() { return *std::max_element(set_size.begin(), set_size.end()); }
  static constexpr bool ratios_divide_page() {
    return std::all_of(P::ratios.begin(), P::ratios.end(), [](int r) { return r > 0 && P::page_tokens % r == 0; });
  }
  /// Rows of all sources keep their place relative to one shared staging area: bytes per row slot do not depend on the
  /// ratio.
  static constexpr bool staging_shareable() {
    for (int s = 1; s < sources; ++s) {
      if (layout(s).stride * rows_per_page(0) != layout(0).stride * rows_per_page(s)) return false;
    }
    return true;
  }
};

/// Refuses a policy with one sentence naming the knob, its value's fault and what would be legal. True, so that it can
/// be asserted.
template <policy P>
constexpr bool check_policy() {
  using g = geometry_of<P>;
  static_assert(P::row.in_row > 0 && P::row.at_page_end >= 0,
                "ebb policy: `row` has no bytes; give at least one byte in the row and none or more at the page end");
  static_assert(
      P::page_tokens > 0 && std::has_single_bit(static_cast<unsigned>(P::page_tokens > 0 ? P::page_tokens : 3)),
      "ebb policy: `page_tokens` is not a power of two; use 16, 32, 64, 128 or 256, say");
  static_assert(g::layers > 0 && g::sources > 0,
                "ebb policy: `layers` or `ratios` is empty; name at least one layer and one source");
  static_assert(g::legal_numbers(),
                "ebb policy: `layers` names a group or source out of range; groups start at 0 and every source has an "
                "entry in `ratios`");
  static_assert(
      g::ratios_divide_page(),
      "ebb policy: a ratio in `ratios` does not divide `page_tokens`; a page holds page_tokens / r whole rows");
  static_assert(
      g::equal_or_disjoint(),
      "ebb policy: two index groups share some of their sources and not all; source sets must be equal or disjoint");
  static_assert(g::equal_ratio_in_group(),
                "ebb policy: sources of one index group differ in their ratio; one selection names rows of one ratio");
  static_assert(P::top_k > 0, "ebb policy: `top_k` is not positive; give the number of positions one query selects");
  static_assert(P::max_queries >= 1 && P::max_queries <= 16,
                "ebb policy: `max_queries` is out of range; 1 to 16 queries a request are legal");
  static_assert(
      g::drafter_alone(),
      "ebb policy: `drafter_group` is no group of `layers`, or shares a source with another group; a drafter's "
      "sources are its own");
  static_assert(P::drafter_passes >= 1 && P::drafter_passes <= 64,
                "ebb policy: `drafter_passes` is out of range; a drafter may resolve 1 to 64 times a step");
  static_assert(
      P::draft.layers == 0 ||
          (P::draft.layers > 0 && P::draft.tokens > 0 && P::draft.row_bytes > 0 && P::draft.row_bytes % 16 == 0),
      "ebb policy: `draft` needs a window of at least one token, at least one layer, and rows of a multiple of "
      "16 bytes");
  static_assert(P::page_multiple > 0,
                "ebb policy: `page_multiple` is not positive; 1 means page strides without padding");
  static_assert(P::candidate_pool == 0 || P::candidate_pool >= P::top_k,
                "ebb policy: `candidate_pool` is smaller than `top_k`; announce none (0) or at least top_k positions");
  static_assert(
      P::tiers::legal,
      "ebb policy: `tiers` must name one or more backing tiers last, and at most one each of lent_pages, a row cache "
      "and staging_rows before it");
  static_assert(
      !P::tiers::stages || P::tiers::caches,
      "ebb policy: `tiers` has staging_rows without a row cache; what is staged is what the cache cannot hold");
  return true;
}

}  // namespace ebb

#pragma once
/// What one pipeline rank sees of a policy's geometry: its sources, groups and source sets, numbered from 0.

#include <ebb/error.hpp>
#include <ebb/policy.hpp>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace ebb {

/// Entries of a policy's `layers` that a pipeline rank runs, from `first` on; a count of −1 means all to the end.
struct layer_range {
  int first = 0;
  int count = -1;
};

/// The local view of a rank. Model-wide numbers (`source_id`, `group_id`) are what engines name; local indices number
/// what is here and index arrays. A *set* is the sources that some groups select from together: groups with the same
/// sources share it, others have none in common. A group that the range cuts keeps its local layers, and its set the
/// sources that local layers read.
///
/// Requires: check_policy<P>().
/// Concurrency: immutable once constructed, trivially copyable; what is EBB_FN may be called in a body.
template <policy P>
struct geometry {
  using all = geometry_of<P>;

  /// Throws: std::invalid_argument where the range is empty or leaves the policy's layers.
  constexpr explicit geometry(layer_range range = {}) {
    if (range.first < 0 || range.first >= all::layers) {
      require(false, "layers.first", range.first, "0 to " + std::to_string(all::layers - 1));
    }
    int const rest = all::layers - range.first;
    if (range.count != -1 && (range.count < 1 || range.count > rest)) {
      require(false, "layers.count", range.count, "1 to " + std::to_string(rest) + ", or -1 for all to the end");
    }
    int const count = range.count == -1 ? rest : range.count;

    bool reads_source[all::sources] = {};
    bool has_group[all::groups] = {};
    for (int i = range.first; i < range.first + count; ++i) {
      auto const layer = P::layers[static_cast<std::size_t>(i)];
      reads_source[layer.source] = true;
      has_group[layer.group] = true;
    }
    for (int s = 0; s < all::sources; ++s) {
      local_source_[s] = reads_source[s] ? static_cast<number>(sources_) : absent;
      if (reads_source[s]) source_number_[sources_++] = static_cast<number>(s);
    }
    for (int g = 0; g < all::groups; ++g) {
      local_group_[g] = has_group[g] ? static_cast<number>(groups_) : absent;
      if (has_group[g]) group_number_[groups_++] = static_cast<number>(g);
    }
    number_sets();
    for (int s = 0; s < sources_; ++s) {
      auto const r = P::ratios[static_cast<std::size_t>(source_number_[s])];
      ratio_[s] = static_cast<number>(r);
      stride_[s] = all::layout(source_number_[s]).stride;
    }
  }

  EBB_FN constexpr int sources() const { return sources_; }
  EBB_FN constexpr int groups() const { return groups_; }
  EBB_FN constexpr int sets() const { return sets_; }

  /// The local index of a model-wide number.
  /// Throws: std::out_of_range naming the number and what is here; an unknown layer number is an error, never a
  /// neighbour's rows.
  constexpr int source(source_id id) const { return look_up("source", index(id), local_source_, all::sources); }
  constexpr int group(group_id id) const { return look_up("group", index(id), local_group_, all::groups); }

  /// The model-wide number of a local index.
  EBB_FN constexpr source_id id_of_source(int source) const { return static_cast<source_id>(source_number_[source]); }
  EBB_FN constexpr group_id id_of_group(int group) const { return static_cast<group_id>(group_number_[group]); }

  EBB_FN constexpr int set_of_group(int group) const { return set_of_group_[group]; }
  EBB_FN constexpr int set_of_source(int source) const { return set_of_source_[source]; }

  /// Local sources of a set, ascending; `i` counts them from 0 to sources_of_set(set) − 1.
  EBB_FN constexpr int sources_of_set(int set) const { return first_in_set_[set + 1] - first_in_set_[set]; }
  EBB_FN constexpr int source_of_set(int set, int i) const { return by_set_[first_in_set_[set] + i]; }
  /// Local groups that share a set: how often its table is resolved in a step.
  EBB_FN constexpr int groups_of_set(int set) const { return groups_of_set_[set]; }
  /// Sources of the largest set.
  EBB_FN constexpr int largest_set() const {
    int most = 0;
    for (int set = 0; set < sets_; ++set) most = sources_of_set(set) > most ? sources_of_set(set) : most;
    return most;
  }

  /// The local group of a drafter that reads full history, −1 where there is none here; and whether a source is its own.
  EBB_FN constexpr int drafter() const {
    if constexpr (P::drafter_group >= 0) return local_group_[P::drafter_group];
    return -1;
  }
  EBB_FN constexpr bool is_drafters(int source) const {
    return drafter() >= 0 && set_of_group_[drafter()] == set_of_source_[source];
  }

  /// Compression ratio, rows per page and page layout of a local source; the ratio of a set is that of its sources.
  EBB_FN constexpr int ratio(int source) const { return ratio_[source]; }
  EBB_FN constexpr int ratio_of_set(int set) const { return ratio_[source_of_set(set, 0)]; }
  EBB_FN constexpr int rows_per_page(int source) const { return P::page_tokens / ratio_[source]; }
  EBB_FN constexpr page_layout layout(int source) const {
    page_layout out{P::row, rows_per_page(source), 1};
    out.stride = stride_[source];
    return out;
  }
  EBB_FN constexpr int smallest_ratio() const {
    int least = ratio_[0];
    for (int s = 1; s < sources_; ++s) least = ratio_[s] < least ? ratio_[s] : least;
    return least;
  }
  /// Bytes of one page of every local source: of a frame, and of a host page.
  EBB_FN constexpr std::int64_t page_bytes() const {
    std::int64_t bytes = 0;
    for (int s = 0; s < sources_; ++s) bytes += stride_[s];
    return bytes;
  }

 private:
  using number = std::int16_t;
  static constexpr number absent = -1;
  static_assert(all::sources < 32'768 && all::groups < 32'768 && P::page_tokens < 32'768);

  /// Numbers sets in the order of their first local group. Groups share one where their sources have the same first
  /// reader.
  constexpr void number_sets() {
    number reader_of_group[all::groups] = {};
    for (auto const layer : P::layers) {
      reader_of_group[layer.group] = static_cast<number>(all::first_reader[static_cast<std::size_t>(layer.source)]);
    }
    number set_of_reader[all::groups] = {};
    for (number& set : set_of_reader) set = absent;
    for (int g = 0; g < groups_; ++g) {
      number& set = set_of_reader[reader_of_group[group_number_[g]]];
      if (set == absent) set = static_cast<number>(sets_++);
      set_of_group_[g] = set;
      ++groups_of_set_[set];
    }
    for (int s = 0; s < sources_; ++s) {
      set_of_source_[s] = set_of_reader[all::first_reader[static_cast<std::size_t>(source_number_[s])]];
      ++first_in_set_[set_of_source_[s] + 1];
    }
    for (int set = 0; set < sets_; ++set)
      first_in_set_[set + 1] = static_cast<number>(first_in_set_[set + 1] + first_in_set_[set]);
    number filled[all::groups] = {};
    for (int s = 0; s < sources_; ++s) {
      int const set = set_of_source_[s];
      by_set_[first_in_set_[set] + filled[set]++] = static_cast<number>(s);
    }
  }

  static constexpr int look_up(char const* what, int id, number const* local, int size) {
    if (id < 0 || id >= size || local[id] == absent) throw_unknown(what, id, local, size);
    return local[id];
  }
  [[noreturn]] static void throw_unknown(char const* what, int id, number const* local, int size) {
    std::string here;
    for (int i = 0; i < size; ++i) {
      if (local[i] == absent) continue;
      int last = i;
      while (last + 1 < size && local[last + 1] != absent) ++last;
      here += (here.empty() ? "" : ", ") + std::to_string(i) + (last > i ? " to " + std::to_string(last) : "");
      i = last;
    }
    throw std::out_of_range(std::string{what} + " is " + std::to_string(id) + "; legal on this rank: " + here);
  }

  std::int64_t stride_[all::sources] = {};
  int sources_ = 0;
  int groups_ = 0;
  int sets_ = 0;
  number local_source_[all::sources] = {};  ///< by model-wide number
  number local_group_[all::groups] = {};    ///< by model-wide number
  number source_number_[all::sources] = {};
  number group_number_[all::groups] = {};
  number ratio_[all::sources] = {};
  number set_of_source_[all::sources] = {};
  number set_of_group_[all::groups] = {};
  number groups_of_set_[all::groups] = {};
  number first_in_set_[all::groups + 1] = {};
  number by_set_[all::sources] = {};
};

}  // namespace ebb

#pragma once
// Sizes of an instance by seed: small, so that everything happens often.

#include <ebb/geometry.hpp>
#include <ebb/sizes.hpp>

#include "operations.hpp"
#include "reference_model.hpp"

namespace ebb::testing {

/// A policy's numbers as the model wants them. `sets`: groups with the same sources share one.
template <policy P>
model_shape shape_of_policy() {
  model_shape m;
  m.page_tokens = P::page_tokens;
  m.max_queries = P::max_queries;
  m.caches = P::tiers::caches;
  m.ratios.assign(P::ratios.begin(), P::ratios.end());
  for (auto const& l : P::layers) {
    if (static_cast<int>(m.groups.size()) <= l.group) m.groups.resize(static_cast<std::size_t>(l.group) + 1);
    auto& of = m.groups[static_cast<std::size_t>(l.group)];
    auto const place = std::lower_bound(of.begin(), of.end(), l.source);
    if (place == of.end() || *place != l.source) of.insert(place, l.source);
  }
  for (std::size_t i = 0; i < m.groups.size(); ++i) {
    auto const same =
        static_cast<std::size_t>(std::find(m.groups.begin(), m.groups.end(), m.groups[i]) - m.groups.begin());
    m.set_of_group.push_back(same < i ? m.set_of_group[same] : m.sets++);
  }
  return m;
}

/// Sizes that the seed decides, legal for the policy. Besides the library's knobs P has `largest_tokens`, of which few bits are left for
/// stamps, and `borrows`: arenas are the engine's, 0 never, 1 at times, 2 always, all sources in one allocation.
template <policy P>
struct random_shape {
  explicit random_shape(std::uint64_t seed) : model{shape_of_policy<P>()} {
    generator g{seed * 3 + 1};
    model.steps_in_flight = 1 + g.below(3);
    model.requests = 2 + g.below(7);
    model.max_batch = 1 + g.below(model.requests);
    if (model.caches) {
      int const wanted = P::top_k * (P::tiers::stages ? 1 : P::max_queries);
      int frames = 1;
      while (fewest_ways(frames) < wanted) ++frames;
      frames *= 1 + g.below(3);
      model.hot_rows = (frames - 1) * P::page_tokens + 1 + g.below(P::page_tokens);
      if (P::tiers::stages)
        model.staging_rows =
            std::max(0, P::max_queries * P::top_k - fewest_ways(frames)) + (g.below(3) == 0 ? g.below(20) : 0);
    }
    if (P::candidate_pool > 0)
      model.prefetch_rows = g.below(2) == 0 ? P::candidate_pool : g.below(P::candidate_pool + 1);
    int const required = model.tail_pages() + model.hot_frames();
    longest = required + 2 + g.below(20);
    model.frames = std::max(8, required) + g.below(g.below(2) == 0 ? 33 : 10);
    model.host_pages = model.requests * longest / 3 + 1 + g.below(model.requests * longest / 2);
    model.max_tokens = std::max<std::int64_t>(P::largest_tokens >> (g.below(3) == 0 ? g.below(6) : 0),
                                              std::int64_t{longest} * P::page_tokens);
    refill_bytes = g.below(4) == 0 ? 0 : static_cast<long long>(g.below(5)) * 40'000 / (1 + g.below(20));
    borrows = P::borrows == 2 || (P::borrows == 1 && g.below(2) == 0);
    gap = P::borrows == 1 ? g.below(2) * 64 : 0;
  }

  model_shape model;
  int longest = 0;  ///< pages of the longest request that is asked for, where it is not meant to be refused
  long long refill_bytes = 0;
  bool borrows = false;
  int gap = 0;  ///< bytes between frames of a borrowed arena

  ebb::sizes sizes() const {
    ebb::sizes s{.frames = model.frames,
                 .host_pages = model.host_pages,
                 .requests = model.requests,
                 .max_batch = model.max_batch,
                 .max_tokens = model.max_tokens};
    s.hot_rows = model.hot_rows;
    s.staging_rows = model.staging_rows;
    s.prefetch_rows = model.prefetch_rows;
    s.steps_in_flight = model.steps_in_flight;
    s.refill_bytes = refill_bytes;
    return s;
  }
  /// Arenas from `base` on, each with room for the row of zeroes and for staging; and how many bytes they take in all.
  std::vector<arena_view> arenas(std::byte* base, std::int64_t& bytes) const {
    std::int64_t all = 0;
    for (int s = 0; s < geometry_of<P>::sources; ++s) all += geometry_of<P>::layout(s).stride;
    std::vector<arena_view> out;
    std::int64_t at = 0;
    bytes = 0;
    for (int s = 0; s < geometry_of<P>::sources; ++s) {
      std::int64_t const own = geometry_of<P>::layout(s).stride;
      std::int64_t const stride = P::borrows == 2 ? all : own + gap;
      std::int64_t const frames = model.frames + (P::metadata::packed ? 1 : 0) +
                                  std::int64_t{model.max_batch} * model.staging_slots() / model.rows_per_page(s);
      out.push_back({base + at, stride, (frames - 1) * stride + own});
      bytes = std::max(bytes, (P::borrows == 2 ? 0 : at) + (frames * stride + 63) / 64 * 64);
      at = P::borrows == 2 ? at + own : bytes;
    }
    return out;
  }

 private:
  /// Ways of the smallest table: rows of its frames in whole sets of 16, fewer than 16 as they are.
  int fewest_ways(int frames) const {
    int least = std::numeric_limits<int>::max();
    for (int s = 0; s < static_cast<int>(model.ratios.size()); ++s) {
      int const rows = frames * model.rows_per_page(s);
      least = std::min(least, rows < 16 ? rows : rows / 16 * 16);
    }
    return least;
  }
};

}  // namespace ebb::testing

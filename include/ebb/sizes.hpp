#pragma once
/// Sizes of an instance: what the engine gives, what follows, and what is refused.

#include <ebb/arenas.hpp>
#include <ebb/footprint.hpp>

namespace ebb {

/// Constructor arguments of `residency`. Counts, except where a unit is named.
struct sizes {
  int frames;               ///< frames of the GPU, each one page of every source
  int host_pages;           ///< pages of the host store
  int requests;             ///< request slots, preempted ones too
  int max_batch;            ///< requests of one step at most
  std::int64_t max_tokens;  ///< longest request; fixes the map's width and the position bits
  int hot_rows = 0;         ///< of one request, at r = 1
  int staging_rows = -1;    ///< of one request; −1: max_queries · top_k − ways, at least 0
  int prefetch_rows = -1;   ///< of one request that one prefetch may copy; −1: the policy's candidate_pool
  int draft_rings = -1;     ///< requests that run at once with a windowed drafter; −1: all slots
  int steps_in_flight = 1;
  long long refill_bytes = defaults::refill_bytes;  ///< handed back per step at most
  layer_range layers = {};                          ///< of a pipeline rank
  host_kind host = host_kind::managed;
  std::span<arena_view const> arenas = {};  ///< borrowed GPU memory, `arena_bytes` for each local source; empty: owned
  std::span<std::byte> host_memory = {};    ///< borrowed host store, `host_bytes` of it; empty: owned
};

/// Sizes of one policy on one rank, with all that follows from them.
template <policy P>
struct sizing {
  ebb::sizes s;
  int tail = 0;          ///< frames of a request's tail
  int hot = 0;           ///< frames of its hot rows
  int staging_ways = 0;  ///< staging slots of a request
  int bits = 0;          ///< position bits of a table word

  /// Throws: std::invalid_argument naming the first illegal size, its value and what is legal.
  explicit sizing(ebb::sizes const& given, geometry<P> const& g) : s{given} {
    auto const positive = [](char const* name, long long v) { require(v > 0, name, v, "1 or more"); };
    positive("frames", s.frames);
    positive("host_pages", s.host_pages);
    positive("requests", s.requests);
    positive("max_batch", s.max_batch);
    positive("max_tokens", s.max_tokens);
    require(s.steps_in_flight >= 1 && s.steps_in_flight <= most_steps, "steps_in_flight", s.steps_in_flight, "1 to ",
            most_steps);
    require(s.max_tokens <= longest_tokens<P>(g), "max_tokens", s.max_tokens, "up to ", longest_tokens<P>(g),
            P::tiers::caches ? ": more positions leave the words of hot rows too few stamps" : "");
    require(s.requests <= most_requests, "requests", s.requests, "up to ", most_requests);
    require(s.max_batch <= s.requests, "max_batch", s.max_batch, "up to requests, " + std::to_string(s.requests));
    require(s.refill_bytes >= 0, "refill_bytes", s.refill_bytes, "0 or more");
    require(s.hot_rows >= 0 && s.hot_rows <= most_rows, "hot_rows", s.hot_rows, "0 to ", most_rows);
    require(s.staging_rows >= -1 && s.staging_rows <= most_rows, "staging_rows", s.staging_rows, "0 to ", most_rows,
            ", or -1 for as many as are needed");
    require(s.draft_rings >= -1 && s.draft_rings <= (P::draft.layers > 0 ? s.requests : 0), "draft_rings",
            s.draft_rings,
            P::draft.layers > 0 ? "1 to requests, or -1 for as many" : "0, where the policy has no `draft` window");
    if (s.draft_rings < 0) s.draft_rings = P::draft.layers > 0 ? s.requests : 0;
    require(P::draft.layers == 0 || s.draft_rings > 0, "draft_rings", s.draft_rings, "1 to requests");
    require(s.prefetch_rows >= -1 && s.prefetch_rows <= P::candidate_pool, "prefetch_rows", s.prefetch_rows, "0 to ",
            P::candidate_pool, ", the policy's candidate_pool, or -1 for all of it");
    if (s.prefetch_rows < 0) s.prefetch_rows = P::candidate_pool;
    tail = tail_pages(P::page_tokens, P::max_queries, s.steps_in_flight, P::drafter_group >= 0);
    if constexpr (P::tiers::caches) {
      hot = hot_frames(s.hot_rows, P::page_tokens);
      check_rows(g);
      bits = position_bits(s.max_tokens, g.smallest_ratio());
    } else {
      require(s.hot_rows == 0, "hot_rows", s.hot_rows, "0, where the tiers have no row cache");
    }
    int const least = required_frames(1, P::page_tokens, tail, hot, P::tiers::caches);
    require(s.frames >= least, "frames", s.frames, "at least " + std::to_string(least) + ", what one request requires");
  }

  /// Bytes of the longest list that one begin_step uploads in one piece: hot frames of all requests.
  std::size_t largest_upload() const {
    return static_cast<std::size_t>(s.requests) * (static_cast<std::size_t>(hot) + 4) * 4;
  }

  /// Pages that one begin_step hands back at most; a budget below one page still hands back one, 0 none.
  int refill_pages(std::int64_t page_bytes) const {
    long long const pages = s.refill_bytes / page_bytes;
    return static_cast<int>(s.refill_bytes == 0 ? 0 : std::clamp<long long>(pages, 1, s.frames));
  }

 private:
  void check_rows(geometry<P> const& g) {
    int const least = fewest_hot_rows(g);
    int const fewest = smallest_ways(g, s.hot_rows);
    require(s.hot_rows >= least, "hot_rows", s.hot_rows, "at least ", least, ": every table must hold ",
            least_ways<P>(),
            P::tiers::stages ? " rows, top_k" : " rows, max_queries · top_k, where the tiers have no staging_rows");
    require(P::tiers::stages || s.staging_rows <= 0, "staging_rows", s.staging_rows,
            "0, where the tiers have no staging_rows");
    s.staging_rows = staging_rows_for(g, s.hot_rows, s.staging_rows);
    require(fewest + s.staging_rows >= P::max_queries * P::top_k, "staging_rows", s.staging_rows,
            "at least " + std::to_string(P::max_queries * P::top_k - fewest) +
                ": hot rows and staging must hold max_queries · top_k = " + std::to_string(P::max_queries * P::top_k) +
                " rows");
    staging_ways = staging_slots(s.staging_rows, P::page_tokens / g.smallest_ratio());
  }
};

/// Bytes that a borrowed arena of a source needs at `frame_stride` (0: its page's bytes), staging included.
/// Throws: std::invalid_argument for sizes that the constructor of `residency` refuses, too.
template <policy P>
std::int64_t arena_bytes(sizes const& given, source_id source, std::int64_t frame_stride = 0) {
  geometry<P> const g{given.layers};
  sizing<P> const all{given, g};
  page_layout const layout = g.layout(g.source(source));
  std::int64_t const frames =
      frames_in_arena(given.frames, P::metadata::packed, given.max_batch, all.staging_ways, layout.rows);
  return (frames - 1) * (frame_stride == 0 ? layout.stride : frame_stride) + layout.stride;
}
/// Bytes of a borrowed host store.
template <policy P>
std::int64_t host_bytes(sizes const& given) {
  return std::int64_t{given.host_pages} * geometry<P>{given.layers}.page_bytes();
}

}  // namespace ebb

#pragma once
/// KV of a windowed drafter: a ring of rows per request, where they are written, and which of them a query may see.

#include <ebb/capacity.hpp>
#include <ebb/error.hpp>
#include <ebb/space.hpp>
#include <ebb/step_state.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace ebb {

/// Rows of one ring, the same for every request whatever its length: window + max_queries, rounded up to a multiple of
/// 16.
///
/// A step at committed length c writes positions c … c + max_queries − 1, and its query j sees [c + j + 1 − window, c
/// + j + 1). From the first visible position to the last written one these are window + max_queries − 1, so as many
/// rows suffice: rejected rows lie at or behind the committed length, where the next step writes again. One more lets
/// a query that sees committed rows alone (bound c) have its whole window, too. Steps in flight add nothing: committed
/// lengths live on the device, so a step's rows are placed from what the steps before it accepted, and the stream puts
/// their reads first.
constexpr int draft_capacity(draft_window const& window, int max_queries) {
  return (window.tokens + max_queries + 15) / 16 * 16;
}
/// Bytes of one ring, all layers; 0 without a drafter.
constexpr std::int64_t draft_ring_bytes(draft_window const& window, int max_queries) {
  return std::int64_t{draft_capacity(window, max_queries)} * window.layers * window.row_bytes;
}

/// Row address of a token position in a ring, from the base of any layer.
EBB_FN constexpr std::int32_t draft_row(int ring, std::int64_t position, int capacity) {
  return ring * capacity + static_cast<std::int32_t>(position % capacity);
}

/// The first valid position of a request that is cut from `before` to `after` committed tokens. A step at `before` may
/// have written positions up to before + max_queries − 1, each over the one `capacity` positions earlier; what is cut
/// off is written again before it is seen.
/// Requires: 0 ≤ first ≤ before and after ≤ before, all up to `most_tokens`.
constexpr std::int32_t first_after_truncate(std::int64_t first, std::int64_t before, std::int64_t after, int capacity,
                                            int max_queries) {
  std::int64_t const kept = std::max(first, before + max_queries - capacity);
  return static_cast<std::int32_t>(std::min(kept, after));
}

/// The running step as the ring's bodies see it: arrays in memory that they read, at fixed addresses where they are
/// captured.
/// Concurrency: written before the bodies run, in stream order.
struct draft_batch {
  std::uint32_t const* header;    ///< header_words: how many requests are real
  row_record const* rows;         ///< [padded] of each request of the batch; only real ones are read
  std::int32_t const* committed;  ///< [requests] tokens
  std::int32_t const* rings;      ///< [requests] ring, −1: none, nothing is written or seen
  row_shape shape{};              ///< whose rows are whose

  EBB_FN bool is_real(int item) const { return item < static_cast<int>(header[header_words::requests]); }
};

/// Where the drafter's row of each query's token goes. Item = request of the batch; a row of a padded request, behind
/// the request's room, or beyond max_queries gets −1.
/// Cost: 4 bytes a row; once a step, whatever the number of layers.
struct draft_writes_body {
  draft_batch batch;
  int capacity;
  int max_queries;
  std::int32_t* writes;  ///< [rows of the batch] row address or −1

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    bool const real = batch.is_real(item);
    row_record const row = real ? batch.rows[item] : row_record{0, 0, 0};
    int const ring = real ? batch.rings[row.slot] : -1;
    std::int64_t const committed = real ? batch.committed[row.slot] : 0;
    query_rows const own = batch.shape.of(item);
    int const begin = own.first, end = own.first + own.count;
    for (int out = begin + t.rank(); out < end; out += T::width) {
      std::int64_t const token = committed + (out - begin);
      bool const fits = ring >= 0 && out - begin < max_queries && token < row.writable;
      writes[out] = fits ? draft_row(ring, token, capacity) : -1;
    }
  }
};

/// What each query sees: the last `window` positions before its causal bound, without those before the request's first
/// valid one. Positions that the ring cannot hold at this committed length are never shown: a bound below it, or more
/// than max_queries beyond, gets fewer. Item = request of the batch; queries of padded requests, and those of bound 0,
/// see nothing.
/// Requires: the row of every position from the committed length up to the bound is written in this step, earlier in
/// the stream than the rows are read. A step that commits tokens without their drafter rows moves `first` behind them.
/// Cost: 4 · window bytes a row; once a step, whatever the number of layers.
struct draft_window_body {
  draft_batch batch;
  int capacity;
  int max_queries;
  int window;
  std::int32_t const* bounds;  ///< [rows of the batch] exclusive causal bound, tokens; 0: padding
  std::int32_t const* first;   ///< [requests] first position whose row is of this incarnation, or restored with it
  std::int32_t* addresses;     ///< [rows of the batch][window] in rising order of positions, then −1
  std::int32_t* lengths;       ///< [rows of the batch] how many of them name a row

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    bool const real = batch.is_real(item);
    int const slot = real ? batch.rows[item].slot : 0;
    int const ring = real ? batch.rings[slot] : -1;
    // The ring holds no position at or behind `written`, and none from `capacity` before it.
    std::int64_t const written = real ? std::int64_t{batch.committed[slot]} + max_queries : 0;
    std::int64_t const valid = real ? later(later(first[slot], written - capacity), 0) : 0;
    query_rows const own = batch.shape.of(item);
    for (int out = own.first; out < own.first + own.count; ++out) {
      std::int64_t const bound = ring < 0 ? 0 : bounds[out];
      std::int64_t const begin = later(bound - window, valid), end = bound < written ? bound : written;
      int const length = begin < end ? static_cast<int>(end - begin) : 0;
      int const start = static_cast<int>(begin % capacity);
      std::int32_t* const to = addresses + std::int64_t{out} * window;
      for (int i = t.rank(); i < window; i += T::width) {
        int const at = start + i < capacity ? start + i : start + i - capacity;
        to[i] = i < length ? ring * capacity + at : -1;
      }
      if (t.rank() == 0) lengths[out] = length;
    }
  }

 private:
  EBB_FN static constexpr std::int64_t later(std::int64_t a, std::int64_t b) { return a < b ? b : a; }
};

/// Owner of the rings: `[layers][rings][capacity][row_bytes]` in device memory, allocated at construction. Position t
/// of ring k has the row address k · capacity + t % capacity, an int32, from the base of every layer. A request has
/// one ring from its admission to its end, of constant size: a free ring is all that it has to wait for. Move-only.
/// Concurrency: one control thread.
/// Stream: nothing is enqueued here. A ring may have its next owner at once, as long as both requests' work is
/// ordered: it is not cleared, because `first` hides what was written before.
template <space S>
class draft_ring {
 public:
  /// `max_queries`: rows that one step writes of a request, at most.
  /// Throws: std::invalid_argument naming argument, value and range; what the space throws where memory falls short.
  draft_ring(S const& space, draft_window const& window, int max_queries, int rings)
      : window_{checked(window, max_queries, rings)},
        max_queries_{max_queries},
        capacity_{draft_capacity(window, max_queries)},
        taken_(static_cast<std::size_t>(rings), 0),
        memory_{space.device_memory(static_cast<std::size_t>(bytes()))} {
    for (int k = rings; k-- > 0;) free_.push_back(k);
  }
  draft_ring(draft_ring&&) = default;
  draft_ring& operator=(draft_ring&&) = default;

  draft_window const& window() const { return window_; }
  int rings() const { return static_cast<int>(taken_.size()); }
  /// Rows of one ring in one layer.
  int capacity() const { return capacity_; }
  /// Rows of one layer: every address is below.
  int rows() const { return rings() * capacity_; }
  /// Of all rings and layers: as many `draft_ring_bytes` as there are rings.
  std::int64_t bytes() const { return draft_ring_bytes(window_, max_queries_) * rings(); }
  /// Row 0 of a layer; rows follow one another every `row_bytes`. Throws: std::invalid_argument.
  std::byte* base(int layer) const {
    require(layer >= 0 && layer < window_.layers, "base: layer", layer, "0 to ", window_.layers - 1);
    return memory_.get() + std::int64_t{layer} * rows() * window_.row_bytes;
  }

  /// A ring that nobody has, or −1 where all are taken. The caller sets the request's `first` to its committed length,
  /// or to the first position that it restores.
  int take() {
    if (free_.empty()) return -1;
    int const ring = free_.back();
    free_.pop_back();
    taken_[static_cast<std::size_t>(ring)] = 1;
    return ring;
  }
  /// Throws: std::invalid_argument unless the ring is taken.
  void give_back(int ring) {
    require(ring >= 0 && ring < rings() && taken_[static_cast<std::size_t>(ring)] != 0, "give_back: ring", ring,
            "one that was taken and not given back");
    taken_[static_cast<std::size_t>(ring)] = 0;
    free_.push_back(ring);
  }
  /// Rings that nobody has.
  int free() const { return static_cast<int>(free_.size()); }

  /// The bodies, for this ring's sizes; arrays as described there.
  draft_writes_body writes(draft_batch const& batch, std::int32_t* writes) const {
    return {batch, capacity_, max_queries_, writes};
  }
  draft_window_body windows(draft_batch const& batch, std::int32_t const* bounds, std::int32_t const* first,
                            std::int32_t* addresses, std::int32_t* lengths) const {
    return {batch, capacity_, max_queries_, window_.tokens, bounds, first, addresses, lengths};
  }
  /// `first` of a request that is cut from `before` to `after` committed tokens.
  std::int32_t first_after_truncate(std::int64_t first, std::int64_t before, std::int64_t after) const {
    return ebb::first_after_truncate(first, before, after, capacity_, max_queries_);
  }

 private:
  static draft_window const& checked(draft_window const& w, int max_queries, int rings) {
    constexpr int most = std::numeric_limits<std::int32_t>::max();
    require(w.tokens >= 1 && w.tokens <= most_tokens, "draft_window: tokens", w.tokens, "1 to ", most_tokens);
    require(w.row_bytes >= 16 && w.row_bytes % 16 == 0, "draft_window: row_bytes", w.row_bytes, "a multiple of 16");
    require(w.layers >= 1 && w.layers <= most / w.row_bytes, "draft_window: layers", w.layers, "1 to ",
            most / w.row_bytes);
    require(max_queries >= 1 && max_queries <= 16, "draft_ring: max_queries", max_queries, "1 to 16");
    int const most_rings = most / draft_capacity(w, max_queries);
    require(rings >= 1 && rings <= most_rings, "draft_ring: rings", rings, "1 to ", most_rings,
            ", so that row addresses fit in int32");
    return w;
  }

  draft_window window_;
  int max_queries_;
  int capacity_;
  std::vector<std::uint8_t> taken_;
  std::vector<int> free_;  ///< the last one goes first
  std::shared_ptr<std::byte> memory_;
};

static_assert(draft_capacity({16, 1, 16}, 1) == 32 && draft_capacity({8, 1, 16}, 8) == 16 &&
              draft_capacity({2048, 6, 4096}, 8) == 2064);
static_assert(draft_ring_bytes({}, 8) == 0 && draft_ring_bytes({16, 3, 48}, 1) == 32 * 3 * 48);
// A six-layer drafter of 4 KB rows and a window of 2,048 adds at most 0.0475 GiB to a request.
static_assert(draft_ring_bytes({2048, 6, 4096}, 8) * 10'000 <= 475 * (std::int64_t{1} << 30));
static_assert(draft_row(3, 100, 32) == 3 * 32 + 4);
// Nothing was overwritten; the oldest were; none are left; a history that was restored without rows is cut short.
static_assert(first_after_truncate(0, 50, 40, 80, 8) == 0 && first_after_truncate(0, 100, 90, 80, 8) == 28 &&
              first_after_truncate(0, 1000, 40, 80, 8) == 40 && first_after_truncate(200, 210, 150, 80, 8) == 150);

}  // namespace ebb

#pragma once
/// The published HiSparse design as a kernel, to compare with: what the library must beat.
///
/// Written for this benchmark from the description of the design and of its open implementations (a fixed hot buffer a
/// request under least-recently-used eviction): one block of 1,024 threads a request; each call hashes its selection
/// into shared memory, walks the whole LRU order, looks every slot's token up in the hash, and so finds hits and
/// evictable slots; misses take the least recently used slots; the whole order is written again: what stayed, what is
/// new, what was hit; then one warp copies one missing row at a time, 16 bytes a lane. Where a token is in host memory
/// is looked up in a table of 8 bytes a history token. Selections must be filled with distinct valid positions.

#include <ebb/rows.hpp>
#include <ebb/team.hpp>

#include <cstdint>

namespace bench {

template <int K, int Hot>
struct reference_body {
  static constexpr int threads = 1024;
  static constexpr int hash_size = 2 * K;
  static_assert((hash_size & (hash_size - 1)) == 0 && Hot >= K && Hot <= 32'768);

  std::byte* arena;
  ebb::page_layout arena_layout;
  std::byte const* host;
  ebb::page_layout host_layout;
  std::int32_t* tokens;           ///< [request][Hot], −1: empty
  std::int16_t* order;            ///< [request][Hot] slots, least recently used first
  std::int32_t const* slots;      ///< [request][Hot] row address of each
  std::int64_t const* host_rows;  ///< [request][history]
  std::int64_t history;
  std::int32_t const* selection;
  std::int32_t* out;
  std::int64_t stride;  ///< entries from one request's selection to the next

  struct shared {
    std::int32_t wanted[K];  ///< position, or `hit`; then the positions that are missing
    std::int32_t keys[hash_size];
    std::int16_t values[hash_size];
    std::int16_t next[Hot];  ///< evictable slots from the front, hit ones from the back
  };
  static constexpr std::int32_t hit = -2;

  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item, shared& s) const {
    std::int32_t* const token = tokens + std::int64_t{item} * Hot;
    std::int16_t* const lru = order + std::int64_t{item} * Hot;
    std::int32_t const* const slot_row = slots + std::int64_t{item} * Hot;
    std::int32_t* const to = out + item * stride;

    for (int i = t.rank(); i < hash_size; i += T::width) s.keys[i] = -1;
    t.sync();
    for (int i = t.rank(); i < K; i += T::width) {
      std::int32_t const p = selection[item * stride + i];
      s.wanted[i] = p;
      std::uint32_t at = hash(p);
      while (t.exchange(reinterpret_cast<std::uint32_t*>(s.keys + at), ~0u, static_cast<std::uint32_t>(p)) != ~0u)
        at = (at + 1) % hash_size;
      s.values[at] = static_cast<std::int16_t>(i);
    }
    t.sync();

    int hits = 0;
    int evictable = 0;
    for (int first = 0; first < Hot; first += T::width) {
      int const i = first + t.rank();
      std::int16_t const slot = i < Hot ? lru[i] : std::int16_t{0};
      int const found = i < Hot ? find(s, token[slot]) : -1;
      if (found >= 0) {
        to[found] = slot_row[slot];
        s.wanted[found] = hit;
      }
      ebb::vote const v = t.prefix(found >= 0);
      int const lanes = Hot - first < T::width ? Hot - first : T::width;
      if (found >= 0) {
        s.next[Hot - 1 - hits - v.before] = slot;
      } else if (i < Hot) {
        s.next[evictable + t.rank() - v.before] = slot;
      }
      hits += v.all;
      evictable += lanes - v.all;
    }
    t.sync();

    int missing = 0;
    for (int first = 0; first < K; first += T::width) {
      int const i = first + t.rank();
      std::int32_t const p = i < K ? s.wanted[i] : hit;
      ebb::vote const v = t.prefix(p != hit);
      int const m = missing + v.before;
      if (p != hit) {
        std::int16_t const slot = s.next[m];
        to[i] = slot_row[slot];
        token[slot] = p;
        s.wanted[m] = p;  // m <= i, and everyone has read this pass's part
      }
      missing += v.all;
    }
    t.sync();

    // What stayed, what is new, what was hit, in the order it had: the last is the most recent.
    for (int i = t.rank(); i < Hot; i += T::width) {
      int const kept = evictable - missing;
      lru[i] = i < kept ? s.next[missing + i] : i < evictable ? s.next[i - kept] : s.next[Hot - 1 - (i - evictable)];
    }

    constexpr int lanes = T::width < 32 ? T::width : 32;
    for (int m = t.rank() / lanes; m < missing; m += T::width / lanes) {
      std::int64_t const from = host_rows[item * history + s.wanted[m]];
      std::int32_t const into = slot_row[s.next[m]];
      int const bytes = host_layout.row.in_row, lane = t.rank() % lanes;
      if (host_layout.row.at_page_end == 0) {  // as published: rows one after another
        copy_row(t, arena + std::int64_t{into} * bytes, host + from * bytes, bytes, lane, lanes);
        continue;
      }
      copy_row(t, arena + arena_layout.in_row_offset(into), host + host_layout.in_row_offset(from), bytes, lane, lanes);
      copy_row(t, arena + arena_layout.page_end_offset(into), host + host_layout.page_end_offset(from),
               host_layout.row.at_page_end, lane, lanes);
    }
  }

 private:
  EBB_FN static std::uint32_t hash(std::int32_t p) {
    return (static_cast<std::uint32_t>(p) * 0x9e3779b1u >> 7) % hash_size;
  }
  EBB_FN static int find(shared const& s, std::int32_t p) {
    if (p < 0) return -1;
    for (std::uint32_t at = hash(p); s.keys[at] != -1; at = (at + 1) % hash_size) {
      if (s.keys[at] == p) return s.values[at];
    }
    return -1;
  }
  EBB_BODY
  template <class T>
  EBB_FN static void copy_row(T const& t, std::byte* to, std::byte const* from, int bytes, int lane, int lanes) {
    int const wide = bytes / 16 * 16;
    for (int c = lane * 16; c < wide; c += lanes * 16) t.template copy<16>(to + c, from + c);
    for (int c = wide + lane * 8; c < bytes; c += lanes * 8) t.template copy<8>(to + c, from + c);
  }
};

}  // namespace bench

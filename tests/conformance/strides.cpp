// O04: rows of every size, at every stride and offset, whole and within their bounds.
#include <algorithm>
#include <stdexcept>

#include "scenario.hpp"

namespace strides_test {

using namespace ebb;
using namespace ebb::testing;

/// Pages of one row, so that the stride from row to row is the arena's; 16 hot rows are 16 frames.
template <int Bytes>
struct one_row_pages : policy_defaults {
  static constexpr row_segments row{Bytes};
  static constexpr int page_tokens = 1;
  static constexpr int top_k = 8;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
};
/// Pages of four rows, the last bytes of each at the page's end.
struct split_rows : one_row_pages<576> {
  static constexpr row_segments row{576, 8};
  static constexpr int page_tokens = 4;
};

#if defined(__CUDACC__)
template <class S>
using strict = S;
#define EBB_STRICT_SPACES ebb::cuda_space
#else
/// A lane that refuses what a GPU faults on: copies whose addresses are not multiples of their width.
struct strict_team : serial_team {
  template <int Bytes>
  void copy(std::byte* to, std::byte const* from) const {
    look<Bytes>(to, from);
    serial_team::copy<Bytes>(to, from);
  }
  template <int Bytes, int K>
  void copy(std::byte* const (&to)[K], std::byte const* const (&from)[K]) const {
    for (int k = 0; k < K; ++k) {
      if (from[k] != nullptr) look<Bytes>(to[k], from[k]);
    }
    serial_team::copy<Bytes>(to, from);
  }

 private:
  template <int Bytes>
  static void look(std::byte const* to, std::byte const* from) {
    if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % Bytes != 0)
      throw std::runtime_error("misaligned copy of " + std::to_string(Bytes) + " bytes");
  }
};
class strict_space : public host::queue_space {
 public:
  strict_space() {}
  template <class Body>
  void run(stream on, int items, Body const& body) const {
    enqueue_run(on, items, [items, body](host::generator*) {
      host::shared_storage<typename shared_of<Body>::type> shared;
      for (int item = 0; item < items; ++item) ebb::call(body, strict_team{}, item, shared.poison());
    });
  }
};
#define EBB_STRICT_SPACES strict_space
#endif

constexpr std::int64_t up_to(std::int64_t bytes, std::int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

template <class S>
void fill(S const& space, std::byte* memory, std::int64_t bytes, std::byte value) {
  auto const stream = space.make_stream();
  space.run(stream, 1, fill_body{memory, bytes, value});
  finish(space, stream);
}

/// Populate, commit, back up, fetch and refill rows at this frame stride and base offset, with canaries wherever no row is; or be refused.
/// Returns whether it was refused.
template <policy P, class S>
bool try_layout(std::int64_t frame_stride, int offset, std::int64_t import_stride, int import_offset) {
  CAPTURE(P::row.total());
  CAPTURE(frame_stride);
  CAPTURE(offset);
  CAPTURE(import_stride);
  constexpr std::byte canary{0xC7};
  constexpr int hot = 16 / P::page_tokens, frames = 3 + hot + 8, host_pages = 40;
  constexpr page_layout packed = geometry_of<P>::layout(0);
  auto const space = gated_space<S>{S{}};
  std::int64_t const arena_bytes = frames * frame_stride + 64, host_bytes = host_pages * packed.stride + 64;
  auto const arena = space.device_memory(static_cast<std::size_t>(arena_bytes));
  shared_array<std::byte> store{space, static_cast<std::size_t>(host_bytes)};
  fill(space, arena.get(), arena_bytes, canary);
  std::fill(store.begin(), store.end(), canary);
  std::vector<arena_view> const arenas{{arena.get() + offset, frame_stride, frames * frame_stride}};
  sizes const given{.frames = frames,
                    .host_pages = host_pages,
                    .requests = 1,
                    .max_batch = 1,
                    .max_tokens = host_pages * P::page_tokens,
                    .hot_rows = 16,
                    .arenas = arenas,
                    .host_memory = store};
  int const width = std::min(copy_width(P::row.in_row), copy_width(packed.stride));
  if (offset % width != 0) {
    std::string const alignment =
        "a multiple of " + std::to_string(width) + " bytes for rows of " + std::to_string(P::row.total());
    CHECK_THROWS_WITH_AS((residency<P, gated_space<S>>{space, given}), doctest::Contains(alignment.c_str()),
                         std::invalid_argument);
    return true;
  }

  engine<P, gated_space<S>> e{space, given, std::size_t{1} << 18};
  random_rows select{static_cast<std::uint32_t>(frame_stride + offset)};
  // Populate from rows of the caller's own stride and offset.
  constexpr int tokens = (3 + hot + 4) * P::page_tokens, more = 3 * P::page_tokens;
  session s = e.name(or_throw(e.kv.admit(host_pages * P::page_tokens, tokens)), host_pages * P::page_tokens);
  e.kv.reserve_import(s.id, tokens);
  s.versions.assign(tokens, 1);
  shared_array<std::byte> source{space, static_cast<std::size_t>(import_offset + tokens * import_stride)};
  for (int row = 0; row < tokens; ++row) {
    for (int i = 0; i < P::row.total(); ++i)
      source[static_cast<std::size_t>(import_offset + row * import_stride + i)] =
          std::byte{byte_of(e.pattern(s, 0, row), i)};
  }
  e.kv.import(s.id, source_id{0}, {source.data() + import_offset, import_stride});
  e.kv.publish(s.id, tokens);
  s.tokens = tokens;
  // Write and back up, then fetch row by row, then bring pages back.
  std::vector<session*> const who{&s};
  for (int i = 0; i < more; ++i) e.run_step(who, 1, 1, select);
  CHECK(e.kv.whole(s.id));
  auto const taken = take_spare(e);
  for (int i = 0; i < 6; ++i) e.run_step(who, 1, 0, select);
  e.kv.give(e.main, taken);
  idle(e, defaults::refill_pause + 3);
  for (int i = 0; i < 2; ++i) e.run_step(who, 1, 0, select);
  e.settle();
  counters const c = e.kv.counts();
  CHECK(std::min({c.fetched_rows, c.pages.refilled, c.pages.backed_up, c.lent_hits}) > 0);
  CHECK(c.lost == 0);

  // Every row of the host store is whole; every byte that belongs to no row is untouched.
  int wrong = 0;
  for (std::int64_t row = 0; row < tokens + more; ++row) {
    std::byte const* const page =
        store.data() + index(e.page(s, static_cast<int>(row) / P::page_tokens).at.host) * packed.stride;
    std::int64_t const r = row % P::page_tokens;
    for (int i = 0; i < P::row.total(); ++i) {
      std::int64_t const at = i < P::row.in_row ? r * P::row.in_row + i
                                                : std::int64_t{P::page_tokens} * P::row.in_row +
                                                      r * P::row.at_page_end + (i - P::row.in_row);
      wrong += page[at] != std::byte{byte_of(e.pattern(s, 0, row), i)};
    }
  }
  CHECK(wrong == 0);
  std::vector<std::byte> now(static_cast<std::size_t>(arena_bytes));
  space.peek(now.data(), arena.get(), now.size());
  int dead = 0;
  for (std::int64_t i = 0; i < arena_bytes; ++i) {
    std::int64_t const in = i - offset;
    bool const of_a_row = in >= 0 && in < frames * frame_stride && in % frame_stride < packed.payload();
    dead += !of_a_row && now[static_cast<std::size_t>(i)] != canary;
  }
  for (std::int64_t i = host_pages * packed.stride; i < host_bytes; ++i)
    dead += store[static_cast<std::size_t>(i)] != canary;
  CHECK(dead == 0);
  return false;
}

/// All strides and offsets of one row size. Returns how many were refused.
template <policy P, class S>
int try_layouts() {
  constexpr std::int64_t page = geometry_of<P>::layout(0).stride;
  constexpr std::int64_t row = P::row.total();
  int refused = 0;
  for (std::int64_t multiple : {1, 16, 128}) {
    for (int offset : {0, 4, 8})
      refused += try_layout<P, S>(up_to(page, multiple), offset, up_to(row, multiple), offset);
  }
  // Where the arena is legal, imports may still come from anywhere.
  for (int offset : {1, 2, 8}) refused += try_layout<P, S>(up_to(page, 128), 0, row + offset, offset);
  return refused;
}

// All sizes of the scenario. Rows are neighbours in their page and only pages have a stride, so pages of one row stand for strided rows;
// 576 bytes with 8 more at the page end are a size of their own. What a base offset makes impossible is refused, naming row and alignment.
TEST_CASE_TEMPLATE("O04: all bytes of a row arrive and none beside it, at every size, stride and offset", S,
                   EBB_STRICT_SPACES) {
  CHECK(try_layouts<one_row_pages<64>, S>() == 6);
  CHECK(try_layouts<one_row_pages<100>, S>() == 0);
  CHECK(try_layouts<one_row_pages<132>, S>() == 0);
  CHECK(try_layouts<one_row_pages<576>, S>() == 6);
  CHECK(try_layouts<one_row_pages<584>, S>() == 3);
  CHECK(try_layouts<one_row_pages<656>, S>() == 6);
  CHECK(try_layouts<one_row_pages<890>, S>() == 0);
  CHECK(try_layouts<one_row_pages<1048>, S>() == 3);
  CHECK(try_layouts<one_row_pages<1152>, S>() == 6);
  CHECK(try_layouts<split_rows, S>() == 6);
}

/// Two sources that share a selection, a third of half as many rows, all in one reservation; 16 and 8 hot rows for 32
/// selected ones.
template <int InRow, int AtPageEnd>
struct shared_arenas : policy_defaults {
  static constexpr row_segments row{InRow, AtPageEnd};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 4;
  static constexpr std::array<layer_binding, 3> layers{{{0, 0}, {0, 1}, {1, 2}}};
  static constexpr std::array<int, 3> ratios{1, 1, 2};
};

template <policy P, class S>
void staged_and_replayed() {
  CAPTURE(P::row.total());
  engine<P, S> e{S{},
                 {.frames = 13, .host_pages = 60, .requests = 2, .max_batch = 2, .max_tokens = 400, .hot_rows = 16}};
  session a = e.start(400, 190), b = e.start(400, 77);
  // 32 distinct rows of the oldest pages, then anything.
  auto const many = [](session const& s, int g, int query, int column, std::int64_t) -> std::int64_t {
    return (query * 8 + column) * (s.tokens > 100 && g == 0 ? 3 : 1);
  };
  random_rows select{4};
  for (int i = 0; i < 12; ++i) {
    if (i % 2 == 0) e.run_step({&a, &b}, 4, 3, many);
    if (i % 2 == 1) e.run_step({&a, &b}, 4, 2, select);
  }
  e.settle();
  counters const c = e.kv.counts();
  CHECK(c.staged_rows > 0);
  CHECK(c.hot_hits > 0);
  CHECK(c.lost == 0);
}

// Staging lies behind all arenas and has an address from each of them; a replay names the same row there in another plane.
TEST_CASE_TEMPLATE("O04: staged and replayed rows of arenas that share a reservation are whole and aligned", S,
                   EBB_STRICT_SPACES) {
  staged_and_replayed<shared_arenas<576, 8>, S>();
  staged_and_replayed<shared_arenas<656, 0>, S>();
  staged_and_replayed<shared_arenas<890, 0>, S>();
  staged_and_replayed<shared_arenas<100, 12>, S>();
}

TEST_CASE_TEMPLATE("O04: a frame stride that breaks the alignment of rows is refused with both numbers", S,
                   EBB_SPACES) {
  auto const space = make_space<S>();
  auto const memory = space.device_memory(1 << 20);
  auto const with_stride = [&](std::int64_t stride) {
    std::vector<arena_view> const arenas{{memory.get(), stride, 1 << 20}};
    sizes const given{.frames = 27,
                      .host_pages = 40,
                      .requests = 1,
                      .max_batch = 1,
                      .max_tokens = 40,
                      .hot_rows = 16,
                      .arenas = arenas};
    residency<one_row_pages<656>, S> const kv{space, given};
    return kv.view(source_id{0}).layout.stride;
  };
  CHECK_THROWS_WITH_AS(with_stride(660),
                       doctest::Contains("frame_stride is 660; legal: at least 656 and a multiple of 16"),
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(with_stride(640), doctest::Contains("frame_stride is 640"), std::invalid_argument);
  CHECK(with_stride(672) == 672);
}

}  // namespace strides_test

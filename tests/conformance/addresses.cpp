// O03: rows beyond 2 and 4 GiB.
#include <algorithm>
#include <functional>
#include <stdexcept>

#include "scenario.hpp"

#if !defined(__CUDACC__)
#include <sys/mman.h>
#endif

namespace addresses_test {

using namespace ebb;
using namespace ebb::testing;

constexpr std::int64_t row_bytes = 656;

struct wide_rows : policy_defaults {
  static constexpr row_segments row{row_bytes};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = 64;
  static constexpr int max_queries = 4;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
};
struct huge_pages : wide_rows {
  static constexpr int page_tokens = 16'384;
  static constexpr int max_queries = 1;
};

/// A range of which only what is touched takes memory; on a GPU it is simply allocated.
template <class S>
std::shared_ptr<std::byte> far_memory(S const& space, std::size_t bytes, bool device) {
#if defined(__CUDACC__)
  return device ? space.device_memory(bytes) : space.history_memory(bytes, host_kind::pinned);
#else
  static_cast<void>(space);
  static_cast<void>(device);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc{};
  return {static_cast<std::byte*>(memory), [bytes](std::byte* p) { munmap(p, bytes); }};
#endif
}

/// The bytes that a row must have.
std::vector<std::byte> bytes_of(row_pattern const& p) {
  std::vector<std::byte> out(row_bytes);
  for (int i = 0; i < row_bytes; ++i) out[static_cast<std::size_t>(i)] = std::byte{byte_of(p, i)};
  return out;
}
template <class S>
std::vector<std::byte> bytes_at(S const& space, std::byte const* row) {
  std::vector<std::byte> out(row_bytes);
  space.peek(out.data(), row, out.size());
  return out;
}

// A page is 64 rows, 41,984 bytes: row floor(2^31 / 656) lies in page 51,150 and row floor(2^32 / 656) in page 102,300. With 1 MiB from frame
// to frame the boundaries are at frames 2,048 and 4,096; host pages are never padded. The engine takes all frames and gives back those at the
// boundaries, so that requests must live there; a first request of 6.5 million tokens fills the host store up to beyond 4 GiB.
TEST_CASE_TEMPLATE("O03: rows beyond 2 and 4 GiB are exact in frames, hot rows, staging and the host store", S,
                   EBB_SPACES) {
  constexpr std::int64_t page_bytes = 64 * row_bytes;
  struct place {
    std::int64_t stride;
    int frames;
    std::vector<int> wanted;
  };
  place const places[] = {{page_bytes, 115'100, {51'149, 51'150, 51'151, 102'299, 102'300, 102'301}},
                          {1 << 20, 4'700, {2'046, 2'047, 2'048, 4'094, 4'095, 4'096}}};
  static_assert((std::int64_t{1} << 31) / row_bytes / 64 == 51'150 &&
                (std::int64_t{1} << 32) / row_bytes / 64 == 102'300);
  constexpr int long_pages = 102'400;
  constexpr int host_pages = long_pages + 20;
  for (place const& at : places) {
    for (std::size_t turn : {0, 2, 4}) {
      CAPTURE(at.stride);
      CAPTURE(turn);
      auto const space = gated_space<S>{make_space<S>()};
      // Staging: 4 · 64 − 128 hot rows, two frames for each of the batch, behind the others.
      auto const arena = far_memory(space, static_cast<std::size_t>((at.frames + 4) * at.stride), true);
      auto const store = far_memory(space, static_cast<std::size_t>(host_pages * page_bytes), false);
      CHECK((at.frames * at.stride > 4'831'838'208 || at.stride > page_bytes));
      std::vector<arena_view> const arenas{{arena.get(), at.stride, (at.frames + 4) * at.stride}};
      engine<wide_rows, gated_space<S>> e{
          space,
          {.frames = at.frames,
           .host_pages = host_pages,
           .requests = 2,
           .max_batch = 2,
           .max_tokens = 64 * (long_pages + 1),
           .hot_rows = 128,
           .refill_bytes = 0,
           .arenas = arenas,
           .host_memory = {store.get(), static_cast<std::size_t>(host_pages * page_bytes)}}};
      auto frames = *e.kv.collect(or_throw(e.kv.take(at.frames)));
      std::sort(frames.begin(), frames.end());
      auto const give = [&](std::vector<int> const& numbers) {
        std::vector<frame_id> given;
        for (int n : numbers) given.push_back(frame_id{n});
        e.kv.give(e.main, given);
        step const s = e.begin({});
        e.end(s, {});
        finish(space, e.main);
      };

      // The long one: only the rows beside the boundaries of its host pages are written, by the engine itself.
      give({1, 2, 3, 4, 5});
      session a = e.name(or_throw(e.kv.admit(64 * (long_pages + 1), 64 * long_pages)), 64 * (long_pages + 1));
      REQUIRE(e.kv.ready(a.id));
      e.kv.reserve_import(a.id, 64 * long_pages);
      auto const pages = e.kv.import_pages(a.id, source_id{0});
      std::vector<std::int64_t> touched{
          0,         63,        3'273'603,       3'273'604,   3'273'605,        6'547'205,
          6'547'206, 6'547'207, 64 * 51'150 - 1, 64 * 51'151, 64 * 102'300 - 1, 64 * 102'301};
      a.versions.assign(64 * long_pages, 1);
      for (std::int64_t row : touched) {
        import_page const& page = pages[static_cast<std::size_t>(row / 64)];
        REQUIRE(page.host == store.get() + row / 64 * page_bytes);
        auto const bytes = bytes_of(e.pattern(a, 0, row));
        std::copy(bytes.begin(), bytes.end(), page.host + row % 64 * row_bytes);
      }
      e.kv.publish(a.id, 64 * long_pages);
      a.tokens = 64 * long_pages;

      // The short one lives in the wanted frames: 256 tokens by import, 124 by steps that seal a page and back it up.
      std::vector<int> wanted = at.wanted;
      std::rotate(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(turn), wanted.end());
      give(wanted);
      session b = e.start(64 * 7, 256);
      random_rows select{static_cast<std::uint32_t>(turn) + 3};
      for (int i = 0; i < 31; ++i) e.run_step({&b}, 4, 4, select);
      auto const there = [&](session const&, int, int, int column, std::int64_t) {
        return column < static_cast<int>(touched.size()) ? touched[static_cast<std::size_t>(column)] : -1;
      };
      auto const both = [&](session const& s, int g, int q, int column, std::int64_t rows) {
        return s.id == a.id ? there(s, g, q, column, rows) : select(s, g, q, column, rows);
      };
      e.run_step({&a, &b}, 1, 0, both);
      e.settle();
      auto in = frames_of(e, b);
      std::sort(in.begin(), in.end());
      CHECK(in == at.wanted);
      counters const before = e.kv.counts();
      CHECK(before.misses == touched.size());
      CHECK(before.lent_hits > 0);
      CHECK(before.tail_hits > 0);
      // The same with offsets of our own, on either side.
      auto const wrong_rows = [&](bool host, std::int64_t rows) {
        int wrong = 0;
        for (std::int64_t row = 0; row < rows; ++row) {
          map_entry const entry = e.page(b, static_cast<int>(row / 64)).at;
          std::byte const* const at_row = host ? store.get() + index(entry.host) * page_bytes + row % 64 * row_bytes
                                               : arena.get() + index(entry.frame) * at.stride + row % 64 * row_bytes;
          wrong += bytes_at(space, at_row) != bytes_of(e.pattern(b, 0, row));
        }
        return wrong;
      };
      CHECK(wrong_rows(false, 380) == 0);
      space.finish_side();
      CHECK(index(e.page(b, 0).at.host) * page_bytes > std::int64_t{1} << 32);
      CHECK(wrong_rows(true, 320) == 0);  // imported, and backed up

      // From whole to hot rows: 192 rows of three pages go through 128 hot rows and staging.
      take_spare(e);
      auto const oldest = [](session const&, int, int query, int column, std::int64_t) {
        return 48 * query + column % 48;
      };
      for (int i = 0; i < 3; ++i) {
        step const now = e.begin({&b}, 4);
        auto const buffers = e.make_buffers(1, 4);
        e.fill(buffers, oldest);
        e.enqueue(now, buffers);
        finish(space, e.main);
        int wrong = 0;
        for (int entry = 0; entry < 4 * 64; ++entry) {
          std::int64_t const a_row = buffers.out[0][0].rows[entry];
          wrong += bytes_at(space, arena.get() + a_row / 64 * at.stride + a_row % 64 * row_bytes) !=
                   bytes_of(buffers.rows[0][0][entry]);
        }
        CHECK(wrong == 0);
        e.end(now, {0});
      }
      e.settle();
      REQUIRE(e.record(b).hot.size() == 2);
      int hot_wanted = 0;
      for (frame_id f : e.record(b).hot) hot_wanted += std::count(at.wanted.begin(), at.wanted.end(), index(f));
      CHECK(hot_wanted == 2);
      CHECK(e.kv.counts().fetched_rows >= before.fetched_rows + 192);
      CHECK(e.kv.counts().staged_rows > before.staged_rows);
      CHECK(e.kv.counts().lost == 0);
    }
  }
}

TEST_CASE_TEMPLATE("O03: more rows than an int32 address can name are refused", S, EBB_SPACES) {
  auto const space = make_space<S>();
  shared_array<std::byte> nothing{space, 64};
  std::vector<arena_view> const arenas{{nothing.data(), 16'384 * row_bytes, std::numeric_limits<std::int64_t>::max()}};
  sizes given{.frames = 131'072,
              .host_pages = 4,
              .requests = 1,
              .max_batch = 1,
              .max_tokens = 65'536,
              .hot_rows = 64,
              .host_memory = {nothing.data(), std::size_t{1} << 40}};
  for (bool const borrowed : {true, false}) {
    CAPTURE(borrowed);
    given.arenas = borrowed ? std::span<arena_view const>{arenas} : std::span<arena_view const>{};
    using kv = residency<huge_pages, S>;
    CHECK_THROWS_WITH_AS((kv{space, given}), doctest::Contains("frames is 131072"), std::invalid_argument);
    CHECK_THROWS_WITH_AS((kv{space, given}), doctest::Contains("int32"), std::invalid_argument);
  }
  given.frames = 131'071;
  given.arenas = arenas;
  residency<huge_pages, S> const fits{space, given};
  CHECK(fits.pools().frames == 131'071);
}

}  // namespace addresses_test

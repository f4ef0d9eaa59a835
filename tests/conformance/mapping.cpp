// O01, O02, O13, O14: pages, sources and requests are never taken for each other.
#include <stdexcept>
#include <type_traits>

#include "scenario.hpp"

namespace mapping_test {

using namespace ebb;
using namespace ebb::testing;

// Every identifier is a type of its own: what indexes one table cannot index another.
template <class A, class B>
inline constexpr bool strangers = !std::is_convertible_v<A, B> && !std::is_constructible_v<B, A> &&
                                  !std::is_assignable_v<A&, B> && !std::is_invocable_v<std::equal_to<>, A, B>;
static_assert(strangers<frame_id, host_page_id> && strangers<host_page_id, frame_id> &&
              strangers<frame_id, page_index> && strangers<page_index, frame_id>);
static_assert(strangers<host_page_id, page_index> && strangers<page_index, host_page_id> &&
              strangers<source_id, group_id> && strangers<group_id, source_id>);
static_assert(strangers<request_id, frame_id> && strangers<request_id, page_index> &&
              !std::is_convertible_v<int, request_id> && strangers<int, frame_id> && strangers<frame_id, int>);
static_assert(!std::is_invocable_v<decltype(&ledger::place), ledger&, request_record&, int, host_page_id>);
static_assert(!std::is_invocable_v<decltype(&host_page_pool::release), host_page_pool&, frame_id, ticket>);

struct two_layers : policy_defaults {
  static constexpr row_segments row{96};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 16;
  static constexpr int max_queries = 2;
  static constexpr auto layers = separate_layers<2>();
  static constexpr auto ratios = equal_ratios<2>();
};

/// As `two_layers`, numbered as a pipeline rank of a model with 36 layers sees them.
struct many_layers : policy_defaults {
  static constexpr row_segments row{96};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr auto layers = separate_layers<36>();
  static constexpr auto ratios = equal_ratios<36>();
};

/// Three sources that share one selection, 32 hot rows and speculation three wide.
struct shared_layers : policy_defaults {
  static constexpr row_segments row{64, 8};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 16;
  static constexpr int max_queries = 3;
  static constexpr std::array<layer_binding, 3> layers{{{0, 0}, {0, 1}, {0, 2}}};
  static constexpr auto ratios = equal_ratios<3>();
};

struct one_layer : policy_defaults {
  static constexpr row_segments row{64};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
};

/// Host pages and frames of at least one page of the request have different numbers.
template <class Engine>
bool numbers_differ(Engine const& e, session const& s) {
  auto const& pages = e.record(s).pages;
  return std::any_of(pages.begin(), pages.end(), [](page_record const& p) {
    return p.at.frame != frame_id::none && index(p.at.frame) != index(p.at.host);
  });
}

/// Steps of one query that accept everything, each checked byte by byte.
template <class Engine, class Select>
void steps(Engine& e, std::vector<session*> const& who, int n, int queries, Select& select) {
  for (int i = 0; i < n; ++i) {
    step const s = e.begin(who, queries);
    auto const b = e.make_buffers(s.padded, queries);
    e.fill(b, select);
    e.enqueue(s, b);
    CHECK(misplaced(e, who, b) == "");
    e.end(s, std::vector<int>(who.size(), queries));
    CHECK(out_of_balance(e.kv) == "");
    e.settle();
  }
}

// A step commits two tokens, so that the shortest request outgrows tail and hot rows (5 pages): up to there a
// request is simply resident, and "nothing resident" means nothing but the tail. 4 frames go out and back, since 3 happen to even the numbers out.
TEST_CASE_TEMPLATE("O01: host pages, frames, pages and slots are never taken for each other, resident or not", S,
                   EBB_SPACES) {
  engine<two_layers, gated_space<S>> e{
      gated_space<S>{make_space<S>()},
      {.frames = 64, .host_pages = 100, .requests = 4, .max_batch = 4, .max_tokens = 400, .hot_rows = 32}};
  // 7 host pages, and 7 and 4 frames, out and back: from now on the two numberings differ.
  session passing = e.start(7 * 16, 7 * 16);
  e.kv.finish(passing.id);
  take_id const four = or_throw(e.kv.take(4));
  idle(e);
  auto const frames = e.kv.collect(four);
  REQUIRE(frames.has_value());
  e.kv.give(e.main, *frames);
  idle(e);

  session a = e.start(260, 40), b = e.start(260, 100), c = e.start(260, 64);
  random_rows select{1};
  for (int round = 0; round < 2; ++round) {
    CAPTURE(round);
    std::vector<session*> const who{&a, &b, &c};
    for (session* s : who) CHECK(numbers_differ(e, *s));
    counters before = e.kv.counts();
    steps(e, who, 20, 2, select);
    for (session* s : who) CHECK(e.kv.whole(s->id));
    CHECK(e.kv.counts().misses == before.misses);
    CHECK(e.kv.counts().lent_hits > before.lent_hits);

    auto const taken = take_spare(e);
    poison(e, taken);
    before = e.kv.counts();
    steps(e, who, 20, 2, select);
    for (session* s : who) CHECK(lent_pages_of(e, *s) == 0);
    CHECK(e.kv.counts().misses > before.misses);

    e.kv.give(e.main, taken);
    if (round == 1) break;
    e.kv.finish(b.id);
    idle(e, defaults::refill_pause + 3);
    session const fourth = e.start(260, 100);
    CHECK(fourth.id.slot == b.id.slot);
    CHECK(fourth.id.incarnation != b.id.incarnation);
    b = fourth;
    idle(e, 2);
    // Host pages of the fourth ascend; its frames do not.
    auto const& pages = e.record(b).pages;
    auto const before_in = [](auto number) {
      return [number](page_record const& x, page_record const& y) { return number(x) < number(y); };
    };
    CHECK_FALSE(
        std::is_sorted(pages.begin(), pages.end(), before_in([](page_record const& p) { return index(p.at.frame); })));
  }
  CHECK(e.checked > 10'000);
  CHECK(e.kv.counts().lost == 0);
}

/// Resolves six layers in falling order and checks each: layer 0, which was written first, is read last.
template <class Engine>
void check_from_the_last(Engine& e, session& s) {
  auto& kv = e.kv;
  std::vector<session*> const who{&s};
  step const now = e.begin(who, 1);
  auto const b = e.make_buffers(1, 1);
  e.fill(b, [](session const&, int, int, int column, std::int64_t rows) { return rows - 1 - column * (rows / 8); });
  shared_array<std::uint32_t> wrong{e.space, wrong_kinds};
  kv.addresses(e.main, now);
  for (int layer = 0; layer < kv.local().sources(); ++layer) {
    source_id const id = kv.local().id_of_source(layer);
    e.space.run(
        e.main, 1,
        write_rows_body{kv.view(id), kv.write_addresses(id), b.writes[static_cast<std::size_t>(layer)], wrong.data()});
  }
  for (int layer = kv.local().sources(); layer-- > 0;) {
    std::size_t const at = static_cast<std::size_t>(layer);
    kv.resolve(e.main, now, kv.local().id_of_group(layer), b.selections[at], b.out[at][0]);
    e.space.run(e.main, 1,
                check_rows_body<many_layers>{kv.view(kv.local().id_of_source(layer)), b.out[at][0], b.rows[at][0],
                                             b.lengths[at], wrong.data()});
  }
  e.end(now, {1});
  finish(e.space, e.main);
  CHECK(std::count(wrong.begin(), wrong.end(), 0u) == wrong_kinds);
}

// H = 48 would be the tail alone (3 pages); 112 adds a page of hot rows and three more. The host store packs its layers, so only the
// slab on the GPU has padded layer strides; 8 hot rows are a frame of 16.
TEST_CASE_TEMPLATE("O02: layers packed into one slab keep their own rows on every tier, whatever their numbers", S,
                   EBB_SPACES) {
  constexpr int frames = 20;
  constexpr std::int64_t layer_stride = frames * 16 * 96 + 256;
  for (int const first : {0, 30}) {
    CAPTURE(first);
    auto const space = gated_space<S>{make_space<S>()};
    auto const slab = space.device_memory(6 * layer_stride);
    auto const stream = space.make_stream();
    space.run(stream, 1, fill_body{slab.get(), 6 * layer_stride, std::byte{0xC7}});
    finish(space, stream);
    std::vector<arena_view> arenas;
    for (int layer = 0; layer < 6; ++layer)
      arenas.push_back({slab.get() + layer * layer_stride, 16 * 96, layer_stride});

    engine<many_layers, gated_space<S>> e{space,
                                          {.frames = frames,
                                           .host_pages = 40,
                                           .requests = 2,
                                           .max_batch = 1,
                                           .max_tokens = 300,
                                           .hot_rows = 8,
                                           .layers = {first, 6},
                                           .arenas = arenas}};
    REQUIRE(e.kv.local().sources() == 6);
    session s = e.start(240, 112);
    random_rows select{static_cast<std::uint32_t>(first) + 5};
    std::vector<session*> const who{&s};
    check_from_the_last(e, s);
    for (int i = 0; i < 3; ++i) e.run_step(who, 1, 1, select);
    CHECK(e.kv.whole(s.id));
    auto const taken = take_spare(e);
    poison(e, taken);
    for (int i = 0; i < 20; ++i) e.run_step(who, 1, 1, select);
    check_from_the_last(e, s);
    e.settle();
    counters const c = e.kv.counts();
    CHECK(lent_pages_of(e, s) == 0);
    CHECK(std::min({c.tail_hits, c.lent_hits, c.hot_hits, c.misses}) > 0);

    for (int const layer : {first - 1, first + 6, 35 - first, -1, 36}) {
      source_id const source{layer};
      CHECK_THROWS_AS(e.kv.view(source), std::out_of_range);
      CHECK_THROWS_AS(e.kv.write_addresses(source), std::out_of_range);
      CHECK_THROWS_AS(e.kv.import(s.id, source, {}), std::exception);
      step const now = e.begin(who);
      CHECK_THROWS_AS(e.kv.resolve(e.main, now, group_id{layer}, nullptr, {}), std::out_of_range);
      e.end(now, {0});
    }
    e.settle();

    std::vector<std::byte> after(static_cast<std::size_t>(6 * layer_stride));
    space.peek(after.data(), slab.get(), after.size());
    for (int layer = 0; layer < 6; ++layer) {
      auto const pad = after.begin() + (layer + 1) * layer_stride - 256;
      CHECK(std::all_of(pad, pad + 256, [](std::byte v) { return v == std::byte{0xC7}; }));
    }
  }
}

// S cannot grow while a request runs: it goes from whole to hot rows instead. H = 30, 33, 49 lie in the tail; 64 more do not.
// Reading by prefetch is not there yet.
TEST_CASE_TEMPLATE("O13: decode, verify and shared layers read the same rows after every transition", S, EBB_SPACES) {
  engine<shared_layers, gated_space<S>> e{
      gated_space<S>{make_space<S>()},
      {.frames = 24, .host_pages = 60, .requests = 2, .max_batch = 2, .max_tokens = 300, .hot_rows = 32}};
  auto const spread = [](session const&, int, int query, int column, std::int64_t rows) {
    return column == 5 ? std::int64_t{-1} : column * (rows - 1 - query) / 15;
  };
  random_rows random{3};
  session s = e.start(200, 94);
  std::vector<session*> who{&s};
  // One query, then three, of which none are accepted: the same rows of the same history, by resolve and by two replays each.
  auto const look = [&] {
    CAPTURE(s.tokens);
    for (int const queries : {1, 3}) {
      for (int i = 0; i < 3; ++i) {
        step const now = e.begin(who, queries);
        auto const b = e.make_buffers(now.padded, queries);
        if (i < 2) e.fill(b, spread);
        if (i == 2) e.fill(b, random);
        e.enqueue(now, b);
        CHECK(misplaced(e, who, b) == "");
        e.end(now, std::vector<int>(who.size(), 0));
        CHECK(out_of_balance(e.kv) == "");
      }
    }
    e.settle();
    CHECK(e.kv.counts().lost == 0);
  };
  look();
  CHECK(e.kv.whole(s.id));
  e.run_step(who, 3, 3, random);  // 97: the tail moves on by a page
  look();
  CHECK(e.record(s).hot.empty());

  auto taken = take_spare(e);  // from whole to hot rows
  poison(e, taken);
  look();
  CHECK(e.record(s).hot.size() == 2);
  CHECK(lent_pages_of(e, s) == 0);
  for (int i = 0; i < 4; ++i) e.run_step(who, 3, 3, random);
  for (int i = 0; i < 2; ++i) e.run_step(who, 2, 2, random);  // 113
  look();
  auto const refilled = e.kv.counts().pages.refilled;

  e.kv.give(e.main, taken);
  idle(e, defaults::refill_pause + 3);
  CHECK(e.kv.counts().pages.refilled > refilled);
  CHECK(e.kv.whole(s.id));
  look();

  e.kv.finish(s.id);
  idle(e);
  poison(e, frames_in(e, frame_state::free));
  int const slot = s.id.slot;
  s = e.start(200, 94);
  CHECK(s.id.slot == slot);
  session other = e.start(200, 33);
  who.push_back(&other);
  look();
}

// H = 40 is inside the tail; 104 is not. The pool holds what four such requests require and nothing more, so all use their hot rows.
TEST_CASE_TEMPLATE("O14: a slot that is used again starts empty, and a resumed request finds its own rows", S,
                   EBB_SPACES) {
  engine<one_layer, gated_space<S>> e{
      gated_space<S>{make_space<S>()},
      {.frames = 16, .host_pages = 80, .requests = 5, .max_batch = 4, .max_tokens = 200, .hot_rows = 16}};
  std::vector<session> live;
  for (int i = 0; i < 4; ++i) live.push_back(start_waiting(e, 160, 104));
  session &a = live[0], &b = live[1], &c = live[2], &d = live[3];
  auto const same = [](session const&, int, int, int column, std::int64_t) { return 3 * column; };
  random_rows random{7};
  auto const run = [&](std::vector<session*> const& who) {
    CHECK(out_of_balance(e.kv) == "");
    e.run_step(who, 1, 1, same);
    for (int i = 0; i < 3; ++i) e.run_step(who, 1, 1, random);
    e.run_step(who, 1, 1, same);
    e.settle();
  };
  run({&a, &b, &c, &d});
  for (session const& s : live) REQUIRE(e.record(s).hot.size() == 1);

  session const old = b;
  e.kv.finish(b.id);
  session newcomer = start_waiting(e, 160, 104);
  CHECK(newcomer.id.slot == old.id.slot);
  idle(e);
  // The newcomer asks for what its predecessor had cached.
  counters before = e.kv.counts();
  e.run_step({&newcomer}, 1, 1, same);
  e.settle();
  CHECK(e.kv.counts().hot_hits == before.hot_hits);
  CHECK(e.kv.counts().misses == before.misses + 8);
  run({&a, &d, &c, &newcomer});

  CHECK_THROWS_AS(e.kv.begin_step(e.main, {std::vector<request_id>{a.id, old.id}}), std::invalid_argument);
  CHECK_THROWS_AS(e.kv.tokens(old.id), std::invalid_argument);
  CHECK_THROWS_AS(e.kv.finish(old.id), std::invalid_argument);
  CHECK_THROWS_AS(e.kv.preempt(old.id), std::invalid_argument);
  CHECK_THROWS_AS(e.kv.truncate(old.id, 1), std::invalid_argument);
  CHECK_THROWS_AS(e.kv.reserve_import(old.id, 150), std::invalid_argument);

  e.kv.preempt(a.id);
  CHECK_THROWS_AS(e.kv.begin_step(e.main, {std::vector<request_id>{a.id}}), std::invalid_argument);
  run({&d, &c, &newcomer});
  idle(e);
  poison(e, frames_in(e, frame_state::free));
  session extra = start_waiting(e, 160, 104);  // uses what the suspended one gave up
  run({&d, &c, &extra, &newcomer});
  e.kv.finish(extra.id);
  REQUIRE(e.kv.resume(a.id).has_value());
  for (int i = 0; i < 5 && !e.kv.ready(a.id); ++i) idle(e);
  REQUIRE(e.kv.ready(a.id));
  before = e.kv.counts();
  e.run_step({&a}, 1, 1, same);
  e.settle();
  CHECK(e.kv.counts().hot_hits == before.hot_hits);
  run({&d, &c, &a, &newcomer});
  CHECK(e.kv.counts().lost == 0);
}

}  // namespace mapping_test

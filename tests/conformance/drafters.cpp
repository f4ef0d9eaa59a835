// Drafters in an instance: rings in admission and run time with one bound (O32, O33), and a drafter that reads full history, with a
// committed length of its own.
#include <map>
#include <vector>

#include "engine.hpp"

namespace {

using namespace ebb;
using namespace ebb::testing;

struct mtp : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 8;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 3;
  static constexpr std::array<layer_binding, 2> layers{{{0, 0}, {1, 1}}};
  static constexpr auto ratios = equal_ratios<2>();
  static constexpr int drafter_group = 1;
  static constexpr int drafter_passes = 4;
};
struct mtp_each_step : mtp {
  using backup = each_step;
};
struct mtp_on_revoke : mtp {
  using backup = on_revoke;
};

constexpr group_id target_group{0}, drafter_group{1};
constexpr source_id target_rows{0}, drafter_rows{1};

/// One request and what its rows must hold: a version for every token that is there, of the target and of the drafter.
template <class P, class S>
struct drafting {
  static constexpr int q = P::max_queries, k = P::top_k, most = 4 * q;
  S space;
  residency<P, S> kv;
  typename S::stream main;
  shared_array<row_pattern> writes, wanted;
  shared_array<std::int32_t> selection, out, bounds, tokens, places;
  shared_array<std::uint32_t> wrong;
  std::shared_ptr<std::byte> rows;
  request_id id{};
  std::uint32_t key = 0, version = 0, state = 1;
  std::int64_t committed = 0, drafted = 0, from = 0;
  std::map<std::int64_t, std::uint32_t> target{}, drafter{};

  drafting(S const& of, sizes const& given)
      : space{of},
        kv{space, given},
        main{space.make_stream()},
        writes{space, most},
        wanted{space, static_cast<std::size_t>(most * k)},
        selection{space, static_cast<std::size_t>(most * k)},
        out{space, static_cast<std::size_t>(most * k)},
        bounds{space, most},
        tokens{space, most},
        places{space, most},
        wrong{space, wrong_kinds},
        rows{space.shared_memory(std::size_t{1} << 16)} {}

  int below(int n) {
    state = state * 1664525u + 1013904223u;
    return static_cast<int>((state >> 8) % static_cast<std::uint32_t>(n));
  }
  void admit(std::int64_t tokens_max) {
    id = or_throw(kv.admit(tokens_max));
    key = id.incarnation * 4096 + static_cast<std::uint32_t>(id.slot) + 1;
    committed = drafted = from = 0;
    target.clear();
    drafter.clear();
    while (!kv.ready(id)) kv.end_step(main, kv.begin_step(main, {}), {});
  }
  void settle() {
    finish(space, main);
    CHECK(wrong[wrong_place] == 0);
    CHECK(wrong[wrong_bytes] == 0);
    CHECK(wrong[wrong_filler] == 0);
    std::fill(wrong.begin(), wrong.end(), 0u);
  }
  row_pattern pattern(source_id source, std::int64_t p, std::uint32_t v) const {
    return {key, index(source), static_cast<std::int32_t>(p), v};
  }
  /// Rows of tokens [first, first + n) of a source, at device addresses.
  void write(source_id source, std::int32_t const* at, std::int64_t first, int n) {
    auto& rows_of = source == target_rows ? target : drafter;
    for (int j = 0; j < n; ++j) {
      bool const room = first + j < tokens_max();
      if (room) rows_of[first + j] = ++version;
      writes[static_cast<std::size_t>(j)] = room ? pattern(source, first + j, version) : row_pattern{};
    }
    space.run(main, n, write_rows_body{kv.view(source), at, writes.data(), wrong.data()});
    settle();
  }
  std::int64_t tokens_max() const { return kv.allocator().book().at(id.slot).tokens_max; }
  /// A resolve of `n` query rows whose bounds are bound(j): every position that is there must be found, others refused.
  template <class Bound>
  void resolve(step const& s, group_id group, int n, int pass, bool own, Bound bound) {
    bool const drafts = group == drafter_group;
    source_id const source = drafts ? drafter_rows : target_rows;
    auto const& rows_of = drafts ? drafter : target;
    for (int j = 0; j < n; ++j) {
      bounds[static_cast<std::size_t>(j)] = static_cast<std::int32_t>(bound(j));
      for (int c = 0; c < k; ++c) {
        std::size_t const at = static_cast<std::size_t>(j * k + c);
        auto const p = static_cast<std::int32_t>(below(3) == 0 ? std::max<std::int64_t>(0, bound(j) - 1 - below(12))
                                                               : below(static_cast<int>(bound(j)) + 3));
        selection[at] = p;
        bool const valid = p < bound(j) && (!drafts || p >= from);
        wanted[at] = valid ? pattern(source, p, rows_of.at(p)) : row_pattern{};
        out[at] = 12'345;
      }
    }
    selected what{.positions = selection.data(), .pass = pass};
    if (own) {
      what.bounds = bounds.data();
      what.queries = n;
    }
    kv.resolve(main, s, group, what, {out.data()});
    space.run(main, n, check_rows_body<P>{kv.view(source), {out.data()}, wanted.data(), nullptr, wrong.data()});
    settle();
  }

  enum mode { follows, behind, not_run };
  /// One step: verification, then the drafter in one of three ways.
  void step_once(mode how) {
    int const n = 1 + below(q);
    step const s = kv.begin_step(main, {.requests = {&id, 1}, .queries = n});
    kv.addresses(main, s);
    finish(space, main);
    write(target_rows, kv.write_addresses(target_rows), committed, n);
    resolve(s, target_group, n, 0, false,
            [&](int j) { return std::min(committed + j + 1, committed + j < tokens_max() ? tokens_max() : 0); });
    int const room = static_cast<int>(std::min<std::int64_t>(n, tokens_max() - committed));
    int const accepted = below(3) == 0 ? room : below(room + 1);
    std::int64_t end = committed;
    int written = 0;
    if (how == follows) {
      // All that was verified, over what the drafter lacks; then it drafts on behind what was accepted.
      int const lacking = static_cast<int>(committed - drafted);
      if (lacking > 0) place(s, drafted, lacking);
      place(s, committed, room);
      end = committed + accepted;
    } else if (how == behind) {
      written = static_cast<int>(committed - drafted);
      if (written > 0) place(s, drafted, written);
    }
    for (int pass = 0; how != not_run && pass < P::drafter_passes; ++pass) {
      if (pass > 0) {
        if (end + pass - 1 >= tokens_max()) break;
        if (pass - 1 < q) place(s, end + pass - 1, 1);
        if (pass - 1 >= q) break;
      }
      if (end + pass > 0) resolve(s, drafter_group, 1, pass, true, [&](int) { return end + pass; });
    }
    int const grows = how == behind ? written : 0;
    if (how == follows) {
      kv.end_step(main, s, {&accepted, 1});
    } else {
      kv.end_step(main, s, {&accepted, 1}, {&grows, 1});
    }
    committed += accepted;
    drafted = how == follows ? committed : std::min(committed, drafted + grows);
    if (committed - drafted > q) {
      drafted = committed;
      from = committed;
    }
    CHECK(kv.tokens(id) == committed);
    CHECK(kv.draft_from(id) == from);
  }
  /// The drafter writes rows of given tokens.
  void place(step const& s, std::int64_t first, int n) {
    for (int done = 0; done < n; done += most) {
      int const some = std::min(n - done, q);
      for (int j = 0; j < some; ++j) {
        tokens[static_cast<std::size_t>(j)] = static_cast<std::int32_t>(first + done + j);
        places[static_cast<std::size_t>(j)] = -7;
      }
      kv.write_addresses(main, s, drafter_rows, {.positions = tokens.data(), .queries = some}, places.data());
      finish(space, main);
      write(drafter_rows, places.data(), first + done, some);
      done += some - most;
    }
  }
  void import(std::int64_t to, bool with_drafter) {
    kv.reserve_import(id, to);
    for (source_id source : {target_rows, drafter_rows}) {
      if (source == drafter_rows && !with_drafter) continue;
      auto& rows_of = source == target_rows ? target : drafter;
      for (std::int64_t p = committed; p < to; ++p) {
        rows_of[p] = ++version;
        for (int i = 0; i < 16; ++i)
          rows.get()[(p - committed) * 16 + i] = std::byte{byte_of(pattern(source, p, version), i)};
      }
      kv.wait(kv.import(id, source, {rows.get()}));
    }
    kv.publish(id, to);
    if (!with_drafter) from = to;
    if (with_drafter && drafted < committed) from = committed;
    committed = drafted = to;
  }
};

sizes small_sizes() {
  return {.frames = 16, .host_pages = 80, .requests = 3, .max_batch = 2, .max_tokens = 512, .hot_rows = 24};
}

TEST_CASE_TEMPLATE(
    "a drafter that reads full history has a length of its own, and never shows a row that was not written", S,
    EBB_SPACES) {
  auto const run = [&]<class P>(std::uint32_t seed) {
    drafting<P, S> d{make_space<S>(), small_sizes()};
    d.state = seed;
    using mode = typename drafting<P, S>::mode;
    d.admit(300);
    if (seed % 3 == 1) d.import(90, true);
    if (seed % 3 == 2) d.import(77, false);
    for (int i = 0; d.committed < 290 && i < 150; ++i) {
      int const what = d.below(40);
      if (what == 0) {
        d.kv.preempt(d.id);
        while (true) {
          if (d.kv.resume(d.id)) break;
          d.kv.end_step(d.main, d.kv.begin_step(d.main, {}), {});
        }
        while (!d.kv.ready(d.id)) d.kv.end_step(d.main, d.kv.begin_step(d.main, {}), {});
      } else if (what == 1 && d.committed > 20) {
        std::int64_t const to = d.committed - d.below(15);
        d.kv.truncate(d.id, to);
        d.committed = to;
        d.drafted = std::min(d.drafted, to);
        d.from = std::min(d.from, to);
      }
      int const how = d.below(6);
      d.step_once(seed % 2 == 0 ? mode::follows : how < 3 ? mode::behind : how < 5 ? mode::follows : mode::not_run);
    }
    CHECK(d.committed > 150);
    CHECK(d.kv.counts().lost == 0);
    return d.kv.counts();
  };
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    auto const c = run.template operator()<mtp>(seed);
    CHECK(c.fetched_rows > 0);
    run.template operator()<mtp_each_step>(seed);
    run.template operator()<mtp_on_revoke>(seed);
  }
}

TEST_CASE_TEMPLATE("a drafter that is not run is given up; rows from then on count again", S, EBB_SPACES) {
  drafting<mtp, S> d{make_space<S>(), small_sizes()};
  using mode = typename drafting<mtp, S>::mode;
  d.admit(200);
  for (int i = 0; i < 20; ++i) d.step_once(mode::follows);
  REQUIRE(d.from == 0);
  while (d.from == 0) d.step_once(mode::not_run);
  CHECK(d.from == d.committed);
  for (int i = 0; i < 20; ++i) d.step_once(mode::behind);
  d.kv.set_draft_from(d.id, d.committed);
  d.from = d.drafted = d.committed;
}

TEST_CASE_TEMPLATE("what a drafter may not do is refused", S, EBB_SPACES) {
  drafting<mtp, S> d{make_space<S>(), small_sizes()};
  d.admit(100);
  step const s = d.kv.begin_step(d.main, {.requests = {&d.id, 1}, .queries = 1});
  d.kv.addresses(d.main, s);
  std::fill(d.selection.begin(), d.selection.end(), -1);
  selected what{.positions = d.selection.data()};
  auto const again = [&] { d.kv.resolve(d.main, s, drafter_group, what, {d.out.data()}); };
  again();
  CHECK_THROWS_AS(again(), std::invalid_argument);
  what.pass = 1;
  again();
  what.pass = 4;
  CHECK_THROWS_AS(again(), std::invalid_argument);
  what.pass = 2;
  what.queries = 2;
  CHECK_THROWS_AS(again(), std::invalid_argument);  // two rows, and no bounds of their own
  what.bounds = d.bounds.data();
  again();
  what = selected{.positions = d.selection.data(), .pass = 1};
  CHECK_THROWS_AS(d.kv.resolve(d.main, s, target_group, what, {d.out.data()}), std::invalid_argument);
  int const none = 0, wrong = -1;
  CHECK_THROWS_AS(d.kv.end_step(d.main, s, {&none, 1}, {&wrong, 1}), std::invalid_argument);
  d.kv.end_step(d.main, s, {&none, 1}, {&none, 1});
  CHECK_THROWS_AS(d.kv.set_draft_from(d.id, 1), std::invalid_argument);
}

// ---- windowed drafters -----------------------------------------------------------------------------------------------------------------

struct windowed : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 4;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
  static constexpr draft_window draft{64, 3, 16};
};

/// What each query sees, from the model's own rows.
template <class S>
struct windows {
  static constexpr int q = windowed::max_queries, window = windowed::draft.tokens;
  S space;
  residency<windowed, S> kv;
  typename S::stream main;
  shared_array<std::int32_t> addresses, lengths;
  shared_array<row_pattern> writes;
  shared_array<std::uint32_t> wrong;
  std::shared_ptr<std::byte> rows;
  std::map<std::int64_t, std::uint32_t> written{};  ///< of the drafter
  request_id id{};
  std::int64_t committed = 0, from = 0;
  std::uint32_t version = 0;

  windows(S const& of, sizes const& given)
      : space{of},
        kv{space, given},
        main{space.make_stream()},
        addresses{space, q * window},
        lengths{space, q},
        writes{space, q},
        wrong{space, wrong_kinds},
        rows{space.shared_memory(std::size_t{1} << 18)} {}

  source_view layer(int l) const {
    page_layout const layout{{16}, 16, 1};  // rows of 16 bytes, one behind the other
    return {kv.rings().base(l), layout, nullptr, layout, 1 << 30, 0, l};
  }
  row_pattern pattern(int l, std::int64_t p, std::uint32_t v) const {
    return {id.incarnation * 64 + static_cast<std::uint32_t>(id.slot) + 1, l, static_cast<std::int32_t>(p), v};
  }
  void import(std::int64_t to) {
    kv.reserve_import(id, to);
    kv.wait(kv.import(id, source_id{0}, {rows.get()}));
    kv.publish(id, to);
    committed = from = to;
  }
  /// A step of `q` queries of which `accepted` stay; every visible row of every layer is compared.
  void step_once(int accepted) {
    step const s = kv.begin_step(main, {.requests = {&id, 1}, .queries = q});
    kv.addresses(main, s);
    kv.draft_addresses(main, s, addresses.data(), lengths.data());
    for (int j = 0; j < q; ++j) written[committed + j] = ++version;
    for (int l = 0; l < 3; ++l) {
      finish(space, main);
      for (int j = 0; j < q; ++j)
        writes[static_cast<std::size_t>(j)] = pattern(l, committed + j, written[committed + j]);
      space.run(main, q, write_rows_body{layer(l), kv.draft_writes(), writes.data(), wrong.data()});
    }
    finish(space, main);
    for (int j = 0; j < q; ++j) {
      std::int64_t const end = committed + j + 1, begin = std::max({end - window, from, std::int64_t{0}});
      CHECK(lengths[static_cast<std::size_t>(j)] == end - begin);
      for (std::int64_t p = begin; p < end; ++p) {
        std::int32_t const at = addresses[static_cast<std::size_t>(j * window + p - begin)];
        REQUIRE(at >= 0);
        REQUIRE(at < kv.rings().rows());
        for (int l = 0; l < 3; ++l) {
          std::byte found[16];
          space.peek(found, kv.rings().base(l) + std::int64_t{at} * 16, 16);
          bool same = true;
          for (int i = 0; i < 16; ++i) same &= found[i] == std::byte{byte_of(pattern(l, p, written.at(p)), i)};
          CHECK(same);
        }
      }
    }
    CHECK(wrong[wrong_place] == 0);
    kv.end_step(main, s, {&accepted, 1});
    committed += accepted;
  }
};

TEST_CASE_TEMPLATE("O32: a restored request's drafter sees only what was written since, or restored with it", S,
                   EBB_SPACES) {
  windows<S> w{make_space<S>(),
               {.frames = 64, .host_pages = 64, .requests = 2, .max_batch = 2, .max_tokens = 1024, .hot_rows = 16}};
  w.id = or_throw(w.kv.admit(700, 200));
  w.import(200);
  CHECK(w.kv.draft_from(w.id) == 200);
  for (int i = 0; w.committed < 285; ++i) w.step_once(i % 5);
  // Preempted and resumed without the drafter's rows: nothing of them is seen; the ring may be another one.
  w.kv.preempt(w.id);
  CHECK(w.kv.ring(w.id) == -1);
  REQUIRE(w.kv.resume(w.id));
  while (!w.kv.ready(w.id)) w.kv.end_step(w.main, w.kv.begin_step(w.main, {}), {});
  w.from = w.committed;
  for (int i = 0; i < 8; ++i) w.step_once(3);
  // Saved and restored with the target's: the engine writes them back and says from where on they are there.
  std::int64_t const first = w.committed - 20;
  std::vector<std::vector<std::byte>> saved;
  int const ring = w.kv.ring(w.id), capacity = w.kv.rings().capacity();
  for (int l = 0; l < 3; ++l) {
    for (std::int64_t p = first; p < w.committed; ++p) {
      saved.emplace_back(16);
      w.space.peek(saved.back().data(), w.kv.rings().base(l) + std::int64_t{draft_row(ring, p, capacity)} * 16, 16);
    }
  }
  w.kv.preempt(w.id);
  auto const other = or_throw(w.kv.admit(100));  // takes the ring that was given back
  CHECK(w.kv.ring(other) == ring);
  REQUIRE(w.kv.resume(w.id));
  while (!w.kv.ready(w.id)) w.kv.end_step(w.main, w.kv.begin_step(w.main, {}), {});
  finish(w.space, w.main);
  CHECK(w.kv.ring(w.id) != ring);
  std::size_t k = 0;
  for (int l = 0; l < 3; ++l) {
    for (std::int64_t p = first; p < w.committed; ++p, ++k) {
      shared_array<std::int32_t> at{w.space, 1};
      shared_array<row_pattern> what{w.space, 1};
      at[0] = draft_row(w.kv.ring(w.id), p, capacity);
      what[0] = w.pattern(l, p, w.written.at(p));
      bool same = true;
      for (int i = 0; i < 16; ++i) same &= saved[k][static_cast<std::size_t>(i)] == std::byte{byte_of(what[0], i)};
      CHECK(same);
      w.space.run(w.main, 1, write_rows_body{w.layer(l), at.data(), what.data(), w.wrong.data()});
      finish(w.space, w.main);
    }
  }
  w.kv.set_draft_from(w.id, first);
  w.from = first;
  for (int i = 0; i < 6; ++i) w.step_once(2);
  // Cut back by more than the ring still has.
  std::int64_t const before = w.committed, to = before - 40;
  w.kv.truncate(w.id, to);
  w.from = std::min(to, std::max(w.from, before + windowed::max_queries - capacity));
  w.committed = to;
  CHECK(w.kv.draft_from(w.id) == w.from);
  for (int i = 0; i < 30; ++i) w.step_once(4);
}

TEST_CASE_TEMPLATE("O33: a windowed drafter is charged for its window, at admission and afterwards", S, EBB_SPACES) {
  sizes const given{.frames = 700,
                    .host_pages = 3000,
                    .requests = 4,
                    .max_batch = 2,
                    .max_tokens = 20'000,
                    .hot_rows = 16,
                    .draft_rings = 2};
  windows<S> w{make_space<S>(), given};
  CHECK(w.kv.rings().capacity() == 80);  // 64 + 4, in whole pages of 16: five of the six that it may have
  CHECK(w.kv.pools().draft_rings == 2);
  w.id = or_throw(w.kv.admit(15'000, 10'000));
  CHECK(w.kv.ready(w.id));
  w.import(10'000);
  std::int64_t const bytes = w.kv.pools().gpu_bytes;
  for (int i = 0; i < 40; ++i) w.step_once(4);
  CHECK(w.kv.pools().gpu_bytes == bytes);
  CHECK(w.kv.pools().draft_rings_free == 1);
  auto const second = or_throw(w.kv.admit(15'000));
  auto const third = w.kv.admit(100);
  REQUIRE(!third);
  CHECK(third.error().message() == "not enough draft rings: wanted 1, free 0, revocable 0");
  CHECK(third.error().ever);
  // A preempted request has none; who resumes needs one again; a hold keeps one.
  w.kv.preempt(second);
  auto const hold = or_throw(w.kv.hold(100));
  auto const no = w.kv.resume(second);
  REQUIRE(!no);
  CHECK(no.error().pool == pool::draft_rings);
  w.kv.release(hold);
  CHECK(w.kv.resume(second).has_value());
  w.kv.finish(second);
  w.kv.finish(w.id);
  CHECK(w.kv.pools().draft_rings_free == 2);
  auto const make = [&](int rings) {
    sizes s = given;
    s.draft_rings = rings;
    residency<windowed, S> const kv{w.space, s};
  };
  CHECK_THROWS_AS(make(0), std::invalid_argument);
  CHECK_THROWS_AS(make(5), std::invalid_argument);
}

}  // namespace

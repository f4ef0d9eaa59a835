/// Invariants that need tests of their own: I6 flat, I10 deterministic, I12 graph-safe. The others are checked by the random sequences.
#include <ebb/ebb.hpp>
#include <ebb/host/queue_space.hpp>
#include <ebb/host/serial_space.hpp>
#include <ebb/host/thread_space.hpp>
#include <ebb/residency.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "oracle_rows.hpp"

namespace invariants_test {

using namespace ebb;
using namespace ebb::testing;
using host::generator;

// ---- I6: a look costs the same whatever the history, the loans and the hot rows

/// A team of one that counts what it does to words.
struct counting_team : serial_team {
  inline static long long sets = 0, words = 0, stores = 0, swaps = 0, copies = 0;
  static void reset() { sets = words = stores = swaps = copies = 0; }

  std::uint32_t load(std::uint32_t const* w) const {
    ++words;
    return serial_team::load(w);
  }
  std::uint32_t exchange(std::uint32_t* w, std::uint32_t old, std::uint32_t now) const {
    ++swaps;
    return serial_team::exchange(w, old, now);
  }
  void load_set(std::uint32_t const* set, int n, std::uint32_t* out) const {
    ++sets;
    words += n;
    serial_team::load_set(set, n, out);
  }
  void store(std::uint32_t* w, std::uint32_t v) const {
    ++stores;
    serial_team::store(w, v);
  }
  template <int Bytes, int K>
  void read(piece<Bytes> (&held)[K], std::byte const* const (&from)[K]) const {
    copies += std::count_if(from, from + K, [](std::byte const* p) { return p != nullptr; });
    serial_team::read(held, from);
  }
};
static_assert(team<counting_team>);

class counting_space : public host::queue_space {
 public:
  template <class Body>
  void run(stream on, int items, Body const& body) const {
    enqueue_run(on, items, [items, body](generator*) {
      host::shared_storage<typename shared_of<Body>::type> shared;
      for (int item = 0; item < items; ++item) ebb::call(body, counting_team{}, item, shared.poison());
    });
  }
};
static_assert(space<counting_space>);

struct flat : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 64;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
};

struct cost {
  long long mapped, absent, sets, words, stores, swaps, copies;
};

/// A session of `tokens`, with room for `spare` loans; the same selection twice: all missing, then all found.
std::pair<cost, cost> two_looks(std::int64_t tokens, int hot_rows, int spare, std::uint64_t seed) {
  counting_space const space;
  auto const main = space.make_stream();
  int const pages = static_cast<int>(tokens / flat::page_tokens) + 1;
  int const needed = tail_pages(flat::page_tokens, 1, 1) + hot_frames(hot_rows, flat::page_tokens);
  residency<flat, counting_space> kv{space,
                                     {.frames = needed + spare,
                                      .host_pages = pages + 1,
                                      .requests = 1,
                                      .max_batch = 1,
                                      .max_tokens = 1 << 18,
                                      .hot_rows = hot_rows}};
  request_id const id = or_throw(kv.admit(tokens + flat::page_tokens));
  std::vector<std::byte> rows(static_cast<std::size_t>(tokens) * 16);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>(i / 16 % 251 + i % 16);
  kv.reserve_import(id, tokens);
  kv.import(id, source_id{0}, {rows.data()});
  kv.publish(id, tokens);

  generator g{seed};
  std::vector<std::int32_t> selection(flat::top_k);
  std::vector<std::int32_t> out(flat::top_k);
  for (auto& p : selection) {
    do p = g.below(static_cast<int>(tokens) - 64);
    while (std::count(selection.begin(), selection.end(), p) > 1);
  }
  cost costs[2];
  for (cost& c : costs) {
    step const s = kv.begin_step(main, {std::span{&id, 1}});
    kv.addresses(main, s);
    counters const before = kv.counts();
    counting_team::reset();
    kv.resolve(main, s, group_id{0}, selection.data(), {out.data()});
    counters const after = kv.counts();
    auto const mapped = after.tail_hits + after.lent_hits - before.tail_hits - before.lent_hits;
    c = {static_cast<long long>(mapped),
         flat::top_k - static_cast<long long>(mapped),
         counting_team::sets,
         counting_team::words,
         counting_team::stores,
         counting_team::swaps,
         counting_team::copies};
    auto const& v = kv.view(source_id{0});
    for (std::size_t i = 0; i < selection.size(); ++i)
      CHECK(std::memcmp(v.base + v.layout.in_row_offset(out[i]), rows.data() + selection[i] * 16, 16) == 0);
    kv.end_step(main, s, std::vector{0});
  }
  return {costs[0], costs[1]};
}

TEST_CASE("I6: a look reads at most two sets, whatever the history, the loans and the hot rows") {
  constexpr int quarters = 8;  // of two sets, four words each
  for (std::int64_t tokens : {2'048, 16'384, 131'072}) {
    for (int hot : {512, 2'048, 8'192, 16'384, 32'768}) {
      if (hot >= tokens / 2) continue;
      for (int spare : {0, 40}) {
        CAPTURE(tokens);
        CAPTURE(hot);
        CAPTURE(spare);
        auto const [missed, found] = two_looks(tokens, hot, spare, 6);
        // A table of up to 8,192 ways is read once and searched in shared memory; a larger one where it is.
        bool const near = hot <= 8'192;
        long long const table = near ? hot / 4 : 0;  // read four words at a time, once a resolve
        // Missing: two sets to find nothing, two to choose a victim. The counts do not depend on any of the three numbers.
        CHECK(missed.sets == table + (near ? 1 : 2) * quarters * missed.absent);
        CHECK(missed.stores == 0);
        CHECK(missed.swaps == missed.absent);
        CHECK(missed.copies == missed.absent);
        // Found: in the first set, or the second; one store pins it.
        CHECK(found.absent == missed.absent);
        CHECK(found.sets >= table + (near ? 0 : quarters / 2) * found.absent);
        CHECK(found.sets <= table + (near ? 0 : quarters) * found.absent);
        // Single words: those whose tags match, at least one for each that is found.
        CHECK(missed.words - 4 * missed.sets <= (near ? missed.absent : 0));
        CHECK(found.words - 4 * found.sets >= (near ? found.absent : 0));
        CHECK(found.words - 4 * found.sets <= (near ? 2 * found.absent : 0));
        CHECK(found.stores == found.absent);
        CHECK(found.swaps == 0);
        CHECK(found.copies == 0);
        if (spare == 0) CHECK(missed.absent == flat::top_k);
      }
    }
  }
}

TEST_CASE("I6: a request whose history is in frames reads no set at all") {
  auto const [first, second] = two_looks(2'048, 512, 200, 7);
  CHECK(first.mapped == flat::top_k);
  CHECK(first.sets == 0);
  CHECK(second.words == 0);
  CHECK(second.copies == 0);
}

// ---- I3, I4: lists longer than what shared memory holds

struct long_lists : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 1000;
  static constexpr int max_queries = 5;
  static constexpr auto layers = separate_layers<1>();
  static constexpr auto ratios = equal_ratios<1>();
};

template <class S>
void long_list(bool alike) {
  S const space;
  auto const main = space.make_stream();
  constexpr int tokens = 16'384, queries = long_lists::max_queries, all = queries * long_lists::top_k;
  static_assert(all > 2 * resolve_body<long_lists>::near_list);
  residency<long_lists, S> kv{space,
                              {.frames = 80,
                               .host_pages = tokens / 16 + 4,
                               .requests = 1,
                               .max_batch = 1,
                               .max_tokens = tokens + 16,
                               .hot_rows = 1'008}};
  request_id const id = or_throw(kv.admit(tokens + 16));
  std::vector<std::byte> rows(static_cast<std::size_t>(tokens) * 16);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>(i / 16 % 251 + i % 16);
  kv.reserve_import(id, tokens);
  kv.wait(kv.import(id, source_id{0}, {rows.data()}));
  kv.publish(id, tokens);
  std::vector<std::int32_t> selection(all), out(all);
  for (int i = 0; i < all; ++i) selection[static_cast<std::size_t>(i)] = (alike ? i % 1000 : i) * 3 + 1;
  step const s = kv.begin_step(main, {std::span{&id, 1}, queries});
  kv.addresses(main, s);
  kv.resolve(main, s, group_id{0}, selection.data(), {out.data()});
  auto const& v = kv.view(source_id{0});
  int wrong = 0;
  for (std::size_t i = 0; i < selection.size(); ++i)
    wrong += std::memcmp(v.base + v.layout.in_row_offset(out[i]), rows.data() + selection[i] * 16, 16) != 0;
  CHECK(wrong == 0);
  counters const n = kv.counts();
  CHECK(n.misses == all);
  CHECK(n.fetched_rows == (alike ? 1'000 : all));
  CHECK(n.lost == 0);
  kv.end_step(main, s, std::vector{0});
}

using two_blocks = thread_space<4, 1, 2>;
TEST_CASE_TEMPLATE("I3, I4: more rows are missing than a block's shared memory lists", S, serial_space, thread_space<4>,
                   two_blocks) {
  long_list<S>(false);
  long_list<S>(true);
}

// ---- I10: the control plane is a function of its calls and their arguments

struct ranked : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 4;
  static constexpr int top_k = 16;
  static constexpr int max_queries = 2;
  static constexpr auto layers = separate_layers<2>();
  static constexpr auto ratios = equal_ratios<2>();
};
struct ranked_by_use : ranked {
  using keep = most_selected;
  using backup = on_revoke;
};
struct ranked_whole : ranked {
  using keep = whole_requests;
  using backup = each_step;
};

/// One rank: the same calls as its fellows, on streams that go their own way.
template <policy P>
class rank {
 public:
  explicit rank(std::uint64_t speed)
      : space_{host::deferred{speed}},
        main_{space_.make_stream()},
        kv_{space_,
            {.frames = 34,
             .host_pages = 120,
             .requests = 6,
             .max_batch = 4,
             .max_tokens = 1 << 12,
             .hot_rows = 16,
             .steps_in_flight = 2}} {}

  /// A call that the seed decides; what it answered, in words. `progress` is what all ranks have agreed on.
  std::string call(std::uint64_t seed, ticket progress, generator& pace) {
    generator g{seed};
    std::ostringstream out;
    for (int n = pace.below(30); n > 0; --n) space_.advance();
    switch (g.below(14)) {
      case 0: {
        auto const id = kv_.admit(1 + g.below(120), 0);
        out << "admit " << id.has_value();
        if (id) live_.push_back({*id});
        break;
      }
      case 1:
        if (auto* r = pick(g, [](auto const&) { return true; })) {
          kv_.finish(r->id);
          out << "finish " << r->id.slot;
          live_.erase(live_.begin() + (r - live_.data()));
        }
        break;
      case 2:
        if (auto* r = pick(g, [&](auto const& s) { return !s.preempted && kv_.ready(s.id); })) {
          kv_.preempt(r->id);
          r->preempted = true;
        }
        break;
      case 3:
        if (auto* r = pick(g, [](auto const& s) { return s.preempted; })) {
          auto const ok = kv_.resume(r->id);
          r->preempted = !ok.has_value();
          out << "resume " << ok.has_value();
        }
        break;
      case 4:
        if (auto* r = pick(g, [](auto const&) { return true; }))
          kv_.truncate(r->id, g.below(static_cast<int>(kv_.tokens(r->id)) + 1));
        break;
      case 5:
      case 6: {
        auto* r = pick(g, [&](auto const& s) {
          return !s.preempted && kv_.ready(s.id) && kv_.tokens(s.id) < kv_.allocator().book().at(s.id.slot).tokens_max;
        });
        if (r == nullptr) break;
        std::int64_t const now = kv_.tokens(r->id);
        std::int64_t const most = kv_.allocator().book().at(r->id.slot).tokens_max;
        std::int64_t const to = now + 1 + g.below(static_cast<int>(most - now));
        kv_.reserve_import(r->id, to);
        for (int s = 0; s < 2; ++s) kv_.import(r->id, static_cast<source_id>(s), {rows_.data()});
        kv_.publish(r->id, to);
        break;
      }
      case 7: {
        auto const t = kv_.take(1 + g.below(10));
        out << "take " << t.has_value();
        if (t) takes_.push_back(*t);
        break;
      }
      case 8:
        if (!takes_.empty()) {
          auto const f = kv_.collect(takes_.front());
          out << "collect " << f.has_value();
          if (f) {
            takes_.erase(takes_.begin());
            kv_.give(main_, *f);
          }
        }
        break;
      default:
        step(g, progress, out);
    }
    return out.str() + "\n" + books();
  }
  ticket newest() const { return kv_.allocator().book().last; }

 private:
  struct session {
    request_id id;
    bool preempted = false;
  };
  template <class Fits>
  session* pick(generator& g, Fits fits) {
    std::vector<session*> out;
    for (auto& s : live_) {
      if (fits(s)) out.push_back(&s);
    }
    return out.empty() ? nullptr : out[static_cast<std::size_t>(g.below(static_cast<int>(out.size())))];
  }
  void step(generator& g, ticket progress, std::ostringstream& out) {
    std::vector<request_id> batch;
    for (auto const& s : live_) {
      if (batch.size() < 4 && !s.preempted && kv_.ready(s.id) &&
          kv_.tokens(s.id) < kv_.allocator().book().at(s.id.slot).tokens_max)
        batch.push_back(s.id);
    }
    auto const now = kv_.begin_step(main_, {batch, 2, 4}, progress);
    kv_.addresses(main_, now);
    auto selection = std::make_shared<std::vector<std::int32_t>>(4 * 2 * P::top_k, -1);
    auto entries = std::make_shared<std::vector<std::int32_t>>(selection->size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      for (std::size_t k = 0; k < 2 * P::top_k; ++k)
        (*selection)[i * 2 * P::top_k + k] = g.below(static_cast<int>(kv_.tokens(batch[i])) + 1);
    }
    for (int group = 0; group < 2; ++group)
      kv_.resolve(main_, now, static_cast<group_id>(group), selection->data(), {entries->data()});
    space_.call(main_, [selection, entries] {});  // keeps them until here
    std::vector<int> accepted;
    for (auto id : batch)
      accepted.push_back(g.below(1 + static_cast<int>(std::min<std::int64_t>(
                                         2, kv_.allocator().book().at(id.slot).tokens_max - kv_.tokens(id)))));
    kv_.end_step(main_, now, accepted);
    out << "step of " << batch.size();
  }
  std::string books() const {
    std::ostringstream out;
    ledger const& book = kv_.allocator().book();
    out << static_cast<long long>(book.done) << " of " << static_cast<long long>(book.last) << ":";
    for (int f = 0; f < book.frames.size(); ++f)
      out << " " << static_cast<int>(book.frames[frame_id{f}].state) << "/" << book.frames[frame_id{f}].slot << "/"
          << book.frames[frame_id{f}].page;
    for (request_record const& r : book.requests()) {
      out << "\n" << r.id.slot << "." << r.id.incarnation << " " << static_cast<int>(r.phase) << " " << r.tokens << ":";
      for (page_record const& p : r.pages)
        out << " " << index(p.at.frame) << "+" << index(p.at.host) << "+" << p.mapped << p.backed;
      for (frame_id f : r.hot) out << " h" << index(f);
      for (frame_id f : r.idle) out << " i" << index(f);
    }
    return out.str();
  }

  serial_space space_;
  serial_space::stream main_;
  std::vector<std::byte> rows_ = std::vector<std::byte>(16 * 200);
  residency<P, serial_space> kv_;
  std::vector<session> live_;
  std::vector<take_id> takes_;
};

TEST_CASE_TEMPLATE("I10: ranks that make the same calls decide the same, however their streams run", P, ranked,
                   ranked_by_use, ranked_whole) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    rank<P> a{seed}, b{seed + 1'000};
    generator script{seed}, pace_a{seed * 3}, pace_b{seed * 5};
    ticket progress = ticket::none;
    for (int i = 0; i < 400; ++i) {
      // What the ranks agree on lags behind the newest ticket by a few; a rank that is slower waits.
      auto const newest = static_cast<std::uint64_t>(a.newest());
      auto const lag = static_cast<std::uint64_t>(script.below(8));
      if (newest > lag) progress = std::max(progress, ticket{newest - lag});
      std::uint64_t const call = script.next();
      std::string const one = a.call(call, progress, pace_a);
      std::string const other = b.call(call, progress, pace_b);
      CAPTURE(seed);
      CAPTURE(i);
      REQUIRE(one == other);
    }
  }
}

// ---- I12: a captured step gives what an eager one gives, also after pages moved

struct captured : policy_defaults {
  static constexpr row_segments row{16, 8};
  static constexpr int page_tokens = 8;
  static constexpr int top_k = 8;
  static constexpr int max_queries = 2;
  static constexpr std::array<layer_binding, 3> layers{{{0, 0}, {0, 1}, {1, 2}}};
  static constexpr std::array<int, 3> ratios{1, 1, 2};
};
struct captured_packed : captured {
  using metadata = flashinfer_packed;
  using backup = each_step;
};

/// An engine with fixed buffers whose steps are enqueued one by one, or captured once and launched.
template <policy P>
class engine {
  static constexpr int batch = 4;
  static constexpr int sources = 3;
  static constexpr int queries = P::max_queries;

 public:
  explicit engine(bool captures)
      : captures_{captures},
        main_{space_.make_stream()},
        kv_{space_,
            {.frames = 26,
             .host_pages = 100,
             .requests = 6,
             .max_batch = batch,
             .max_tokens = 1 << 20,
             .hot_rows = 16}} {
    for (auto& e : entries_) e.resize(batch * queries * P::top_k, -7);
    for (auto& l : lengths_) l.resize(batch * queries, -7);
    selection_.resize(batch * queries * P::top_k, -1);
    seeds_.resize(batch * queries * sources);
  }

  residency<P, serial_space>& kv() { return kv_; }
  serial_space::stream main() const { return main_; }

  request_id start(std::int64_t tokens_max, std::int64_t tokens, std::uint64_t name) {
    request_id const id = or_throw(kv_.admit(tokens_max, tokens));
    if (tokens == 0) return id;
    while (!kv_.ready(id)) step({}, {}, 0);
    kv_.reserve_import(id, tokens);
    for (int s = 0; s < sources; ++s) {
      std::vector<std::byte> rows(static_cast<std::size_t>(tokens) * 24);
      for (std::int64_t p = 0; p < tokens / P::ratios[static_cast<std::size_t>(s)]; ++p) {
        write_bytes(rows.data() + p * 24, 16, row_seed(name, s, p, 0), 0);
        write_bytes(rows.data() + p * 24 + 16, 8, row_seed(name, s, p, 0), 16);
      }
      kv_.import(id, static_cast<source_id>(s), {rows.data()});
    }
    kv_.publish(id, tokens);
    return id;
  }

  /// One step; all bytes that attention would read, in order.
  std::vector<std::byte> step(std::vector<request_id> const& who, std::vector<int> const& accepted,
                              std::uint64_t seed) {
    generator g{seed};
    auto const now = kv_.begin_step(main_, {who, queries, batch});
    std::fill(selection_.begin(), selection_.end(), -1);
    for (std::size_t i = 0; i < who.size(); ++i) {
      for (int k = 0; k < queries * P::top_k; ++k)
        selection_[i * queries * P::top_k + static_cast<std::size_t>(k)] =
            g.below(static_cast<int>(kv_.tokens(who[i])) + 3) - 1;
    }
    for (auto& s : seeds_) s = g.next() | 1;
    bytes_.clear();
    if (!captures_) {
      enqueue(now);
    } else {
      if (!graph_) {
        space_.begin_capture(main_);
        enqueue(now);
        graph_ = std::make_unique<host::graph>(space_.end_capture(main_));
      }
      space_.launch(main_, *graph_);
    }
    kv_.end_step(main_, now, accepted);
    return bytes_;
  }

 private:
  typename P::metadata::ref out(int s) {
    if constexpr (P::metadata::packed) {
      return {entries_[s].data(), lengths_[s].data()};
    } else {
      return {entries_[s].data()};
    }
  }
  void enqueue(ebb::step const& now) {
    kv_.addresses(main_, now);
    space_.call(main_, [this] {
      for (int s = 0; s < sources; ++s) {
        source_view const& v = kv_.view(static_cast<source_id>(s));
        for (int i = 0; i < batch * queries; ++i) {
          std::int32_t const at = kv_.write_addresses(static_cast<source_id>(s))[i];
          if (at >= 0) write_row(v.base, v.layout, at, seeds_[static_cast<std::size_t>(s * batch * queries + i)]);
        }
      }
    });
    kv_.resolve(main_, now, group_id{0}, selection_.data(), out(0));
    kv_.replay(main_, now, group_id{0}, source_id{1}, out(1));
    attend(0);
    attend(1);
    kv_.resolve(main_, now, group_id{1}, selection_.data(), out(2));
    attend(2);
  }
  void attend(int s) {
    space_.call(main_, [this, s] {
      source_view const& v = kv_.view(static_cast<source_id>(s));
      for (std::int32_t const address : entries_[s]) {
        bytes_.push_back(std::byte{address >= 0});
        if (address < 0) continue;
        auto const* row = v.base + v.layout.in_row_offset(address);
        bytes_.insert(bytes_.end(), row, row + 16);
        row = v.base + v.layout.page_end_offset(address);
        bytes_.insert(bytes_.end(), row, row + 8);
      }
      if constexpr (P::metadata::packed) {
        for (std::int32_t const n : lengths_[s]) bytes_.push_back(static_cast<std::byte>(n));
      }
    });
  }

  bool captures_;
  serial_space space_;
  serial_space::stream main_;
  residency<P, serial_space> kv_;
  std::vector<std::int32_t> selection_;
  std::vector<std::int32_t> entries_[sources];
  std::vector<std::int32_t> lengths_[sources];
  std::vector<std::uint64_t> seeds_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<host::graph> graph_;
};

TEST_CASE_TEMPLATE("I12: captured steps attend to the same bytes as eager ones, also after pages moved", P, captured,
                   captured_packed) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    engine<P> eager{false}, graph{true};
    generator g{seed};
    std::vector<request_id> live;
    for (int i = 0; i < 300; ++i) {
      CAPTURE(seed);
      CAPTURE(i);
      auto const both = [&](auto call) {
        call(eager);
        call(graph);
      };
      int const k = g.below(10);
      if (k == 0 && live.size() < 5) {
        std::int64_t const most = 20 + g.below(130);
        std::int64_t const tokens = g.below(static_cast<int>(most));
        auto const name = g.next();
        auto const room = eager.kv().pools();
        if (room.frames - room.frames_promised < 9 || live.size() == 5) continue;
        request_id const id = eager.start(most, tokens, name);
        REQUIRE(graph.start(most, tokens, name) == id);
        live.push_back(id);
      } else if (k == 1 && !live.empty()) {
        auto const id = live[static_cast<std::size_t>(g.below(static_cast<int>(live.size())))];
        std::int64_t const n = g.below(static_cast<int>(eager.kv().tokens(id)) + 1);
        both([&](auto& e) { e.kv().truncate(id, n); });
      } else if (k == 2 && !live.empty()) {
        both([&](auto& e) { e.kv().finish(live.back()); });
        live.pop_back();
      } else if (k == 3) {
        // Frames go to the engine and come back: loans are revoked, and handed back later.
        int const n = 1 + g.below(8);
        both([&](auto& e) {
          auto const t = e.kv().take(n);
          if (!t) return;
          for (int j = 0; j < 4; ++j) {
            e.step({}, {}, 1);
            if (auto const f = e.kv().collect(*t)) return e.kv().give(e.main(), *f);
          }
          FAIL("a take that is never there");
        });
      } else {
        std::vector<request_id> who;
        std::vector<int> accepted;
        for (auto id : live) {
          std::int64_t const most = eager.kv().allocator().book().at(id.slot).tokens_max;
          if (who.size() == 4 || !eager.kv().ready(id) || eager.kv().tokens(id) >= most || g.below(4) == 0) continue;
          who.push_back(id);
          accepted.push_back(g.below(1 + static_cast<int>(std::min<std::int64_t>(2, most - eager.kv().tokens(id)))));
        }
        auto const choice = g.next();
        REQUIRE(eager.step(who, accepted, choice) == graph.step(who, accepted, choice));
      }
    }
    CHECK(eager.kv().counts().fetched_rows == graph.kv().counts().fetched_rows);
    CHECK(eager.kv().counts().lost == 0);
  }
}

/// Eight groups that read one source, each with its own selection.
struct counted : policy_defaults {
  static constexpr row_segments row{16};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 8;
  static constexpr std::array<layer_binding, 8> layers{
      {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}, {6, 0}, {7, 0}}};
  static constexpr std::array<int, 1> ratios{1};
  using keep = most_selected;
};

// A page of which eight neighbouring rows are selected in every group and step counts like any other: one use in 16. Reports halve what
// they report.
TEST_CASE("use counts sample every page alike, in every period") {
  serial_space const space;
  auto const main = space.make_stream();
  residency<counted, serial_space> kv{
      space, {.frames = 24, .host_pages = 24, .requests = 1, .max_batch = 1, .max_tokens = 320, .hot_rows = 16}};
  request_id const id = or_throw(kv.admit(320, 319));
  std::vector<std::byte> rows(319 * 16);
  kv.reserve_import(id, 319);
  kv.wait(kv.import(id, source_id{0}, {rows.data()}));
  kv.publish(id, 319);
  constexpr int period = defaults::use_period;
  constexpr int expected = period * 8 * counted::top_k / defaults::use_sample;
  std::vector<std::int32_t> selection(counted::top_k), entries(counted::top_k);
  for (int const page : {0, 3, 9, 12, 18}) {
    CAPTURE(page);
    std::iota(selection.begin(), selection.end(), page * counted::page_tokens + 3);
    std::uint32_t before = 0;
    for (int i = 0; i <= 8 * period; ++i) {
      step const now = kv.begin_step(main, {std::vector{id}});
      if (i > 0 && i % period == 0) {
        std::uint32_t const reported = kv.allocator().book().at(id.slot).uses[static_cast<std::size_t>(page)];
        CHECK(reported - before / 2 > expected / 2);
        CHECK(reported - before / 2 < 3 * expected / 2);
        before = reported;
      }
      bool const last = i == 8 * period;
      kv.addresses(main, now);
      for (int g = 0; g < 8 && !last; ++g) kv.resolve(main, now, group_id{g}, selection.data(), {entries.data()});
      kv.end_step(main, now, std::vector{0});
    }
    for (int i = 1; i < period; ++i) kv.end_step(main, kv.begin_step(main, {std::vector{id}}), std::vector{0});
  }
}

}  // namespace invariants_test

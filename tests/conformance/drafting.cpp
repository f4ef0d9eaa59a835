// O32, O33: a windowed drafter sees only rows that were written for it in this incarnation or restored with it, and its
// ring never grows. The model is a map from positions to rows for every request; it knows nothing of rings.
#include <ebb/draft_ring.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "../spaces_under_test.hpp"

namespace drafting_test {

using namespace ebb;
using namespace ebb::testing;

constexpr int layers = 3, row_bytes = 48, row_words = row_bytes / 4;
constexpr std::int32_t canary = 0x5A5A5A5A;

/// Steps of a random sequence: fewer where lanes are threads of the host.
template <class S>
inline constexpr int random_steps = 60;
#if !defined(__CUDACC__)
template <>
inline constexpr int random_steps<serial_space> = 400;
#endif

/// What a row must hold: who wrote it, and which of all writes it was. Position −1: no row.
struct drafter_row {
  std::uint32_t key = 0;  ///< of a request's life
  std::int32_t position = -1;
  std::uint32_t version = 0;
};
EBB_FN constexpr std::uint32_t word_of(drafter_row const& r, int layer, int word) {
  std::uint32_t x = r.key * 0x9e3779b1u ^ static_cast<std::uint32_t>(r.position) * 0x85ebca77u;
  x = (x ^ (x >> 15)) * 0xc2b2ae3du ^ r.version * 0x27d4eb2fu;
  x = (x ^ (x >> 13)) * 0x165667b1u + static_cast<std::uint32_t>(layer * row_words + word) * 0x9e3779b1u;
  return x ^ (x >> 16);
}

/// The layers of a ring as the test reads and writes them.
struct layer_view {
  std::byte* base[layers];
  int rows;

  EBB_FN std::uint32_t& word(int layer, std::int64_t address, int i) const {
    return reinterpret_cast<std::uint32_t*>(base[layer] + address * row_bytes)[i];
  }
  EBB_FN bool holds(std::int32_t address) const { return address >= 0 && address < rows; }
};

/// A row is written or not, otherwise than it should be; is visible or not; has other bytes; their number is wrong.
enum wrong_kind { wrong_write, wrong_place, wrong_bytes, wrong_length, wrong_kinds };

/// Writes row `item` where it is told to.
struct write_body {
  layer_view view;
  std::int32_t const* addresses;
  drafter_row const* rows;
  std::uint32_t* wrong;

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    drafter_row const row = rows[item];
    bool const there = view.holds(addresses[item]);
    if (t.rank() == 0 && (there != (row.position >= 0) || (!there && addresses[item] != -1)))
      t.add(wrong + wrong_write, 1u);
    if (!there || row.position < 0) return;
    for (int i = t.rank(); i < layers * row_words; i += T::width)
      view.word(i / row_words, addresses[item], i % row_words) = word_of(row, i / row_words, i % row_words);
  }
};

/// Compares everything that query `item` sees with what it should see.
struct check_body {
  layer_view view;
  int window;
  std::int32_t const* addresses;
  std::int32_t const* lengths;
  drafter_row const* rows;           ///< [items][window]
  std::int32_t const* want_lengths;  ///< [items]
  std::uint32_t* wrong;

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    if (t.rank() == 0 && lengths[item] != want_lengths[item]) t.add(wrong + wrong_length, 1u);
    for (int i = t.rank(); i < window; i += T::width) {
      std::int32_t const at = addresses[std::int64_t{item} * window + i];
      drafter_row const row = rows[std::int64_t{item} * window + i];
      bool const there = view.holds(at);
      if (there != (row.position >= 0) || (!there && at != -1)) t.add(wrong + wrong_place, 1u);
      if (!there || row.position < 0) continue;
      bool same = true;
      for (int w = 0; w < layers * row_words; ++w)
        same = same && view.word(w / row_words, at, w % row_words) == word_of(row, w / row_words, w % row_words);
      if (!same) t.add(wrong + wrong_bytes, 1u);
    }
  }
};

/// Copies positions begin … of a ring out, or back in. Item = position.
struct save_body {
  layer_view view;
  std::int64_t ring, capacity, begin;
  std::uint32_t* saved;
  bool back;

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int item) const {
    std::int64_t const at = ring * capacity + (begin + item) % capacity;
    for (int i = t.rank(); i < layers * row_words; i += T::width) {
      std::uint32_t& here = view.word(i / row_words, at, i % row_words);
      std::uint32_t& there = saved[std::int64_t{item} * layers * row_words + i];
      if (back) here = there;
      if (!back) there = here;
    }
  }
};

struct accept_body {
  row_record const* rows;
  std::int32_t const* accepted;
  int count;
  std::int32_t* committed;

  EBB_BODY
  template <team T>
  EBB_FN void operator()(T const& t, int) const {
    for (int i = t.rank(); i < count; i += T::width) committed[rows[i].slot] += accepted[i];
  }
};

/// A request and what the model knows of it.
struct session {
  int slot = -1;
  int ring = -1;
  std::uint32_t key = 0;
  std::int64_t tokens = 0;
  std::int64_t room = 0;                     ///< tokens that it may grow to
  std::int64_t first = 0;                    ///< what the ring is told, and the model never looks at
  std::map<std::int64_t, drafter_row> rows;  ///< by position: those that are valid
};

/// Drafter rows that went to the host with a request's history.
struct saved_rows {
  std::int64_t tokens = 0;
  std::vector<drafter_row> rows;  ///< of the last positions before `tokens`
  std::shared_ptr<shared_array<std::uint32_t>> bytes;
};

/// A request's part in a step.
struct turn {
  session* who;
  int queries;
  int accepted;
  int before = 0;  ///< by how much its causal bounds are lower than usual; < 0: they are higher
};

/// A drafter that runs steps, checks all that is visible in them, and keeps the model.
template <class S>
class drafter {
 public:
  static constexpr int slots = 8, max_batch = 6;

  drafter(S of, int window, int max_queries, int rings, int steps_in_flight = 1)
      : space{of},
        main{space.make_stream()},
        ring{space, {window, layers, row_bytes}, max_queries, rings},
        window_{window},
        max_queries_{max_queries},
        max_rows_{max_batch * max_queries + 4},
        committed_{space, slots},
        rings_{space, slots},
        first_{space, slots},
        wrong_{space, wrong_kinds} {
    for (int l = 0; l < layers; ++l) view_.base[l] = ring.base(l);
    view_.rows = ring.rows();
    std::fill(rings_.begin(), rings_.end(), -1);
    while (capacity_ < window + max_queries) capacity_ += 16;
    for (int i = 0; i < steps_in_flight; ++i) buffers_.emplace_back(space, max_rows_, window);
  }

  /// A request of `tokens` whose history came without drafter rows, if a slot and a ring are free.
  session admit(std::int64_t tokens, std::int64_t room) {
    settle();
    session s;
    for (int slot = slots; slot-- > 0;) {
      if (rings_[static_cast<std::size_t>(slot)] < 0) s.slot = slot;
    }
    s.ring = ring.take();
    REQUIRE(s.slot >= 0);
    REQUIRE(s.ring >= 0);
    s.key = ++lives_;
    s.tokens = s.first = tokens;
    s.room = room;
    upload(s);
    return s;
  }
  /// The same with the rows that were saved.
  session admit(saved_rows const& saved, std::int64_t room) {
    session s = admit(saved.tokens, room);
    int const n = static_cast<int>(saved.rows.size());
    s.first = saved.tokens - n;
    for (drafter_row const& r : saved.rows) s.rows.emplace(r.position, r);
    upload(s);
    if (n > 0) space.run(main, n, save_body{view_, s.ring, ring.capacity(), s.first, saved.bytes->data(), true});
    return s;
  }
  /// The last rows before the committed length that are valid, a window of them at most.
  saved_rows save(session const& s) {
    saved_rows saved{s.tokens, {}, std::make_shared<shared_array<std::uint32_t>>(space, row_words * layers * window_)};
    for (std::int64_t p = std::max<std::int64_t>(0, s.tokens - window_); p < s.tokens; ++p) {
      if (s.rows.contains(p)) saved.rows.push_back(s.rows.at(p));
    }
    int const n = static_cast<int>(saved.rows.size());
    if (n > 0) space.run(main, n, save_body{view_, s.ring, ring.capacity(), s.tokens - n, saved.bytes->data(), false});
    return saved;
  }
  void finish(session& s) {
    settle();
    ring.give_back(s.ring);
    rings_[static_cast<std::size_t>(s.slot)] = -1;
    s = {};
  }
  void truncate(session& s, std::int64_t tokens) {
    settle();
    overwrite(s);  // a step here may have had nothing accepted
    s.first = ring.first_after_truncate(s.first, s.tokens, tokens);
    s.tokens = tokens;
    s.rows.erase(s.rows.lower_bound(tokens), s.rows.end());
    upload(s);
  }

  /// A step of the batch, and `padding` requests that are not there with `padding_queries` rows each. Queries differ
  /// from request to request if `ragged`, else every turn has those of the first.
  void step(std::vector<turn> const& batch, bool ragged, int padding = 0, int padding_queries = 1) {
    if (begun_ == static_cast<int>(buffers_.size())) settle();
    buffers& b = buffers_[static_cast<std::size_t>(begun_++)];
    b.fill();
    int const real = static_cast<int>(batch.size()), padded = real + padding;
    if (!ragged && real > 0) padding_queries = batch[0].queries;
    b.header[header_words::requests] = static_cast<std::uint32_t>(real);
    b.offsets[0] = 0;
    for (int i = 0; i < padded; ++i) {
      int const n = i < real ? batch[static_cast<std::size_t>(i)].queries : padding_queries;
      b.offsets[static_cast<std::size_t>(i) + 1] = b.offsets[static_cast<std::size_t>(i)] + n;
    }
    b.used = b.offsets[static_cast<std::size_t>(padded)];
    REQUIRE(b.used <= max_rows_);
    for (int i = 0; i < padded; ++i) {
      if (i < real) {
        expect(b, i, batch[static_cast<std::size_t>(i)]);
        continue;
      }
      // What a padded request would find is garbage: a slot in use, far bounds.
      b.rows[static_cast<std::size_t>(i)] = {0, 0, 1 << 30};
      for (int row = b.offsets[static_cast<std::size_t>(i)]; row < b.offsets[static_cast<std::size_t>(i) + 1]; ++row)
        b.bounds[static_cast<std::size_t>(row)] = 1000;
    }

    draft_batch const on{b.header.data(), b.rows.data(), committed_.data(), rings_.data()};
    draft_batch with = on;
    // Queries beyond max_queries get nothing: a shape whose `queries` is larger lets them through to the bodies.
    with.shape = ragged ? row_shape{1 << 20, b.used, b.offsets.data()} : row_shape{padding_queries, b.used, nullptr};
    space.run(main, padded, ring.writes(with, b.writes.data()));
    space.run(main, padded, ring.windows(with, b.bounds.data(), first_.data(), b.addresses.data(), b.lengths.data()));
    space.run(main, b.used, write_body{view_, b.writes.data(), b.written.data(), wrong_.data()});
    space.run(main, b.used,
              check_body{view_, window_, b.addresses.data(), b.lengths.data(), b.visible.data(), b.want_lengths.data(),
                         wrong_.data()});
    space.run(main, 1, accept_body{b.rows.data(), b.accepted.data(), real, committed_.data()});
  }

  /// Waits for the steps so far, and checks them.
  void settle() {
    testing::finish(space, main);
    for (int i = 0; i < begun_; ++i) CHECK(buffers_[static_cast<std::size_t>(i)].untouched_behind(window_));
    begun_ = 0;
    CHECK(wrong_[wrong_write] == 0);
    CHECK(wrong_[wrong_place] == 0);
    CHECK(wrong_[wrong_bytes] == 0);
    CHECK(wrong_[wrong_length] == 0);
    std::fill(wrong_.begin(), wrong_.end(), 0u);
  }
  /// Rows that query `row` of the first step since the last `settle` saw. Waits.
  int seen(int row) {
    settle();
    return buffers_[0].lengths[static_cast<std::size_t>(row)];
  }
  /// All bytes of the rings. Waits.
  std::vector<std::byte> bytes() {
    settle();
    std::vector<std::byte> all(static_cast<std::size_t>(ring.bytes()));
    space.peek(all.data(), ring.base(0), all.size());
    return all;
  }
  std::int32_t const* writes() const { return buffers_[0].writes.data(); }
  std::int32_t const* addresses() const { return buffers_[0].addresses.data(); }
  long long allocations() const {
    if constexpr (requires { space.allocations(); }) return space.allocations();
    return 0;
  }

  S space;
  typename S::stream main;
  draft_ring<S> ring;

 private:
  /// What one step reads and writes.
  struct buffers {
    buffers(S const& space, int rows, int window)
        : buffers{space, static_cast<std::size_t>(rows), static_cast<std::size_t>(rows) * window} {}
    buffers(S const& space, std::size_t n, std::size_t entries)
        : header{space, 1},
          rows{space, max_batch},
          offsets{space, max_batch + 1},
          accepted{space, max_batch},
          bounds{space, n},
          writes{space, n},
          written{space, n},
          addresses{space, entries},
          lengths{space, n},
          visible{space, entries},
          want_lengths{space, n} {}

    void fill() {
      std::fill(writes.begin(), writes.end(), canary);
      std::fill(addresses.begin(), addresses.end(), canary);
      std::fill(lengths.begin(), lengths.end(), canary);
      std::fill(written.begin(), written.end(), drafter_row{});
      std::fill(visible.begin(), visible.end(), drafter_row{});
      std::fill(want_lengths.begin(), want_lengths.end(), 0);
      std::fill(bounds.begin(), bounds.end(), 0);
    }
    bool untouched_behind(int window) const {
      auto const is_canary = [](std::int32_t v) { return v == canary; };
      return std::all_of(writes.begin() + used, writes.end(), is_canary) &&
             std::all_of(lengths.begin() + used, lengths.end(), is_canary) &&
             std::all_of(addresses.begin() + std::int64_t{used} * window, addresses.end(), is_canary);
    }

    int used = 0;
    shared_array<std::uint32_t> header;
    shared_array<row_record> rows;
    shared_array<std::int32_t> offsets, accepted, bounds, writes;
    shared_array<drafter_row> written;  ///< what the step writes, row by row
    shared_array<std::int32_t> addresses, lengths;
    shared_array<drafter_row> visible;  ///< what it sees
    shared_array<std::int32_t> want_lengths;
  };

  void upload(session const& s) {
    std::size_t const slot = static_cast<std::size_t>(s.slot);
    committed_[slot] = static_cast<std::int32_t>(s.tokens);
    first_[slot] = static_cast<std::int32_t>(s.first);
    rings_[slot] = s.ring;
  }
  /// Rows that a step at the committed length may write over.
  void overwrite(session& s) {
    for (int j = 0; j < max_queries_; ++j) s.rows.erase(s.rows.begin(), s.rows.upper_bound(s.tokens + j - capacity_));
  }
  /// What request i of a step writes and sees; then its acceptance.
  void expect(buffers& b, int i, turn const& t) {
    session& s = *t.who;
    b.rows[static_cast<std::size_t>(i)] = {s.slot, 0, static_cast<std::int32_t>(s.room)};
    overwrite(s);
    int const begin = b.offsets[static_cast<std::size_t>(i)];
    int written = 0;
    int const room = s.ring < 0 ? 0 : static_cast<int>(std::min<std::int64_t>(s.room - s.tokens, max_queries_));
    for (int j = 0; j < std::min(t.queries, room); ++j, ++written) {
      drafter_row const row{s.key, static_cast<std::int32_t>(s.tokens + j), ++versions_};
      s.rows[row.position] = b.written[static_cast<std::size_t>(begin + j)] = row;
    }
    for (int j = 0; j < written; ++j) {
      std::size_t const out = static_cast<std::size_t>(begin + j);
      std::int64_t const bound = std::max<std::int64_t>(0, s.tokens + j + 1 - t.before);
      b.bounds[out] = static_cast<std::int32_t>(bound);
      for (std::int64_t p = std::max<std::int64_t>(0, bound - window_); p < bound; ++p) {
        auto const row = s.rows.find(p);
        if (row == s.rows.end()) continue;
        b.visible[out * static_cast<std::size_t>(window_) + static_cast<std::size_t>(b.want_lengths[out]++)] =
            row->second;
      }
    }
    for (int j = 0; s.ring < 0 && j < t.queries; ++j)
      b.bounds[static_cast<std::size_t>(begin + j)] = static_cast<std::int32_t>(s.tokens) + j + 1;
    int const accepted = std::min(t.accepted, written);
    b.accepted[static_cast<std::size_t>(i)] = accepted;
    s.tokens += accepted;
    s.rows.erase(s.rows.lower_bound(s.tokens), s.rows.end());
  }

  int window_, max_queries_, max_rows_;
  int capacity_ = 0;
  layer_view view_;
  shared_array<std::int32_t> committed_, rings_, first_;
  shared_array<std::uint32_t> wrong_;
  std::vector<buffers> buffers_;
  int begun_ = 0;
  std::uint32_t lives_ = 0, versions_ = 0;
};

/// A ring whose every row was written by a request that is gone.
template <class S>
void use_up(drafter<S>& d, int max_queries) {
  session old = d.admit(0, 1 << 20);
  while (old.tokens < 2 * d.ring.capacity()) d.step({{&old, max_queries, max_queries}}, false);
  d.finish(old);
}

TEST_CASE_TEMPLATE("O32: after a restored prefix without drafter rows the visible window grows from 0", S, EBB_SPACES) {
  drafter<S> d{make_space<S>(), 64, 1, 1};
  use_up(d, 1);
  session s = d.admit(200, 1000);
  // Draft at once, from committed rows: there are none.
  d.step({{&s, 1, 0, 1}}, false);
  CHECK(d.seen(0) == 0);
  for (int i = 1; i <= 80; ++i) {
    d.step({{&s, 1, 1}}, false);
    CHECK(d.seen(0) == std::min(i, 64));
    d.step({{&s, 1, 0, 1}}, false);
    CHECK(d.seen(0) == std::min(i, 64));
  }
}

TEST_CASE_TEMPLATE("O32: drafter rows that are restored with the target's are visible at once", S, EBB_SPACES) {
  drafter<S> d{make_space<S>(), 64, 4, 2};
  use_up(d, 4);
  session a = d.admit(0, 1000);
  while (a.tokens < 200) d.step({{&a, 4, 4}}, false);
  saved_rows const all = d.save(a);
  d.truncate(a, 150);
  saved_rows const fewer = d.save(a);  // of 88 rows 12 may be overwritten, and 50 more are cut off
  d.finish(a);
  CHECK(all.rows.size() == 64);

  session other = d.admit(0, 1000), b = d.admit(all, 1000);
  d.step({{&b, 1, 0, 1}, {&other, 1, 1}}, false);
  CHECK(d.seen(0) == 64);
  for (int i = 0; i < 80; ++i) d.step({{&b, 4, i % 5}, {&other, 4, (i + 2) % 5}}, false);
  d.finish(b);
  session c = d.admit(fewer, 1000);
  d.step({{&c, 1, 0, 1}}, false);
  CHECK(d.seen(0) == static_cast<int>(fewer.rows.size()));
  for (int i = 0; i < 80; ++i) d.step({{&other, 4, i % 5}, {&c, 4, (i + 2) % 5}}, false);
  d.settle();
}

TEST_CASE_TEMPLATE("O32: rows of rejected drafts are never visible", S, EBB_SPACES) {
  for (int window : {1, 16, 64}) {
    CAPTURE(window);
    drafter<S> d{make_space<S>(), window, 8, 1, 3};
    session s = d.admit(0, 2000);
    for (int accepted = 0; accepted <= 8; ++accepted) {
      for (int queries = 8; queries > 0; --queries) {
        d.step({{&s, 8, std::min(accepted, queries)}}, false);
        d.step({{&s, queries, std::min(accepted, queries)}}, false);
        d.step({{&s, queries, 0, 2}}, false);  // committed rows before its own, alone
        d.step({{&s, 8, 0, -5}}, false);       // bounds behind all that was written
      }
    }
    d.settle();
  }
}

TEST_CASE_TEMPLATE("O32: truncation keeps what was not written over, and nothing of what was cut off", S, EBB_SPACES) {
  for (int by : {0, 1, 7, 8, 15, 16, 50, 79, 80, 81, 300}) {
    CAPTURE(by);
    drafter<S> d{make_space<S>(), 64, 8, 1};
    session s = d.admit(0, 5000);
    while (s.tokens < 400) d.step({{&s, 8, 5}}, false);
    d.truncate(s, s.tokens - by);
    // Of 80 rows 8 may be written over. A bound at the committed length sees a window of what is left.
    d.step({{&s, 8, 0, 1}}, false);
    CHECK(d.seen(0) == std::clamp(72 - by, 0, 64));
    for (int i = 0; i < 5; ++i) d.step({{&s, 8, i}}, false);
    d.truncate(s, std::max<std::int64_t>(0, s.tokens - 3));
    d.truncate(s, std::max<std::int64_t>(0, s.tokens - 20));
    for (int i = 0; i < 40; ++i) d.step({{&s, 8, i % 9}}, false);
    d.settle();
  }
  // A restored prefix is cut: what is generated from there on is this incarnation's.
  drafter<S> d{make_space<S>(), 64, 8, 1};
  use_up(d, 8);
  session s = d.admit(200, 1000);
  d.truncate(s, 150);
  for (int i = 1; i <= 70; ++i) {
    d.step({{&s, 1, 1}}, false);
    CHECK(d.seen(0) == std::min(i, 64));
  }
}

TEST_CASE_TEMPLATE("O33: a long request gets a ring at once and never more than that", S, EBB_SPACES) {
  constexpr int page = 16, pool_pages = 12, window = 64, queries = 8;
  constexpr int capacity = draft_capacity({window, layers, row_bytes}, queries);
  static_assert(capacity <= 6 * page);
  drafter<S> d{make_space<S>(), window, queries, pool_pages * page / capacity, 8};
  CHECK(d.ring.rings() == 2);
  CHECK(d.ring.capacity() == capacity);
  CHECK(d.ring.rows() <= pool_pages * page);
  CHECK(d.ring.bytes() == 2 * draft_ring_bytes({window, layers, row_bytes}, queries));
  session s = d.admit(10'000, 16'000), other = d.admit(10, 16'000);
  CHECK(d.ring.free() == 0);
  CHECK(d.ring.take() == -1);
  long long const before = d.allocations();
  for (int i = 0; s.tokens < 15'000; ++i) {
    d.step({{&s, queries, 1 + i % 8}, {&other, queries, i * 5 % 9}}, false);
    CHECK(d.ring.free() == 0);
  }
  d.settle();
  CHECK(d.allocations() == before);
  CHECK(d.ring.bytes() == 2 * draft_ring_bytes({window, layers, row_bytes}, queries));
  CHECK(s.rows.size() >= window);
  d.finish(other);
  CHECK(d.ring.free() == 1);
}

TEST_CASE_TEMPLATE("a row address is the ring's number times its rows, plus the position in turn", S, EBB_SPACES) {
  drafter<S> d{make_space<S>(), 16, 4, 3};  // 32 rows each
  session a = d.admit(0, 1000), b = d.admit(61, 1000), c = d.admit(30, 33);
  REQUIRE(a.ring == 0);
  REQUIRE(b.ring == 1);
  REQUIRE(c.ring == 2);
  for (int l = 1; l < layers; ++l) CHECK(d.ring.base(l) - d.ring.base(l - 1) == 3 * 32 * row_bytes);
  d.step({{&b, 4, 0}, {&c, 4, 0}}, false);
  d.settle();
  std::vector<std::int32_t> const want{32 + 29, 32 + 30, 32 + 31, 32 + 0, 64 + 30, 64 + 31, 64 + 0, -1};
  CHECK(std::vector<std::int32_t>(d.writes(), d.writes() + 8) == want);
  std::vector<std::int32_t> seen{32 + 29, 32 + 30, 32 + 31, 32 + 0};
  seen.resize(16, -1);
  CHECK(std::vector<std::int32_t>(d.addresses() + 3 * 16, d.addresses() + 4 * 16) == seen);
  // More queries than a step may have: the rest is not written, nor does it see anything.
  d.step({{&a, 6, 4}, {&b, 1, 1}}, true);
  d.settle();
  CHECK(d.writes()[3] == 3);
  CHECK(d.writes()[4] == -1);
  CHECK(d.writes()[5] == -1);
  CHECK(d.writes()[6] == 32 + 29);
}

TEST_CASE_TEMPLATE("padded requests, and those without a ring, write and see nothing", S, EBB_SPACES) {
  drafter<S> d{make_space<S>(), 16, 4, 2};
  session a = d.admit(0, 1000), b = d.admit(50, 1000);
  for (int i = 0; i < 30; ++i) d.step({{&a, 4, 3}, {&b, 4, 2}}, false, i % 5, 0);
  auto const before = d.bytes();
  d.step({}, false, 3, 4);
  d.step({}, true, 4, 2);
  d.step({}, true, 5, 0);
  CHECK(d.bytes() == before);
  session gone = b;
  d.finish(b);
  d.step({{&a, 4, 0}}, true, 2, 3);
  auto const then = d.bytes();
  gone.ring = -1;
  d.step({{&gone, 4, 0}}, true, 1, 1);
  CHECK(d.seen(0) == 0);
  CHECK(d.bytes() == then);
  d.step({{&a, 2, 1}}, false, 2);
  d.settle();
}

/// Requests that come, go, are saved, restored and truncated, in batches with all kinds of acceptance.
template <class S>
void random_sequence(int window, int max_queries, int steps, std::uint32_t seed) {
  CAPTURE(window);
  CAPTURE(max_queries);
  CAPTURE(seed);
  std::mt19937 random{seed};
  auto const below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  drafter<S> d{make_deferred_space<S>(seed), window, max_queries, 4, 1 + below(4)};
  std::vector<std::unique_ptr<session>> live;
  std::vector<saved_rows> saved;
  for (int i = 0; i < steps; ++i) {
    if (d.ring.free() > 0 && (live.empty() || below(6) == 0)) {
      bool const again = !saved.empty() && below(2) == 0;
      saved_rows const* const from = again ? &saved[random() % saved.size()] : nullptr;
      std::int64_t const tokens = again ? from->tokens : below(3) == 0 ? 0 : below(400);
      std::int64_t const room = tokens + 5 + below(600);
      live.push_back(std::make_unique<session>(again ? d.admit(*from, room) : d.admit(tokens, room)));
    }
    std::size_t const any = random() % live.size();
    if (below(25) == 0) {
      if (saved.size() == 8) {
        d.settle();  // copies from it may be under way
        saved.erase(saved.begin());
      }
      saved.push_back(d.save(*live[any]));
    }
    if (below(20) == 0) {
      std::int64_t const by = below(below(2) == 0 ? 2 * max_queries : 2 * window + 20);
      d.truncate(*live[any], std::max<std::int64_t>(0, live[any]->tokens - by));
    }
    if (live[any]->tokens == live[any]->room || below(40) == 0) {
      d.finish(*live[any]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(any));
      continue;
    }
    std::shuffle(live.begin(), live.end(), random);
    std::vector<turn> batch;
    bool const ragged = below(2) == 0;
    int const queries = 1 + below(max_queries), real = 1 + below(static_cast<int>(live.size()));
    for (int k = 0; k < real; ++k) {
      int const n = ragged ? 1 + below(max_queries) : queries;
      session* const s = live[static_cast<std::size_t>(k)].get();
      int before = below(4) == 0 ? below(below(2) == 0 ? 3 : window + 2 * max_queries) : 0;
      if (n == max_queries && s->tokens + n <= s->room && below(4) == 0) before = -below(window + 20);
      batch.push_back({s, n, below(n + 1), before});
    }
    d.step(batch, ragged, below(3), below(3));
  }
  d.settle();
}

TEST_CASE_TEMPLATE("O32: random requests see exactly their own last rows", S, EBB_SPACES) {
  for (int window : {1, 16, 64, 128}) {
    for (int max_queries : {1, 4, 8}) {
      for (std::uint32_t seed : {1u, 2u})
        random_sequence<S>(window, max_queries, random_steps<S>, seed + static_cast<std::uint32_t>(window * 16));
    }
  }
}

TEST_CASE_TEMPLATE("a drafter window that cannot be kept is refused with its argument and range", S, EBB_SPACES) {
  auto const space = make_space<S>();
  auto const make = [&](draft_window w, int max_queries, int rings) {
    return draft_ring<S>{space, w, max_queries, rings};
  };
  auto const refuses = [&](draft_window w, int max_queries, int rings, char const* what) {
    CHECK_THROWS_WITH_AS(make(w, max_queries, rings), doctest::Contains(what), std::invalid_argument);
  };
  refuses({}, 1, 1, "draft_window: tokens is 0; legal: 1 to 1073741824");
  refuses({-1, 1, 16}, 1, 1, "draft_window: tokens is -1");
  refuses({64, 0, 16}, 1, 1, "draft_window: layers is 0; legal: 1 to 134217727");
  refuses({64, 1 << 20, 4096}, 1, 1, "draft_window: layers is 1048576; legal: 1 to 524287");
  refuses({64, 1, 0}, 1, 1, "draft_window: row_bytes is 0; legal: a multiple of 16");
  refuses({64, 1, 24}, 1, 1, "draft_window: row_bytes is 24; legal: a multiple of 16");
  refuses({64, 1, 16}, 0, 1, "draft_ring: max_queries is 0; legal: 1 to 16");
  refuses({64, 1, 16}, 17, 1, "draft_ring: max_queries is 17; legal: 1 to 16");
  refuses({64, 1, 16}, 1, 0, "draft_ring: rings is 0; legal: 1 to ");
  refuses({1 << 30, 1, 16}, 1, 2, "draft_ring: rings is 2; legal: 1 to 1, so that row addresses fit in int32");

  draft_ring<S> ring = make({16, 2, 16}, 1, 2);
  CHECK_THROWS_WITH_AS(ring.base(2), "base: layer is 2; legal: 0 to 1", std::invalid_argument);
  CHECK_THROWS_WITH_AS(ring.base(-1), doctest::Contains("base: layer is -1"), std::invalid_argument);
  CHECK(ring.take() == 0);
  CHECK(ring.take() == 1);
  CHECK(ring.take() == -1);
  ring.give_back(0);
  CHECK_THROWS_WITH_AS(ring.give_back(0), "give_back: ring is 0; legal: one that was taken and not given back",
                       std::invalid_argument);
  CHECK_THROWS_AS(ring.give_back(2), std::invalid_argument);
  CHECK_THROWS_AS(ring.give_back(-1), std::invalid_argument);
  CHECK(ring.free() == 1);
  CHECK(ring.take() == 0);
}

}  // namespace drafting_test

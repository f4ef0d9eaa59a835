#pragma once
/// Announced pools and the selections inside them, step by step: recorded, and generated.

#include <ebb/tiers/row_table.hpp>

#include <algorithm>
#include <random>

#include "../resolver/parallel.hpp"
#include "../resolver/recorded.hpp"
#include "../resolver/script.hpp"

namespace bench {

/// What one step announces, `[batch][queries][size]`, and what each group selects, `[batch][queries][k]`, padded by −1.
struct pool_step {
  std::vector<std::int32_t> pool;
  std::vector<std::vector<std::int32_t>> selections;
};

/// Steps of a run; the same numbers give the same steps.
class pool_steps {
 public:
  virtual ~pool_steps() = default;
  virtual pool_step const& next() = 0;
};

/// NAME.json, NAME.pool.u16 and NAME.pooled.u16: the best positions of one layer at each step, and what later layers
/// select among them. Throws: std::runtime_error where a file is missing or too short.
struct recorded_pool {
  int context = 0, steps = 0, size = 0, k = 0, later = 0;
  std::vector<std::uint16_t> pool, pooled;  ///< [steps][size], [later][steps][k]

  explicit recorded_pool(std::filesystem::path const& path) {
    std::ifstream shape{path};
    std::string const text{std::istreambuf_iterator<char>{shape}, {}};
    context = static_cast<int>(number_in(text, "context"));
    steps = static_cast<int>(number_in(text, "steps"));
    size = static_cast<int>(number_in(text, "size"));
    k = static_cast<int>(number_in(text, "later_k"));
    later = entries_in(text, "later_layers");
    if (context <= 0 || steps <= 0 || size <= 0 || k <= 0 || later <= 0)
      throw std::runtime_error("recorded pools: " + path.string() + " is missing or has no shape of a pool");
    pool = read(path, ".pool.u16", steps * size);
    pooled = read(path, ".pooled.u16", later * steps * k);
  }

 private:
  static std::vector<std::uint16_t> read(std::filesystem::path path, char const* ending, int n) {
    std::ifstream data{path.replace_extension(ending), std::ios::binary};
    std::vector<unsigned char> raw(2 * static_cast<std::size_t>(n));
    if (!data.read(reinterpret_cast<char*>(raw.data()), static_cast<std::streamsize>(raw.size())))
      throw std::runtime_error("recorded pools: " + path.string() + " is missing or too short");
    std::vector<std::uint16_t> out(static_cast<std::size_t>(n));
    for (std::size_t j = 0; j < out.size(); ++j) out[j] = static_cast<std::uint16_t>(raw[2 * j] | raw[2 * j + 1] << 8);
    return out;
  }
};

/// Requests play the files in turn, from different steps on, past the last step backwards, then forwards again; queries
/// are consecutive steps. The first group selects the best of its own pool.
class recorded_steps final : public pool_steps {
 public:
  recorded_steps(std::vector<recorded_pool> const& from, int batch, int queries, int top_k)
      : from_{from}, batch_{batch}, queries_{queries}, top_k_{top_k} {}
  pool_step const& next() override {
    int const size = from_.front().size;
    now_.pool.clear();
    now_.selections.assign(static_cast<std::size_t>(from_.front().later) + 1, {});
    for (int r = 0; r < batch_; ++r) {
      recorded_pool const& f = from_[static_cast<std::size_t>(r) % from_.size()];
      int const first = r / static_cast<int>(from_.size()) * 37 + step_ * queries_;
      for (int q = 0; q < queries_; ++q) {
        int const turn = (first + q) % (2 * f.steps);
        int const s = turn < f.steps ? turn : 2 * f.steps - 1 - turn;
        add(now_.pool, f.pool, s * size, size, size);
        add(now_.selections[0], f.pool, s * size, f.k, top_k_);
        for (int g = 0; g < f.later; ++g)
          add(now_.selections[static_cast<std::size_t>(g) + 1], f.pooled, (g * f.steps + s) * f.k, f.k, top_k_);
      }
    }
    ++step_;
    return now_;
  }

 private:
  static void add(std::vector<std::int32_t>& to, std::vector<std::uint16_t> const& from, int first, int n, int width) {
    to.insert(to.end(), from.begin() + first, from.begin() + first + n);
    to.insert(to.end(), static_cast<std::size_t>(width - n), -1);
  }
  std::vector<recorded_pool> const& from_;
  int batch_, queries_, top_k_;
  int step_ = 0;
  pool_step now_;
};

/// Larger pools with the locality of the recorded ones, in means of both files: from query to query a pool keeps 74 %, a
/// group's selection 69 %; two neighbouring groups agree on 58 %; 5 % of a selection are new to the pool. What leaves the
/// pool was selected by no group in the query before.
class generated_steps final : public pool_steps {
 public:
  static constexpr double pool_kept = 0.74, kept = 0.69, of_neighbour = 0.57, of_new = 0.23;

  generated_steps(int batch, int queries, int size, int selectable, int groups, int top_k)
      : batch_{batch}, queries_{queries}, size_{size}, top_k_{top_k} {
    for (int r = 0; r < batch; ++r) requests_.emplace_back(r, size, selectable, groups, top_k);
    now_.pool.resize(static_cast<std::size_t>(batch) * static_cast<std::size_t>(queries * size));
    now_.selections.assign(static_cast<std::size_t>(groups),
                           std::vector<std::int32_t>(static_cast<std::size_t>(batch * queries * top_k)));
  }
  pool_step const& next() override {
    parallel_for(batch_, [&](int r) {
      request& mine = requests_[static_cast<std::size_t>(r)];
      for (int q = 0; q < queries_; ++q) {
        mine.advance();
        std::int64_t const row = std::int64_t{r} * queries_ + q;
        std::copy(mine.pool.begin(), mine.pool.end(), now_.pool.begin() + row * size_);
        for (std::size_t g = 0; g < mine.chosen.size(); ++g)
          for (int i = 0; i < top_k_; ++i)
            now_.selections[g][static_cast<std::size_t>(row * top_k_ + i)] =
                mine.pool[static_cast<std::size_t>(mine.chosen[g][static_cast<std::size_t>(i)])];
      }
    });
    return now_;
  }

 private:
  /// A pool is an array of places; a selection names places.
  struct request {
    request(int number, int size, int selectable, int groups, int top_k)
        : order{static_cast<std::uint32_t>(selectable), static_cast<std::uint32_t>(number) * 977 + 5},
          random{static_cast<std::uint32_t>(number) * 131 + 7},
          in_pool(static_cast<std::size_t>(selectable), false),
          last(static_cast<std::size_t>(size), -1),
          came(static_cast<std::size_t>(size), 0) {
      for (int i = 0; i < size; ++i) {
        pool.push_back(static_cast<std::int32_t>(order(used++)));
        in_pool[static_cast<std::size_t>(pool.back())] = true;
      }
      chosen.resize(static_cast<std::size_t>(groups));
      for (auto& c : chosen)
        for (int i = 0; i < top_k; ++i) c.push_back(i);
    }
    void advance() {
      ++steps;
      replace();
      for (std::size_t g = 0; g < chosen.size(); ++g) choose(static_cast<int>(g));
    }
    int below(std::size_t n) { return static_cast<int>(random() % n); }
    bool with(double share) { return random() < share * 4294967296.0; }
    void replace() {
      std::vector<bool> stays(pool.size(), false);
      for (auto const& c : chosen)
        for (int place : c) stays[static_cast<std::size_t>(place)] = true;
      fresh.clear();
      int const wanted = static_cast<int>(static_cast<double>(pool.size()) * (1 - pool_kept));
      for (int tries = 0; tries < 20 * wanted && static_cast<int>(fresh.size()) < wanted; ++tries) {
        std::size_t const place = static_cast<std::size_t>(below(pool.size()));
        if (stays[place]) continue;
        stays[place] = true;
        in_pool[static_cast<std::size_t>(pool[place])] = false;
        do pool[place] = static_cast<std::int32_t>(order(used++));
        while (in_pool[static_cast<std::size_t>(pool[place])]);
        in_pool[static_cast<std::size_t>(pool[place])] = true;
        fresh.push_back(static_cast<int>(place));
        came[place] = steps;
      }
    }
    bool is_fresh(int place) const { return came[static_cast<std::size_t>(place)] == steps; }
    void choose(int group) {
      auto& mine = chosen[static_cast<std::size_t>(group)];
      auto const& before = chosen[static_cast<std::size_t>(std::max(0, group - 1))];
      int const mark = ++marks;
      std::vector<bool> open(mine.size());
      for (std::size_t i = 0; i < mine.size(); ++i) {
        open[i] = ebb::mix(static_cast<std::uint32_t>(mine[i]), steps) >= kept * 4294967296.0;  // groups agree
        if (!open[i]) last[static_cast<std::size_t>(mine[i])] = mark;
      }
      for (std::size_t i = 0; i < mine.size(); ++i) {
        if (!open[i]) continue;
        bool const neighbour = group > 0 && with(of_neighbour), recent = !neighbour && with(of_new);
        int place = 0;
        bool old = false;
        for (int tries = 0; tries == 0 || last[static_cast<std::size_t>(place)] == mark || (old && is_fresh(place));
             ++tries) {
          old = !neighbour && !recent && tries < 100;
          bool const anywhere = tries >= 100;
          place = neighbour && !anywhere                  ? before[static_cast<std::size_t>(below(before.size()))]
                  : recent && !anywhere && !fresh.empty() ? fresh[static_cast<std::size_t>(below(fresh.size()))]
                                                          : below(pool.size());
        }
        last[static_cast<std::size_t>(place)] = mark;
        mine[i] = place;
      }
    }

    shuffled order;
    std::uint64_t used = 0;
    std::mt19937 random;
    std::vector<bool> in_pool;
    std::vector<int> last;            ///< the mark of the choice that took a place last
    std::vector<std::uint32_t> came;  ///< the step in which a place got its position
    int marks = 0;
    std::uint32_t steps = 0;
    std::vector<std::int32_t> pool;
    std::vector<int> fresh;
    std::vector<std::vector<int>> chosen;
  };
  int batch_, queries_, size_, top_k_;
  std::vector<request> requests_;
  pool_step now_;
};

}  // namespace bench

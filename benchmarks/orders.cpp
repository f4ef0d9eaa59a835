/// orders: rows that the real resolver fetches on recorded selections, by eviction order, beside an exact LRU of the
/// same size and the optimum; writes JSON.
///
///   orders [NAME.json …] [--json FILE]       recordings: NAME.json beside NAME.u16; default: those in examples/data
///
/// One request, one query a step, no page of its history on the GPU but the tail, which lies behind everything that is
/// selected; every row that a step returns is compared with what it must hold. The first step finds an empty cache and
/// is left out of all counts. Ends with 0, 1 when a row was wrong, 2 when it could not run.

#include <ebb/ebb.hpp>
#include <ebb/host/serial_space.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <queue>
#include <set>
#include <unordered_map>

#include "resolver/oracle.hpp"
#include "resolver/parallel.hpp"
#include "resolver/recorded.hpp"

namespace bench {

/// The orders under test: add yours here.
struct use_lru : ebb::lru {
  static constexpr char const* name = "lru";
};
struct use_lrfu : ebb::lrfu {
  static constexpr char const* name = "lrfu";
};

template <int TopK, class Order>
struct order_policy : ebb::policy_defaults {
  static constexpr ebb::row_segments row{16};
  static constexpr int page_tokens = 64;
  static constexpr int top_k = TopK;
  static constexpr auto layers = ebb::separate_layers<1>();
  static constexpr auto ratios = ebb::equal_ratios<1>();
  using tiers = ebb::tier_list<ebb::hot_rows<Order>, ebb::staging_rows, ebb::host_pages>;
};

/// Rows fetched by the resolver, first step left out; `wrong` counts rows that are not what was selected.
template <int TopK, class Order>
long long fetched(recording const& r, int hot, long long& wrong) {
  using policy = order_policy<TopK, Order>;
  constexpr int page = policy::page_tokens;
  int const tail = ebb::tail_pages(page, 1, 1);
  int const tokens = (r.context / page + tail + 1) * page, pages = tokens / page + 1;
  ebb::serial_space space;
  auto const stream = space.make_stream();
  ebb::residency<policy, ebb::serial_space> kv{space,
                                               {.frames = tail + ebb::hot_frames(hot, page),
                                                .host_pages = pages,
                                                .requests = 1,
                                                .max_batch = 1,
                                                .max_tokens = tokens + page,
                                                .hot_rows = hot}};
  auto const admitted = kv.admit(tokens + page, tokens);
  if (!admitted) throw std::runtime_error("orders: " + admitted.error().message());
  std::vector<std::uint64_t> rows(static_cast<std::size_t>(tokens) * 2);
  fill_body const fill{rows.data(), 0, tokens, 2, 0};
  for (int item = 0; item * fill_body::rows_per_item < tokens; ++item) fill(ebb::serial_team{}, item);
  kv.reserve_import(*admitted, tokens);
  kv.wait(kv.import(*admitted, ebb::source_id{0}, {reinterpret_cast<std::byte const*>(rows.data())}));
  kv.publish(*admitted, tokens);

  std::vector<std::int32_t> selection(TopK), addresses(TopK);
  std::vector<ebb::request_id> const batch{*admitted};
  std::vector<int> const accepted{0};
  std::uint64_t before = 0;
  for (int s = 0; s < r.steps; ++s) {
    std::copy_n(r.step(s).begin(), TopK, selection.begin());
    auto const step = kv.begin_step(stream, {.requests = batch});
    kv.addresses(stream, step);
    kv.resolve(stream, step, ebb::group_id{0}, selection.data(), {addresses.data()});
    auto const& v = kv.view(ebb::source_id{0});
    std::uint64_t different = 0;
    check_body const check{v.base,  v.layout, v.first_staged, selection.data(), addresses.data(),
                           nullptr, TopK,     TopK,           &different};
    for (int item = 0; item * check_body::rows_per_item < TopK; ++item) check(ebb::serial_team{}, item);
    wrong += static_cast<long long>(different);
    kv.end_step(stream, step, accepted);
    if (s == 0) before = kv.counts().fetched_rows;
  }
  ebb::counters const c = kv.counts();
  if (c.staged_rows + c.lent_hits + c.tail_hits + c.lost != 0)
    throw std::runtime_error("orders: rows came from somewhere else than the hot rows");
  return static_cast<long long>(c.fetched_rows - before);
}

/// Exact LRU: a step's hits first, then its misses take the slots of the rows used longest ago; rows of one step age in
/// the order in which they were selected.
inline long long exact_lru(recording const& r, int k, int size) {
  std::unordered_map<int, long long> used;  // row: time
  std::map<long long, int> by_time;
  long long fetches = 0, now = 0;
  for (int s = 0; s < r.steps; ++s) {
    auto const step = r.step(s).first(static_cast<std::size_t>(k));
    std::vector<int> missing;
    for (int p : step) {
      auto const at = used.find(p);
      if (at == used.end()) {
        missing.push_back(p);
        ++now;
        continue;
      }
      by_time.erase(at->second);
      at->second = ++now;
      by_time[now] = p;
    }
    // Misses get the time of their place in the selection.
    long long const start = now - k;
    for (int i = 0; i < k; ++i) {
      int const p = step[static_cast<std::size_t>(i)];
      if (used.count(p) != 0) continue;
      if (static_cast<int>(used.size()) == size) {
        used.erase(by_time.begin()->second);
        by_time.erase(by_time.begin());
      }
      used[p] = start + i + 1;
      by_time[start + i + 1] = p;
    }
    if (s > 0) fetches += static_cast<long long>(missing.size());
  }
  return fetches;
}

/// Belady: misses take the slots of the rows whose next use is farthest, never one that this step selected.
inline long long optimum(recording const& r, int k, int size) {
  constexpr int never = 1 << 30;
  std::vector<std::vector<int>> uses(static_cast<std::size_t>(r.context));
  for (int s = 0; s < r.steps; ++s)
    for (int p : r.step(s).first(static_cast<std::size_t>(k))) uses[static_cast<std::size_t>(p)].push_back(s);
  auto const next_use = [&](int p, int s) {
    auto const& u = uses[static_cast<std::size_t>(p)];
    auto const at = std::upper_bound(u.begin(), u.end(), s);
    return at == u.end() ? never : *at;
  };
  std::unordered_map<int, int> held;       // row: next use
  std::set<std::pair<int, int>> farthest;  // next use, row
  long long fetches = 0;
  for (int s = 0; s < r.steps; ++s) {
    std::vector<int> missing;
    for (int p : r.step(s).first(static_cast<std::size_t>(k))) {
      auto const at = held.find(p);
      if (at == held.end()) {
        missing.push_back(p);
        continue;
      }
      farthest.erase({at->second, p});  // in use: no victim of this step
    }
    for (int p : missing) {
      (void)p;
      if (static_cast<int>(held.size()) < size) {
        held[p] = never;
        continue;
      }
      auto const victim = std::prev(farthest.end());
      held.erase(victim->second);
      farthest.erase(victim);
      held[p] = never;
    }
    for (int p : r.step(s).first(static_cast<std::size_t>(k))) {
      held[p] = next_use(p, s);
      farthest.insert({held[p], p});
    }
    if (s > 0) fetches += static_cast<long long>(missing.size());
  }
  return fetches;
}

struct line {
  std::string file;
  int layer, hot;
  std::string order;
  long long fetched, lru, belady, wrong;
};

template <int TopK, class... Orders>
void lines_of(recording const& r, std::vector<line>& out) {
  for (int factor : {2, 4}) {
    int const size = factor * TopK;
    long long const lru = exact_lru(r, TopK, size), least = optimum(r, TopK, size);
    auto const one = [&]<class Order>() {
      long long wrong = 0;
      long long const n = fetched<TopK, Order>(r, size, wrong);
      out.push_back({r.file, r.layer, size, Order::name, n, lru, least, wrong});
    };
    (one.template operator()<Orders>(), ...);
  }
}

inline int run(std::vector<std::string> const& files, std::string const& json) {
  std::vector<recording> all;
  for (std::string const& f : files)
    for (recording& r : read_recordings(f)) all.push_back(std::move(r));
  std::vector<std::vector<line>> lines(all.size());
  parallel_for(static_cast<int>(all.size()), [&](int i) {
    recording const& r = all[static_cast<std::size_t>(i)];
    if (r.k >= 2048)
      lines_of<2048, use_lru, use_lrfu>(r, lines[static_cast<std::size_t>(i)]);
    else if (r.k >= 512)
      lines_of<512, use_lru, use_lrfu>(r, lines[static_cast<std::size_t>(i)]);
    else
      throw std::runtime_error("orders: " + r.file + ": fewer than 512 positions a step");
  });

  struct sum {
    double over_lru = 0, over_least = 0, worst = -1e9;
    int n = 0;
  };
  std::map<std::string, sum> sums;
  std::string text;
  long long wrong = 0;
  std::printf("%-18s %5s %5s %-6s %9s %9s %9s %8s %9s\n", "file", "layer", "hot", "order", "fetched", "exact LRU",
              "Belady", "over LRU", "over opt.");
  for (auto const& of : lines)
    for (line const& l : of) {
      double const lru = 100.0 * static_cast<double>(l.fetched - l.lru) / static_cast<double>(l.lru);
      double const least = 100.0 * static_cast<double>(l.fetched - l.belady) / static_cast<double>(l.belady);
      std::printf("%-18s %5d %5d %-6s %9lld %9lld %9lld %+7.2f%% %+8.1f%%%s\n", l.file.c_str(), l.layer, l.hot,
                  l.order.c_str(), l.fetched, l.lru, l.belady, lru, least, l.wrong > 0 ? " WRONG" : "");
      wrong += l.wrong;
      for (std::string const& key : {l.order + ", all", l.order + ", " + l.file,
                                     l.order + ", hot " + (l.hot == 1024 || l.hot == 4096 ? "2k" : "4k")}) {
        sum& s = sums[key];
        s.over_lru += lru;
        s.over_least += least;
        s.worst = std::max(s.worst, lru);
        ++s.n;
      }
      json_object o;
      o.text("file", l.file).number("layer", l.layer).number("hot", l.hot).text("order", l.order);
      o.number("fetched", l.fetched).number("exact_lru", l.lru).number("belady", l.belady).number("wrong", l.wrong);
      text += (text.empty() ? "" : ",\n") + o.str();
    }
  for (auto const& [name, s] : sums)
    std::printf("%-34s mean %+6.2f%% of exact LRU, worst %+6.2f%%; %+6.1f%% of the optimum (%d)\n", name.c_str(),
                s.over_lru / s.n, s.worst, s.over_least / s.n, s.n);
  if (!json.empty()) std::ofstream{json} << "{\"orders\": [\n" << text << "\n]}\n";
  return wrong == 0 ? 0 : 1;
}

}  // namespace bench

int main(int argc, char** argv) {
  try {
    std::vector<std::string> files;
    std::string json;
    for (int i = 1; i < argc; ++i) {
      std::string const a = argv[i];
      if (a == "--json" && i + 1 < argc)
        json = argv[++i];
      else
        files.push_back(a);
    }
    if (files.empty()) files = {"examples/data/smollm2_8k_code.json", "examples/data/smollm2_8k_docs.json"};
    return bench::run(files, json);
  } catch (std::exception const& e) {
    std::fprintf(stderr, "orders: %s\n", e.what());
    return 2;
  }
}

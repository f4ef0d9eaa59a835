// A place and a keep order from outside the library, compiled into the resolver and the allocator, and checked: every
// byte over many random steps, on one lane and on four threads; and that the order decides who loses pages.
#include <ebb/ebb.hpp>
#include <ebb/host/thread_space.hpp>

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "direct_rows.hpp"
#include "shortest_first.hpp"

template <class Keep>
struct my_kv : ebb::policy_defaults {
  static constexpr ebb::row_segments row{48};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 32;
  static constexpr int max_queries = 2;
  static constexpr auto layers = ebb::separate_layers<1>();
  static constexpr auto ratios = ebb::equal_ratios<1>();
  using tiers = ebb::tier_list<ebb::lent_pages, direct_rows, ebb::staging_rows, ebb::host_pages>;
  using keep = Keep;
};
constexpr ebb::source_id source{0};
constexpr int row_bytes = my_kv<ebb::newest>::row.in_row, words = row_bytes / 4;

std::uint32_t word_of(int owner, int position, int i) {
  return static_cast<std::uint32_t>(owner * 1'000'003 + position * words + i) * 0x9e3779b1u;
}
void write_row(std::byte* row, int owner, int position) {
  for (int i = 0; i < words; ++i) {
    std::uint32_t const w = word_of(owner, position, i);
    std::memcpy(row + 4 * i, &w, sizeof w);
  }
}
bool holds(std::byte const* row, int owner, int position) {
  std::byte want[row_bytes];
  write_row(want, owner, position);
  return std::memcmp(row, want, sizeof want) == 0;
}

/// Loans that each of three requests loses when the engine takes 20 frames; throws where a byte was wrong.
template <ebb::space S, class Keep>
std::vector<int> run(char const* name, int steps) {
  using kv_type = my_kv<Keep>;
  S space;
  auto const stream = space.make_stream();
  ebb::residency<kv_type, S> kv{
      space, {.frames = 160, .host_pages = 512, .requests = 4, .max_batch = 4, .max_tokens = 4096, .hot_rows = 48}};

  // Three requests of 32, 64 and 128 pages. Their required frames leave room to lend.
  std::vector<ebb::request_id> requests;
  for (int const tokens : {512, 1024, 2048}) {
    int const owner = static_cast<int>(requests.size());
    std::vector<std::byte> history(static_cast<std::size_t>(tokens * row_bytes));
    for (int p = 0; p < tokens; ++p) write_row(history.data() + p * row_bytes, owner, p);
    requests.push_back(or_throw(kv.admit(tokens + 512, tokens)));
    kv.reserve_import(requests.back(), tokens);
    kv.wait(kv.import(requests.back(), source, {history.data()}));
    kv.publish(requests.back(), tokens);
  }

  // Random steps: selections drift around a place of interest, so that some rows are hits and ways are contended for.
  std::mt19937 random{1};
  auto const below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int const batch = static_cast<int>(requests.size()), queries = kv_type::max_queries, rows = batch * queries;
  std::vector<int> selection(static_cast<std::size_t>(rows * kv_type::top_k)), addresses(selection.size());
  std::vector<int> accepted(requests.size()), lost(requests.size());
  auto const& view = kv.view(source);
  auto const at = [&](int address) { return view.base + view.layout.in_row_offset(address); };
  long long checked = 0, wrong = 0;
  auto const one_step = [&] {
    ebb::step const step = kv.begin_step(stream, {requests, queries});
    kv.addresses(stream, step);
    for (int q = 0; q < rows; ++q) {
      int const owner = q / queries, bound = kv.bounds()[q], center = below(bound);
      write_row(at(kv.write_addresses(source)[q]), owner, bound - 1);
      for (int k = 0; k < kv_type::top_k; ++k)
        selection[static_cast<std::size_t>(q * kv_type::top_k + k)] = (center + below(1 + below(400))) % bound;
    }
    kv.resolve(stream, step, ebb::group_id{0}, selection.data(), {addresses.data()});
    for (std::size_t i = 0; i < selection.size(); ++i, ++checked)
      wrong += !holds(at(addresses[i]), static_cast<int>(i) / (queries * kv_type::top_k), selection[i]);
    for (int& n : accepted) n = below(8) == 0 ? 1 + below(queries) : 0;  // most drafts are rejected
    kv.end_step(stream, step, accepted);
  };
  for (int i = 0; i < steps; ++i) one_step();

  auto const loans = [&](std::size_t i) { return kv.pools(requests[i]).lent; };
  for (std::size_t i = 0; i < lost.size(); ++i) lost[i] = loans(i);
  ebb::take_id const taken = or_throw(kv.take(20));
  one_step();  // frames are handed over once their earlier readers are done
  one_step();
  if (!kv.collect(taken)) throw std::runtime_error("the frames were not handed over");
  for (std::size_t i = 0; i < lost.size(); ++i) lost[i] -= loans(i);
  ebb::counters const c = kv.counts();
  std::printf("%s: %lld rows checked, %lld wrong, %d hits in direct_rows, %d staged; loans lost: %d %d %d\n", name,
              checked, wrong, static_cast<int>(c.hot_hits), static_cast<int>(c.staged_rows), lost[0], lost[1], lost[2]);
  if (wrong != 0 || c.hot_hits == 0 || c.staged_rows == 0) throw std::runtime_error("wrong rows, or a place unused");
  return lost;
}

int main() try {
  using lost = std::vector<int>;
  bool const serial = run<ebb::serial_space, shortest_first>("shortest_first, one lane", 2000) == lost{0, 0, 20};
  bool const threads = run<ebb::thread_space<4>, shortest_first>("shortest_first, 4 threads", 200) == lost{0, 0, 20};
  lost const others = run<ebb::serial_space, ebb::newest>("newest, one lane", 2000);
  bool const shared = others[0] > 0 && others[1] > 0 && others[2] > 0;  // in proportion to what they hold
  return serial && threads && shared ? 0 : 1;
} catch (std::exception const& e) {
  std::fprintf(stderr, "own_tier: %s\n", e.what());
  return 1;
}

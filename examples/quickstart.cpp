// One request whose history is twenty times as large as its room on the GPU, and one step that reads all over it.
#include <ebb/ebb.hpp>

#include <cstdio>
#include <cstring>
#include <vector>

// The model: one layer, rows of 64 bytes, pages of 16 tokens, 32 positions selected per query. The rest is defaults.
struct my_kv : ebb::policy_defaults {
  static constexpr ebb::row_segments row{64};
  static constexpr int page_tokens = 16;
  static constexpr int top_k = 32;
  static constexpr auto layers = ebb::separate_layers<1>();
  static constexpr auto ratios = ebb::equal_ratios<1>();
};
constexpr ebb::source_id layer_kv{0};
constexpr ebb::group_id layer_selection{0};

void write_row(std::byte* row, int position) { std::memset(row, 1 + position % 251, my_kv::row.in_row); }
bool holds(std::byte const* row, int position) {
  for (int i = 0; i < my_kv::row.in_row; ++i) {
    if (row[i] != std::byte(1 + position % 251)) return false;
  }
  return true;
}

int main() {
  ebb::serial_space space;  // on a GPU: ebb::cuda_space, with device pointers: see examples/embed
  auto const stream = space.make_stream();
  ebb::residency<my_kv, ebb::serial_space> kv{
      space, {.frames = 8, .host_pages = 256, .requests = 4, .max_batch = 4, .max_tokens = 4096, .hot_rows = 64}};

  // A request that may grow to 4,000 tokens comes with a history of 3,000.
  std::vector<std::byte> history(3000 * my_kv::row.in_row);
  for (int p = 0; p < 3000; ++p) write_row(history.data() + p * my_kv::row.in_row, p);
  ebb::request_id const request = or_throw(kv.admit(4000, 3000));
  kv.reserve_import(request, 3000);
  kv.wait(kv.import(request, layer_kv, {history.data()}));
  kv.publish(request, 3000);

  // A step: the token's row first, then the rows that its query selected.
  ebb::step const step = kv.begin_step(stream, {{&request, 1}});
  kv.addresses(stream, step);
  auto const& rows = kv.view(layer_kv);
  write_row(rows.base + rows.layout.in_row_offset(kv.write_addresses(layer_kv)[0]), 3000);
  std::vector<int> selection(my_kv::top_k), addresses(my_kv::top_k);
  for (int i = 0; i < my_kv::top_k; ++i) selection[i] = 3000 - 95 * i;
  kv.resolve(stream, step, layer_selection, selection.data(), {addresses.data()});
  int wrong = 0;  // attention would run here; rows lie at `addresses`
  for (int i = 0; i < my_kv::top_k; ++i)
    wrong += !holds(rows.base + rows.layout.in_row_offset(addresses[i]), selection[i]);
  int const accepted = 1;
  kv.end_step(stream, step, {&accepted, 1});

  std::printf("%d rows read, %d of them fetched from the host, %d wrong; %d tokens committed\n", my_kv::top_k,
              static_cast<int>(kv.counts().fetched_rows), wrong, static_cast<int>(kv.tokens(request)));
  return wrong == 0 && kv.tokens(request) == 3001 ? 0 : 1;
}

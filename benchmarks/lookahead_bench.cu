/// lookahead_bench: what announced pools and copies beside the layers gain; writes JSON.
///
///   lookahead_bench --json out.json                    shares with generated pools, and overlaps, on a GPU
///   … --pools NAME.json                                recorded pools, too (several: the files are played in turn)
///   … --grid tiny                                      all of its code, small, for a machine without a GPU
///
/// nvcc makes it run on the GPU; any C++20 compiler (g++ -x c++) makes it run on the CPU.
///
/// Ends with 0 when every row was right, 1 when one was wrong, 2 when it could not run.

#include <ebb/host/serial_space.hpp>

#include <cstdio>
#include <fstream>

#include "lookahead/overlap.hpp"

namespace bench {

#if defined(__CUDACC__)
using here = ebb::cuda_space;
#else
using here = ebb::serial_space;
#endif

inline std::string list_of(std::vector<std::string> const& objects) {
  std::string text = "[";
  for (std::string const& o : objects) text += (text.size() > 1 ? ",\n  " : "\n  ") + o;
  return text + "\n]";
}

inline int look_ahead(int argc, char** argv) {
  ahead_grid grid;
  std::string json;
  std::vector<recorded_pool> recorded;
  for (int i = 1; i < argc; i += 2) {
    std::string const name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--grid" && (value == "full" || value == "tiny"))
      grid.tiny = value == "tiny";
    else if (name == "--json" && !value.empty())
      json = value;
    else if (name == "--pools" && !value.empty())
      recorded.emplace_back(value);
    else
      throw std::invalid_argument(name + " " + value +
                                  "; options: --grid full|tiny, --json FILE, --pools FILE.json (several)");
  }
  timing<here> clock{here{}, grid.tiny ? std::size_t{1} << 20 : std::size_t{300} << 20};
  std::vector<std::string> found, hidden;
  std::uint64_t wrong = measure_shares(clock, grid, recorded, found);
  layers<here> model{clock, grid.weights()};
  wrong += measure_replay(clock, model, grid, hidden);
  wrong += measure_prefetch(clock, model, grid, hidden);

  json_object generated;
  generated.number("pool_kept", generated_steps::pool_kept)
      .number("selection_kept", generated_steps::kept)
      .number("of_neighbour", generated_steps::of_neighbour)
      .number("of_new", generated_steps::of_new);
  json_object out;
  out.raw("generated", generated.str())
      .number("weights_gbs_shared", model.rate(room::shared) / 1e3)
      .number("weights_gbs_full", model.rate(room::full) / 1e3)
      .raw("shares", list_of(found))
      .raw("overlaps", list_of(hidden));
  if (!json.empty()) std::ofstream{json} << out.str() << "\n";
  std::printf("%llu rows wrong\n", static_cast<unsigned long long>(wrong));
  return wrong == 0 ? 0 : 1;
}

}  // namespace bench

int main(int argc, char** argv) {
  try {
    return bench::look_ahead(argc, argv);
  } catch (std::exception const& e) {
    std::fprintf(stderr, "lookahead_bench: %s\n", e.what());
    return 2;
  }
}

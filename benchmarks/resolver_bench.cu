/// resolver_bench: the resolver of the library against a faithful kernel of the published design and against the best
/// gather of the same rows, cell by cell; writes JSON.
///
///   resolver_bench --json out.json                     the whole grid, on a GPU
///   resolver_bench --grid quick                        what tuning needs, in under a minute
///   resolver_bench --grid speculation                  several queries of a request against one
///   resolver_bench --axes history --axes queries       some axes only
///   … --spoil 1000                                     every 1,000th row of the history is wrong: the check must see it
///
/// It is this file and those of resolver/parts/, one for each policy; what is not linked in is skipped. nvcc makes it
/// run on the GPU; any C++20 compiler (g++ -x c++) makes it run on the CPU, where `--grid tiny` tries all of its code.
///
/// Ends with 0 when every row was right, 1 when one was wrong, 2 when it could not run.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "resolver/ceilings.hpp"
#include "resolver/grid.hpp"
#include "resolver/part.hpp"
#include "resolver/stores.hpp"

namespace bench {

/// The document so far; written after every setting, so that what was measured is never lost.
class document {
 public:
  explicit document(std::string path) : path_{std::move(path)} {}
  std::vector<std::string> cells;
  json_object head;
  json_object ceilings;

  void write() const {
    if (path_.empty()) return;
    std::ofstream file{path_};
    std::string text = "{\"machine\": " + head.str() + ",\n\"ceilings\": " + ceilings.str() + ",\n\"cells\": [\n";
    for (std::size_t i = 0; i < cells.size(); ++i) text += cells[i] + (i + 1 < cells.size() ? ",\n" : "\n");
    file << text << "]}\n";
  }

 private:
  std::string path_;
};

inline void print_row(setting const& s, cell const& c, measured const& m) {
  double const bytes = m.fetched_rows * static_cast<double>(m.row_bytes);
  std::printf(
      "%-9s %-8s %3d %5.3g %5d %5d %5d %2d %8d %-7s %-5s %9.2f %9.2f %6.2f %9.2f %6.3f %6.1f %10.0f %4.0f %6llu\n",
      c.axis.c_str(), name_of(c.select), c.batch, c.miss, s.top_k, s.hot(), s.row_bytes, c.queries, s.history,
      s.pinned ? "pinned" : "managed", c.swept ? "swept" : "", m.us, m.reference_us, m.reference_us / m.us, m.floor_us,
      m.us / m.floor_us, bytes / m.us / 1e3, m.fetched_rows, m.staged_rows, static_cast<unsigned long long>(m.wrong));
  std::fflush(stdout);
}

inline int run(home space, options const& o, json_object machine) {
  auto const groups = merged(cells_of_grid(o));
  bool const small = o.grid == "tiny" || o.requests < 8;
  document out{o.json};
  out.head = std::move(machine);
  std::map<pattern, std::vector<recording>> recordings;
  for (char const* name : {"smollm2_8k_code", "smollm2_8k_docs"}) {
    bool const wanted = std::any_of(groups.begin(), groups.end(), [](auto const& g) {
      return std::any_of(g.cells.begin(), g.cells.end(), [](cell const& c) { return c.select == pattern::recorded; });
    });
    if (!wanted) break;
    for (auto& r : read_recordings(std::filesystem::path{o.data} / name))
      recordings[pattern::recorded].push_back(std::move(r));
  }
  if (!o.gemma.empty()) recordings[pattern::gemma] = read_recordings(o.gemma);

  timing<home> clock{space, small ? std::size_t{1} << 20 : std::size_t{300} << 20};
  stores history{space, groups};
  for (bool pinned : {false, true}) {
    if (history.bytes(pinned) == 0) continue;
    std::byte* const store = history.of(pinned);
    out.ceilings.raw(
        pinned ? "pinned" : "managed",
        measure_ceilings(clock, store, std::min(history.bytes(pinned), std::size_t{10'000'000'000}), small));
  }
  std::printf("%-9s %-8s %3s %5s %5s %5s %5s %2s %8s %-7s %-5s %9s %9s %6s %9s %6s %6s %10s %4s %6s\n", "axis",
              "select", "B", "miss", "top-k", "hot", "row", "q", "history", "memory", "", "us", "ref us", "ratio",
              "floor us", "over", "GB/s", "rows", "stg", "wrong");
  std::uint64_t wrong = 0;
  for (group_of_cells const& g : groups) {
    part const* const p = part_for(g.s);
    if (p == nullptr) {
      std::fprintf(stderr, "skipped: rows of %d bytes, top-k %d, %d queries are not in this program\n", g.s.row_bytes,
                   g.s.top_k, g.s.max_queries);
      continue;
    }
    auto const on = p->make(clock, g.s, history.of(g.s.pinned), o);
    for (cell const& c : g.cells) {
      measured const m = on->of(c, recordings[c.select]);
      wrong += m.wrong;
      print_row(g.s, c, m);
      out.cells.push_back(to_json(g.s, c, m));
    }
    out.write();
  }
  std::printf("%zu cells, %llu rows wrong\n", out.cells.size(), static_cast<unsigned long long>(wrong));
  return wrong == 0 ? 0 : 1;
}

inline options parse(int argc, char** argv) {
  options o;
  auto const usage = [](std::string const& why) {
    throw std::invalid_argument(
        why +
        "; options: --grid full|quick|speculation|tiny, --axes NAME (several), --json FILE, --data DIR, "
        "--gemma FILE, --passes N, --requests N, --spoil N, --no-reference, --no-floor, --brief");
  };
  for (int i = 1; i < argc; ++i) {
    std::string const name = argv[i];
    auto const value = [&]() -> std::string {
      if (i + 1 == argc) usage(name + " wants a value");
      return argv[++i];
    };
    if (name == "--grid")
      o.grid = value();
    else if (name == "--axes")
      o.axes.push_back(value());
    else if (name == "--json")
      o.json = value();
    else if (name == "--data")
      o.data = value();
    else if (name == "--gemma")
      o.gemma = value();
    else if (name == "--passes")
      o.passes = std::max(1, std::atoi(value().c_str()));
    else if (name == "--requests")
      o.requests = std::max(1, std::atoi(value().c_str()));
    else if (name == "--spoil")
      o.spoil = std::max(0, std::atoi(value().c_str()));
    else if (name == "--no-reference")
      o.reference = false;
    else if (name == "--no-floor")
      o.floor = false;
    else if (name == "--brief")
      o.thorough = false;
    else
      usage("unknown option " + name);
  }
  if (o.grid != "full" && o.grid != "quick" && o.grid != "speculation" && o.grid != "tiny") usage("--grid " + o.grid);
  return o;
}

inline int start(options const& o) {
  json_object machine;
  machine.number("passes", o.passes);
#if defined(__CUDACC__)
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) throw std::runtime_error("there is no GPU here");
  cudaDeviceProp gpu{};
  ebb::check(cudaGetDeviceProperties(&gpu, 0));
  int driver = 0, runtime = 0;
  ebb::check(cudaDriverGetVersion(&driver));
  ebb::check(cudaRuntimeGetVersion(&runtime));
  machine.text("device", gpu.name)
      .number("multiprocessors", gpu.multiProcessorCount)
      .number("l2_bytes", gpu.l2CacheSize)
      .number("memory_bytes", gpu.totalGlobalMem)
      .number("cuda_driver", driver)
      .number("cuda_runtime", runtime);
#else
  machine.text("device", "none: serial_space on the CPU");
#endif
  return run(home{}, o, std::move(machine));
}

}  // namespace bench

int main(int argc, char** argv) {
  try {
    return bench::start(bench::parse(argc, argv));
  } catch (std::exception const& e) {
    std::fprintf(stderr, "resolver_bench: %s\n", e.what());
    return 2;
  }
}

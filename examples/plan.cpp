// How many requests of a given length fit, for every preset: whole on the GPU, with a fixed budget of hot rows, and
// with loans.
#include <ebb/models.hpp>
#include <ebb/plan.hpp>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

namespace {

constexpr double mib = 1 << 20;
constexpr double gib = 1 << 30;

struct options {
  double gpu_gib = 100;
  double host_gib = 1000;
  double engine_mib = 0;
  ebb::plan_inputs sizes{.history = 131'072, .growth = 4096, .max_tokens = 1 << 20};
};

std::int64_t bytes(char const* option, double value, double unit) {
  if (!(value >= 0 && value <= 1e6))
    throw std::invalid_argument(std::string{option} + " is " + CLI::detail::to_string(value) + "; legal: 0 to 1000000");
  return static_cast<std::int64_t>(value * unit);
}

/// One line of the table, printf-like.
template <class... Ts>
std::string line(char const* format, Ts... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::string head(options const& o) {
  auto const& in = o.sizes;
  return line(
             "requests of %lld tokens that may add %lld; %g GiB on the GPU, %g GiB on the host; steps in flight: "
             "%d\n\n",
             static_cast<long long>(in.history), static_cast<long long>(in.growth), o.gpu_gib, o.host_gib,
             in.steps_in_flight) +
         line("%-16s%9s%9s%9s%9s%9s%9s |%9s%9s%9s  %-11s%7s%8s\n", "", "KiB", "hot", "frames", "pages", "tables",
              "index", "resident", "fixed", "adaptive", "limited", "pages", "whole") +
         line("%-16s%9s%9s%9s%9s%9s%9s |%9s%9s%9s  %-11s%7s%8s\n", "preset", "a frame", "rows", "required", "whole",
              "MiB", "MiB", "requests", "requests", "requests", "by", "lent", "up to");
}

template <ebb::policy P>
std::string row(char const* preset, options const& o) {
  auto in = o.sizes;
  if (in.hot_rows == 0) in.hot_rows = ebb::usual_hot_rows<P>();
  try {
    auto const p = ebb::plan_for<P>(in);
    auto const tables = static_cast<double>(p.slot_bytes + p.step_bytes + p.draft_bytes) / mib;
    auto const lent = p.adaptive.requests == 0 ? 0 : p.loans / p.adaptive.requests;
    return line("%-16s%9.0f%9d%9d%9d%9.1f%9.1f |%9lld%9lld%9lld  %-11s%7lld%8lld\n", preset,
                static_cast<double>(p.frame_bytes) / 1024, in.hot_rows, p.required_frames, p.whole_pages, tables,
                static_cast<double>(p.index_bytes) / mib, static_cast<long long>(p.resident.requests),
                static_cast<long long>(p.fixed.requests), static_cast<long long>(p.adaptive.requests),
                name(p.adaptive.limit), static_cast<long long>(lent), static_cast<long long>(p.whole_requests));
  } catch (std::invalid_argument const& e) {
    throw std::invalid_argument(std::string{preset} + ": " + e.what());
  }
}

struct drafted : ebb::models::glm53_fp8 {
  static constexpr ebb::draft_window draft{2048, 6, 4096};
};

std::string table(options const& o) {
  using namespace ebb::models;
  std::string text = head(o);
  text += row<dsv32_fp8ds>("dsv32_fp8ds", o);
  text += row<glm53_fp8ds>("glm53_fp8ds", o);
  text += row<glm53_fp8>("glm53_fp8", o);
  text += row<glm53_fp8_mtp>("glm53_fp8_mtp", o);
  text += row<drafted>("… drafter window", o);
  text += row<glm51_bf16>("glm51_bf16", o);
  text += row<dsv4_flash>("dsv4_flash", o);
  text += row<dsv41_flash_fp4>("dsv41_flash_fp4", o);
  text += row<dsv41_flash_fp8>("dsv41_flash_fp8", o);
  text += row<qsa_record>("qsa_record", o);
  return text + R"(
per request: tables (map, words, staging, lists, draft ring) and index keys, which stay on the GPU (0.0 where the preset does not name their bytes: give
them by --engine-mib). … drafter window: glm53_fp8 and a drafter of six layers that sees 2,048 positions of 4 KiB. resident: whole histories on the GPU, no host copy. fixed: tail and hot rows. adaptive: as many, and spare frames
are lent: so many pages each at full load, the whole history of everybody up to so many requests.
)";
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{"What fits where: requests per preset, and the pool that limits them."};
  app.add_option("--gpu-gib", o.gpu_gib, "GPU memory for KV, tables, index keys and engine state")
      ->capture_default_str();
  app.add_option("--host-gib", o.host_gib, "host memory for history")->capture_default_str();
  app.add_option("--engine-mib", o.engine_mib, "the engine's own state of a request on the GPU")->capture_default_str();
  app.add_option("--history", o.sizes.history, "tokens of a request")->capture_default_str();
  app.add_option("--growth", o.sizes.growth, "tokens it may add")->capture_default_str();
  app.add_option("--max-tokens", o.sizes.max_tokens, "longest request, for the map")->capture_default_str();
  app.add_option("--requests", o.sizes.requests, "request slots, 0: as many as fit")->capture_default_str();
  app.add_option("--max-batch", o.sizes.max_batch, "requests of one step, 0: all")->capture_default_str();
  app.add_option("--hot-rows", o.sizes.hot_rows, "hot rows at ratio 1, 0: what suits the preset")
      ->capture_default_str();
  app.add_option("--staging-rows", o.sizes.staging_rows, "-1: what max_queries * top_k need")->capture_default_str();
  app.add_option("--steps-in-flight", o.sizes.steps_in_flight, "steps issued before acceptance is known")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    o.sizes.gpu_bytes = bytes("--gpu-gib", o.gpu_gib, gib);
    o.sizes.host_bytes = bytes("--host-gib", o.host_gib, gib);
    o.sizes.engine_bytes = bytes("--engine-mib", o.engine_mib, mib);
    std::fputs(table(o).c_str(), stdout);
  } catch (std::exception const& e) {
    std::fprintf(stderr, "plan: %s\n", e.what());
    return 1;
  }
}

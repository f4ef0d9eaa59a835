// ebb inside an engine that owns its memory, its streams and its loop. `embed [host|cuda]`.
#include <cstdio>
#include <string>

#include "serving.hpp"
#if defined(__CUDACC__)
#include <ebb/cuda/cuda_space.cuh>
#endif

template <ebb::space S>
int serve(S const& space) {
  // 96 blocks on the GPU serve eight requests of up to 40 blocks at a time.
  toy::serving<S> engine{space,
                         {.frames = 96,
                          .host_pages = 512,
                          .requests = 8,
                          .max_batch = 8,
                          .max_tokens = 1024,
                          .hot_rows = 64,
                          .steps_in_flight = 2}};
  constexpr int requests = 24;
  for (std::uint32_t p = 1; p <= requests; ++p) {
    int const prompt = 64 + static_cast<int>(p * 97 % 448);
    engine.submit({p, prompt, prompt + 40 + static_cast<int>(p * 31 % 90)});
  }
  int steps = 0;
  for (; engine.busy() && steps < 10'000; ++steps) engine.step();
  engine.drain();
  ebb::counters const c = engine.counts();
  std::printf(
      "%d steps, %d requests finished, up to %d at once; %d answers, %d wrong; %d rows fetched, %d pages "
      "adopted, %d lent, %d revoked\n",
      steps, engine.finished, engine.most_running, engine.answers, engine.wrong, static_cast<int>(c.fetched_rows),
      static_cast<int>(c.pages.adopted), static_cast<int>(c.pages.lent), static_cast<int>(c.pages.revoked));
  return engine.finished == requests && engine.wrong == 0 && c.lost == 0 && c.fetched_rows > 0 ? 0 : 1;
}

int main(int argc, char** argv) try {
  std::string const where = argc > 1 ? argv[1] : "host";
#if defined(__CUDACC__)
  if (where == "cuda") return serve(ebb::cuda_space{});
#endif
  // At once, then in seeded orders, as late as fences allow: what does not wait where it must shows up as wrong answers.
  if (where == "host") {
    int failed = serve(ebb::serial_space{});
    for (std::uint64_t seed = 1; seed <= 3; ++seed) failed += serve(ebb::serial_space{ebb::host::deferred{seed}});
    return failed == 0 ? 0 : 1;
  }
  std::fprintf(stderr, "embed: unknown space '%s', or built without CUDA\n", where.c_str());
  return 2;
} catch (std::exception const& e) {
  std::fprintf(stderr, "embed: %s\n", e.what());
  return 1;
}

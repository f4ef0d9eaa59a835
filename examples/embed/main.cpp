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
  for (std::uint32_t p = 1; p <= 24; ++p) {
    int const prompt = 64 + static_cast<int>(p * 97 % 448);
    engine.submit({p, prompt, prompt + 40 + static_cast<int>(p * 31 % 90)});
  }
  int steps = 0;
  for (; engine.busy() && steps < 10'000; ++steps) engine.step();
  engine.drain();
  ebb::counters const c = engine.counts();
  std::printf("%d steps, %d requests finished, up to %d at once; %lld answers, %lld wrong; %d rows fetched, %d pages "
              "adopted, %d lent, %d revoked\n",
              steps, static_cast<int>(c.pages.finished), engine.most_running, engine.answers, engine.wrong,
              static_cast<int>(c.fetched_rows), static_cast<int>(c.pages.adopted), static_cast<int>(c.pages.lent),
              static_cast<int>(c.pages.revoked));
  return engine.busy() || engine.answers == 0 || engine.wrong != 0 || c.lost != 0;
}

int main(int argc, char** argv) try {
  std::string const where = argc > 1 ? argv[1] : "host";
#if defined(__CUDACC__)
  if (where == "cuda") return serve(ebb::cuda_space{});
#endif
  if (where == "host") return serve(ebb::serial_space{});
  std::fprintf(stderr, "embed: unknown space '%s', or built without CUDA\n", where.c_str());
  return 2;
} catch (std::exception const& e) {
  std::fprintf(stderr, "embed: %s\n", e.what());
  return 1;
}

#pragma once
// What O01 to O17 need beside engine.hpp: a side stream that a test can hold, poison, and a look at who is named by the addresses of a step.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine.hpp"

namespace ebb::testing {

/// Lanes that are threads of the host take their time: fewer repetitions there.
template <class S>
inline constexpr bool lanes_are_threads = false;
#if !defined(__CUDACC__)
template <int W, int Teams>
inline constexpr bool lanes_are_threads<thread_space<W, Teams>> = true;
#endif

template <class Body>
inline constexpr bool moves_pages = false;
template <policy P>
inline constexpr bool moves_pages<move_body<P>> = true;
template <policy P, int Width>
inline constexpr bool moves_pages<import_body<P, Width>> = true;

/// A space that knows the stream on which pages were moved last: the side stream of the instance, once it imported or copied anything.
template <class S>
class gated_space : public S {
 public:
  explicit gated_space(S const& of) : S{of} {}

  template <class Body>
  void run(typename S::stream on, int items, Body const& body) const {
    if constexpr (moves_pages<Body>) *side_ = on;
    S::run(on, items, body);
  }
  typename S::stream side() const { return side_->value(); }
  /// Waits for what was moved so far.
  void finish_side() const {
    if (side_->has_value()) finish(*this, **side_);
  }

 private:
  std::shared_ptr<std::optional<typename S::stream>> side_ = std::make_shared<std::optional<typename S::stream>>();
};

/// A step without requests, so that decisions make progress, behind everything that was enqueued before.
template <class Engine>
void idle(Engine& e, int steps = 1) {
  for (int i = 0; i < steps; ++i) {
    finish(e.space, e.main);
    e.space.finish_side();
    step const s = e.begin({});
    e.end(s, {});
  }
  finish(e.space, e.main);
  e.space.finish_side();
}

/// Admits a request that may have to wait for frames, and imports its history once they are there.
template <class Engine>
session start_waiting(Engine& e, std::int64_t tokens_max, std::int64_t tokens) {
  session s = e.name(or_throw(e.kv.admit(tokens_max, tokens)), tokens_max);
  for (int i = 0; i < 10 && !e.kv.ready(s.id); ++i) idle(e);
  e.import(s, tokens);
  return s;
}

/// Takes every frame that is promised to nobody, so that all loans end. Waits for it.
template <class Engine>
std::vector<frame_id> take_spare(Engine& e) {
  gauges const g = e.kv.pools();
  take_id const id = or_throw(e.kv.take(g.frames - g.frames_promised));
  for (int i = 0; i < 10; ++i) {
    if (auto frames = e.kv.collect(id)) return *frames;
    idle(e);
  }
  FAIL("frames that were taken do not arrive");
  return {};
}

/// Overwrites frames, in every source, and waits for that.
template <class Engine>
void poison(Engine& e, std::vector<frame_id> const& frames, std::byte value = std::byte{0xA5}) {
  auto const stream = e.space.make_stream();
  for (int s = 0; s < e.kv.local().sources(); ++s) {
    source_view const& v = e.kv.view(e.kv.local().id_of_source(s));
    for (frame_id f : frames)
      e.space.run(stream, 1, fill_body{v.base + std::int64_t{index(f)} * v.layout.stride, v.layout.payload(), value});
  }
  finish(e.space, stream);
}
template <class Engine>
std::vector<frame_id> frames_in(Engine const& e, frame_state state) {
  std::vector<frame_id> frames;
  frame_pool const& pool = e.kv.allocator().book().frames;
  for (int f = 0; f < pool.size(); ++f) {
    if (pool[frame_id{f}].state == state) frames.push_back(frame_id{f});
  }
  return frames;
}
/// Frames of a request's pages, −1 where there is none.
template <class Engine>
std::vector<int> frames_of(Engine const& e, session const& s) {
  std::vector<int> frames;
  for (page_record const& p : e.record(s).pages) frames.push_back(index(p.at.frame));
  return frames;
}
/// Pages of a request outside its tail that are in frames.
template <class Engine>
int lent_pages_of(Engine const& e, session const& s) {
  int n = 0;
  for (int p = 0; p < e.kv.allocator().tail_first(e.record(s)); ++p) n += e.page(s, p).at.frame != frame_id::none;
  return n;
}

/// What is wrong with the addresses of a step, before its end: slots and rows of the batch are not one to one, or a request is sent to
/// another one's frame. Waits for the step.
template <class Engine, class Buffers>
std::string misplaced(Engine& e, std::vector<session*> const& who, Buffers const& b) {
  finish(e.space, e.main);
  auto const& local = e.kv.local();
  for (int g = 0; g < local.groups(); ++g) {
    source_view const& v = e.kv.view(local.id_of_source(local.source_of_set(local.set_of_group(g), 0)));
    std::map<std::int32_t, std::pair<int, std::int32_t>> row_at;
    std::map<std::pair<int, std::int32_t>, std::int32_t> slot_of;
    int const top_k = Engine::width;
    for (int entry = 0; entry < b.all * top_k; ++entry) {
      int const i = e.query_of(entry / top_k).first;
      std::int32_t const a = b.out[static_cast<std::size_t>(g)][0].rows[entry];
      if (a < 0) continue;
      if (i < 0) return "a padded row has an address";
      std::pair const row{i, b.selections[static_cast<std::size_t>(g)][entry]};
      bool const one_to_one = row_at.emplace(a, row).first->second == row && slot_of.emplace(row, a).first->second == a;
      if (!one_to_one) return "address " + std::to_string(a) + ": two rows in one slot, or one row in two";
      bool const own = v.is_staged(a) || e.kv.allocator().book().frames[frame_id{a / v.layout.rows}].slot ==
                                             who[static_cast<std::size_t>(i)]->id.slot;
      if (!own) return "address " + std::to_string(a) + ": in a frame of another request";
    }
  }
  return "";
}

}  // namespace ebb::testing

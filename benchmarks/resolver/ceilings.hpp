#pragma once
/// What the machine can do at most, apart from any cell: one figure each, eager and as graph nodes.

#include <random>

#include "gather.hpp"

namespace bench {

/// Best time of one call over several shapes, both ways.
struct both_ways {
  double eager_us = unknown, graph_us = unknown;
  std::string eager_shape, graph_shape;

  void take(double eager, double graph, std::string const& shape) {
    if (!(eager_us <= eager)) eager_us = eager, eager_shape = shape;
    if (!(graph_us <= graph)) graph_us = graph, graph_shape = shape;
  }
  std::string json(double bytes) const {
    json_object out;
    out.number("eager_us", eager_us).number("graph_us", graph_us);
    if (bytes > 0)
      out.number("bytes", bytes)
          .number("eager_gbs", bytes / eager_us / 1e3)
          .number("graph_gbs", bytes / graph_us / 1e3);
    return out.text("eager_shape", eager_shape).text("graph_shape", graph_shape).str();
  }
};

template <ebb::space S>
class ceilings {
  static constexpr int calls = 20;

 public:
  /// `history`: host memory of `bytes` bytes, named `memory`.
  ceilings(timing<S>& clock, std::byte* history, std::size_t bytes, std::size_t chunk)
      : clock_{clock}, history_{history}, bytes_{bytes}, chunk_{std::min(chunk, bytes / 4)} {
    to_ = clock.space().device_memory(chunk_);
  }

  both_ways empty() {
    both_ways out;
    auto const call = [&](int) { run(1, ebb::empty_body{}); };
    out.take(clock_.eager(calls, call), clock_.as_graph(calls, call), "1 block");
    return out;
  }
  /// The copy engine, contiguous, fresh memory every call.
  both_ways dma() {
    both_ways out;
#if defined(__CUDACC__)
    if constexpr (std::same_as<S, ebb::cuda_space>) {
      auto const call = [&](int c) {
        ebb::check(cudaMemcpyAsync(to_.get(), place(c), chunk_, cudaMemcpyDefault, clock_.on().get()));
      };
      out.take(clock_.eager(calls, call), clock_.as_graph(calls, call), "copy engine");
    }
#endif
    return out;
  }
  /// Multiprocessors, contiguous, fresh memory every call.
  both_ways contiguous() {
    both_ways out;
    for (int blocks : {8, 16, 32, 64, 132}) {
      auto const call = [&](int c) {
        run(blocks, contiguous_body{to_.get(), place(c), static_cast<std::int64_t>(chunk_), blocks});
      };
      out.take(clock_.eager(calls, call), clock_.as_graph(calls, call), std::to_string(blocks) + " blocks");
    }
    return out;
  }
  /// `n` scattered rows of 576 bytes, fresh every call, over the whole memory.
  both_ways scattered(int n) {
    std::vector<fetched_row> rows;
    std::mt19937_64 random{7};
    std::int64_t const all = static_cast<std::int64_t>(bytes_) / 576;
    for (int i = 0; i < calls * n; ++i) {
      std::int64_t const from = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(all)) * 576;
      std::int64_t const to = (i % n) % static_cast<int>(chunk_ / 576) * 576;
      rows.push_back({from, to, 0, 0});
    }
    std::vector<int> const first{0, n};
    auto const list = put(rows);
    auto const ends = put(first);
    both_ways out;
    auto const attempt = [&]<int Rows, int Threads>(int blocks) {
      auto const call = [&](int c) {
        run(blocks, gather_body<576, 0, Rows, Threads>{
                        to_.get(), history_, reinterpret_cast<fetched_row const*>(list.get()) + std::int64_t{c} * n,
                        reinterpret_cast<int const*>(ends.get()), blocks, 0, nullptr});
      };
      out.take(clock_.eager(calls, call), clock_.as_graph(calls, call),
               gather_shape{blocks, false, Threads, Rows, false, 0}.name());
    };
    for (int blocks : {16, 32, 64, 132, 264}) {
      attempt.template operator()<1, 256>(blocks);
      attempt.template operator()<1, 512>(blocks);
      attempt.template operator()<2, 512>(blocks);
      attempt.template operator()<4, 512>(blocks);
    }
    return out;
  }
  int scattered_rows(int wanted) const { return std::min(wanted, static_cast<int>(chunk_ / 576)); }
  /// The table lookup of `batch` requests with 2,048 pages each.
  both_ways lookup(int batch, int top_k) {
    constexpr int pages = 2'048;
    std::vector<ebb::map_entry> map(static_cast<std::size_t>(batch) * pages);
    for (std::size_t i = 0; i < map.size(); ++i) map[i].frame = ebb::frame_id{static_cast<std::int32_t>(i)};
    std::vector<std::int32_t> slots, selection;
    std::mt19937 random{3};
    for (int r = 0; r < batch; ++r) slots.push_back(r);
    for (int i = 0; i < calls * batch * top_k; ++i)
      selection.push_back(static_cast<std::int32_t>(random() % (pages * 64)));
    auto const table = put(map), order = put(slots), selected = put(selection);
    auto const into = clock_.space().device_memory(selection.size() * sizeof(std::int32_t));
    both_ways out;
    auto const attempt = [&]<int Threads>(int blocks) {
      auto const call = [&](int c) {
        std::int64_t const at = std::int64_t{c} * batch * top_k;
        run(blocks * batch, lookup_body<64, Threads>{reinterpret_cast<ebb::map_entry const*>(table.get()), pages,
                                                     reinterpret_cast<std::int32_t const*>(order.get()),
                                                     reinterpret_cast<std::int32_t const*>(selected.get()) + at,
                                                     reinterpret_cast<std::int32_t*>(into.get()) + at, top_k, blocks});
      };
      out.take(clock_.eager(calls, call), clock_.as_graph(calls, call),
               std::to_string(blocks) + " blocks a request, " + std::to_string(Threads) + " threads");
    };
    for (int blocks : {1, 2}) {
      attempt.template operator()<256>(blocks);
      attempt.template operator()<512>(blocks);
      attempt.template operator()<1024>(blocks);
    }
    return out;
  }
  double chunk() const { return static_cast<double>(chunk_); }

 private:
  template <class Body>
  void run(int items, Body const& body) {
    clock_.space().run(clock_.on(), items, body);
  }
  template <class T>
  std::shared_ptr<std::byte> put(std::vector<T> const& v) {
    auto memory = clock_.space().device_memory(v.size() * sizeof(T));
    copy_in(clock_.space(), memory.get(), v.data(), v.size() * sizeof(T));
    return memory;
  }
  /// Another part of the history every call.
  std::byte const* place(int c) {
    std::size_t const parts = bytes_ / chunk_;
    return history_ + static_cast<std::size_t>(c + turn_++ / calls) % parts * chunk_;
  }

  timing<S>& clock_;
  std::byte* history_;
  std::size_t bytes_, chunk_;
  std::shared_ptr<std::byte> to_;
  std::size_t turn_ = 0;
};

/// `link`: figures of the memory that is given; otherwise figures of the GPU alone.
template <ebb::space S>
std::string measure_ceilings(timing<S>& clock, std::byte* history, std::size_t bytes, bool small) {
  ceilings<S> on{clock, history, bytes, small ? std::size_t{1} << 20 : std::size_t{64} << 20};
  json_object out;
  out.raw("empty_kernel", on.empty().json(0));
  out.raw("contiguous_dma", on.dma().json(on.chunk()));
  out.raw("contiguous_gather", on.contiguous().json(on.chunk()));
  for (int rows : {287, 128 * 287}) {
    int const n = on.scattered_rows(small ? rows / 128 + 1 : rows);
    out.raw("gather_" + std::to_string(n) + "_rows", on.scattered(n).json(576.0 * n));
  }
  for (int batch : {1, 32, 128}) {
    if (small && batch > 1) continue;
    out.raw("lookup_batch_" + std::to_string(batch), on.lookup(batch, 2048).json(0));
  }
  out.number("alone_behind_a_sweep_us", clock.alone_us());
  return out.str();
}

}  // namespace bench

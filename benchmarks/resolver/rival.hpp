#pragma once
/// The reference kernel with its memory: it is given the same scripts, the same host rows and the same check.

#include <optional>

#include "reference.hpp"
#include "subject.hpp"

namespace bench {

#if defined(__CUDACC__)
/// Its shared memory exceeds what a kernel may declare, so it has a kernel of its own.
template <int K, int Hot>
__global__ void __launch_bounds__(1024) reference_kernel(__grid_constant__ reference_body<K, Hot> const body) {
  extern __shared__ __align__(16) unsigned char memory[];
  ebb::block_team<1024> const team;
  body(team, static_cast<int>(blockIdx.x), *reinterpret_cast<typename reference_body<K, Hot>::shared*>(memory));
}
template <int K, int Hot>
void run_reference(ebb::cuda_space const&, ebb::cuda_stream on, int items, reference_body<K, Hot> const& body) {
  constexpr int bytes = sizeof(typename reference_body<K, Hot>::shared);
  static bool const allowed = [] {
    ebb::check(cudaFuncSetAttribute(reference_kernel<K, Hot>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    return true;
  }();
  static_cast<void>(allowed);
  reference_kernel<K, Hot><<<items, 1024, bytes, on.get()>>>(body);
  ebb::check(cudaGetLastError());
}
#endif
template <ebb::space S, class Body>
void run_reference(S const& space, typename S::stream on, int items, Body const& body) {
  space.run(on, items, body);
}

/// One reference kernel with its tables and hot buffers, for all requests of a subject. Several queries of a
/// request are as many launches, as its users run it.
template <int K, int Hot, class P, ebb::space S>
class rival {
 public:
  struct result {
    double us = unknown;
    std::uint64_t wrong = 0;
    std::uint64_t checked = 0;
  };

  rival(timing<S>& clock, subject<P, S>& on, setting const& s)
      : clock_{clock}, on_{on}, space_{clock.space()}, layout_{on.view().host_layout} {
    std::size_t const n = static_cast<std::size_t>(s.requests) * Hot;
    arena_ =
        space_.device_memory(n / static_cast<std::size_t>(P::page_tokens) * static_cast<std::size_t>(layout_.stride));
    std::vector<std::int64_t> rows;
    rows.reserve(static_cast<std::size_t>(s.requests) * static_cast<std::size_t>(s.history));
    for (int r = 0; r < s.requests; ++r) {
      auto const of = on.host_rows(r);
      rows.insert(rows.end(), of.begin(), of.end());
    }
    host_rows_ = put(rows);
    history_ = s.history;
    addresses_ = static_cast<std::int64_t>(n);
    std::vector<std::int32_t> slots(n);
    std::iota(slots.begin(), slots.end(), 0);
    slots_ = put(slots);
    std::vector<std::int16_t> order(n);
    for (std::size_t i = 0; i < n; ++i) order[i] = static_cast<std::int16_t>(i % Hot);
    first_order_ = order;
    order_ = put(order);
    tokens_ = space_.device_memory(n * sizeof(std::int32_t));
    results_ = space_.device_memory(sizeof(std::uint64_t));
  }

  /// Clears and warms the tables, then runs the script: checked, timed as one graph, or alone behind sweeps. Requires:
  /// the subject holds the script's selections (`warm` was called with it).
  void checked(script const& s, result& r) {
    warm(s);
    space_.zero(clock_.on(), results_.get(), sizeof(std::uint64_t));
    for (int c = 0; c < s.calls; ++c) {
      for (int q = 0; q < s.queries; ++q) {
        run(s, s.warm + c, q);
        look(s, s.warm + c, q);
      }
    }
    r.wrong += wrong();
    r.checked += static_cast<std::uint64_t>(s.calls) * static_cast<std::uint64_t>(s.entries());
  }
  double timed(script const& s, bool swept) {
    warm(s);
    auto const call = [&](int c) {
      for (int q = 0; q < s.queries; ++q) run(s, s.warm + c, q);
    };
    return swept ? clock_.swept(s.calls, call) : clock_.as_graph(s.calls, call);
  }

 private:
  template <class T>
  std::shared_ptr<std::byte> put(std::vector<T> const& v) {
    auto memory = space_.device_memory(v.size() * sizeof(T));
    copy_in(space_, memory.get(), v.data(), v.size() * sizeof(T));
    return memory;
  }
  void warm(script const& s) {
    std::size_t const n = static_cast<std::size_t>(s.batch) * Hot;
    std::vector<std::int32_t> const empty(n, -1);
    copy_in(space_, tokens_.get(), empty.data(), n * sizeof(std::int32_t));
    copy_in(space_, order_.get(), first_order_.data(), n * sizeof(std::int16_t));
    for (int c = 0; c < s.warm; ++c) {
      for (int q = 0; q < s.queries; ++q) run(s, c, q);
    }
    finish(space_, clock_.on());
  }
  void run(script const& s, int call, int query) {
    reference_body<K, Hot> const body{arena_.get(),
                                      layout_,
                                      on_.view().host,
                                      layout_,
                                      reinterpret_cast<std::int32_t*>(tokens_.get()),
                                      reinterpret_cast<std::int16_t*>(order_.get()),
                                      reinterpret_cast<std::int32_t const*>(slots_.get()),
                                      reinterpret_cast<std::int64_t const*>(host_rows_.get()),
                                      history_,
                                      on_.selection(call) + std::int64_t{query} * K,
                                      on_.out_memory(call) + std::int64_t{query} * K,
                                      std::int64_t{s.queries} * K};
    run_reference(space_, clock_.on(), s.batch, body);
  }
  /// One query of every request.
  void look(script const& s, int call, int query) {
    for (int r = 0; r < (s.queries > 1 ? s.batch : 1); ++r) {
      int const n = s.queries > 1 ? K : s.batch * K;
      std::int64_t const at = (std::int64_t{r} * s.queries + query) * K;
      space_.run(clock_.on(), (n + check_body::rows_per_item - 1) / check_body::rows_per_item,
                 check_body{arena_.get(), layout_, addresses_, on_.selection(call) + at, on_.out_memory(call) + at,
                            owners_of(r, s), K, n, reinterpret_cast<std::uint64_t*>(results_.get())});
    }
  }
  /// Null where the entries' place says whose they are.
  std::int32_t const* owners_of(int request, script const& s) {
    if (s.queries == 1) return nullptr;
    if (owned_ < s.batch) {
      owned_ = s.batch;
      std::vector<std::int32_t> owners;
      for (int r = 0; r < s.batch; ++r) owners.insert(owners.end(), K, r);
      owners_ = put(owners);
    }
    return reinterpret_cast<std::int32_t const*>(owners_.get()) + std::int64_t{request} * K;
  }
  std::uint64_t wrong() {
    finish(space_, clock_.on());
    std::uint64_t n = 0;
    copy_out(space_, &n, results_.get(), sizeof n);
    return n;
  }

  timing<S>& clock_;
  subject<P, S>& on_;
  S space_;
  ebb::page_layout layout_;
  std::int64_t history_ = 0;
  std::int64_t addresses_ = 0;
  int owned_ = 0;
  std::shared_ptr<std::byte> arena_, host_rows_, slots_, order_, tokens_, results_, owners_;
  std::vector<std::int16_t> first_order_;
};

}  // namespace bench

#pragma once
/// How much of the copies hides behind layers: steps with all copies in front, and with copies beside.

#include <functional>

#include "layer.hpp"
#include "shares.hpp"

namespace bench {

/// One step in several arrangements, each a graph. Times are medians; the L2 is swept before each. `first`: the part of
/// the copies that no arrangement can hide, the rows that the first resolve fetches for its own layer.
///
/// copies = (front − front again, with everything there) − first;  hidden = front − beside;  overlap = hidden / copies.
struct overlap {
  double compute_us, hit_us, front_us, beside_us, first_us;
  double demand_us = unknown;  ///< nothing announced: each group fetches what it lacks
  double rows = 0;             ///< copied in a step of `front`
  double copy_us() const { return front_us - hit_us - first_us; }
  double hidden_us() const { return front_us - beside_us; }
};

/// What `measure_overlap` runs on one instance: `next` brings the next step's selections, the others enqueue a step.
template <class P, ebb::space S>
struct arrangement {
  sessions<P, S>& on;
  std::function<void()> next, compute, front, beside, demand, first;
  std::function<void()> check;  ///< of what the last group returned

  overlap measure(int repeats) {
    overlap o{};
    auto const times = [&](std::function<void()> const& step, std::vector<double>* again, double* rows) {
      std::vector<double> us;
      ready(step);
      auto graph = captured(step);
      for (int i = 0; i < repeats; ++i) {
        next();
        ebb::counters const before = on.counts();
        us.push_back(launched(graph));
        ebb::counters const after = on.counts();
        if (rows != nullptr)
          *rows += static_cast<double>(after.fetched_rows + after.prefetched_rows - before.fetched_rows -
                                       before.prefetched_rows) /
                   repeats;
        if (again != nullptr) again->push_back(launched(graph));
      }
      return median(us);
    };
    std::vector<double> hit;
    o.front_us = times(front, &hit, &o.rows);
    o.hit_us = median(hit);
    o.beside_us = times(beside, nullptr, nullptr);
    if (demand) o.demand_us = times(demand, nullptr, nullptr);
    std::vector<double> alone, there, layers_only;
    ready(front);
    for (int i = 0; i < repeats; ++i) {
      next();
      alone.push_back(first_alone());
      whole(front);
      there.push_back(first_alone());
      whole(front);
    }
    o.first_us = std::max(0.0, median(alone) - median(there));
    for (int i = 0; i < repeats; ++i) layers_only.push_back(on.clock().as_graph(1, [&](int) { compute(); }));
    o.compute_us = median(layers_only);
    return o;
  }

 private:
  /// Two steps, not captured, that leave the tables as this arrangement does.
  void ready(std::function<void()> const& step) {
    for (int i = 0; i < 2; ++i) {
      next();
      whole(step);
    }
  }
  void whole(std::function<void()> const& step) {
    on.begin();
    on.addresses();
    step();
    check();
    on.end();
  }
  auto captured(std::function<void()> const& step) {
    on.begin();
    auto graph = on.clock().capture(1, [&](int) {
      on.addresses();
      step();
      on.join();
    });
    on.clock().launch(graph, 1);
    on.end();
    return graph;
  }
  template <class Graph>
  double launched(Graph const& graph) {
    on.begin();
    double const us = on.clock().launch(graph, 1);
    check();
    on.end();
    return us;
  }
  double first_alone() {
    on.begin();
    on.addresses();
    double const us = on.clock().eager(1, [&](int) { first(); });
    on.end();
    return us;
  }
};

inline void report(char const* what, int batch, double layer_us, room r, int row_bytes, overlap const& o,
                   std::uint64_t wrong, std::vector<std::string>& out) {
  double const achieved = o.copy_us() > 0 ? o.hidden_us() / o.copy_us() : unknown;
  std::printf(
      "%-8s batch %2d layer %5.0f us %-6s compute %8.1f hit %8.1f front %8.1f beside %8.1f demand %8.1f first %6.1f "
      "copies %7.1f hidden %7.1f overlap %.3f rows %.0f wrong %llu\n",
      what, batch, layer_us, name_of(r), o.compute_us, o.hit_us, o.front_us, o.beside_us, o.demand_us, o.first_us,
      o.copy_us(), o.hidden_us(), achieved, o.rows, static_cast<unsigned long long>(wrong));
  std::fflush(stdout);
  json_object j;
  j.text("what", what)
      .number("batch", batch)
      .number("layer_us", layer_us)
      .text("room", name_of(r))
      .number("row_bytes", row_bytes)
      .number("compute_us", o.compute_us)
      .number("hit_us", o.hit_us)
      .number("front_us", o.front_us)
      .number("beside_us", o.beside_us)
      .number("demand_us", o.demand_us)
      .number("first_us", o.first_us)
      .number("copy_us", o.copy_us())
      .number("hidden_us", o.hidden_us())
      .number("overlap", achieved)
      .number("rows", o.rows)
      .number("bytes", o.rows * row_bytes)
      .number("wrong", wrong);
  out.push_back(j.str());
}

/// For each batch, length of a layer and room.
template <class P, ebb::space S>
std::uint64_t over_grid(ahead_grid const& grid, sessions<P, S>& on, char const* what, auto make,
                        std::vector<std::string>& out) {
  std::uint64_t const before = on.wrong();
  for (int batch : grid.batches())
    for (double us : grid.layers())
      for (room r : {room::shared, room::full}) {
        on.clear();
        on.shape(batch, 1);
        std::uint64_t const so_far = on.wrong();
        arrangement<P, S> a = make(batch, us, r);
        overlap const o = a.measure(grid.repeats());
        report(what, batch, us, r, P::row.total(), o, on.wrong() - so_far, out);
      }
  return on.wrong() - before;
}

/// Four layers of one group with a source each, 14 % of each selection never used before.
template <ebb::space S>
std::uint64_t measure_replay(timing<S>& clock, layers<S>& model, ahead_grid const& grid,
                             std::vector<std::string>& out) {
  using P = four_sources;
  constexpr int count = sessions<P, S>::sources;  // layers, too
  int const selectable = grid.history() / 2;
  sessions<P, S> on{clock, grid.requests(), selectable, 2 * P::top_k};
  std::unique_ptr<script_writer> writer;
  script now{};
  int at = 0;
  std::vector<recording> const none;
  auto const make = [&](int batch, double us, room r) {
    writer = std::make_unique<script_writer>(
        setting{.row_bytes = P::row.total(), .top_k = P::top_k, .history = selectable, .requests = batch},
        cell{.batch = batch, .miss = 0.14}, selectable, none);
    now = {};
    at = 0;
    auto const layer = [&model, us, r] { model.run(r, us); };
    auto const select = [&] { on.select(0, {now.call(at++), static_cast<std::size_t>(now.entries())}); };
    auto const all = [&on] {
      for (int k = 0; k < count; ++k) on.replay(0, k);
    };
    return arrangement<P, S>{.on = on,
                             .next =
                                 [&, select] {
                                   if (at == now.warm + now.calls) {
                                     now = writer->next();
                                     at = 0;
                                     while (at < now.warm) {
                                       select();
                                       on.begin();
                                       on.addresses();
                                       on.resolve(0);
                                       on.end();
                                     }
                                   }
                                   select();
                                 },
                             .compute =
                                 [layer] {
                                   for (int k = 0; k < count; ++k) layer();
                                 },
                             .front =
                                 [&on, layer, all] {
                                   on.resolve(0);
                                   all();
                                   for (int k = 0; k < count; ++k) layer();
                                 },
                             .beside =
                                 [&on, layer] {
                                   on.resolve(0);
                                   for (int k = 0; k < count; ++k) {
                                     on.replay(0, k);
                                     layer();
                                   }
                                 },
                             .demand = {},
                             .first = [&on] { on.resolve(0); },
                             .check =
                                 [&on] {
                                   for (int k = 0; k < count; ++k) on.check(0, k);
                                 }};
  };
  return over_grid<P>(grid, on, "replay", make, out);
}

/// Five groups of four layers on one source; the pool that the first announces is copied beside its layers.
template <ebb::space S>
std::uint64_t measure_prefetch(timing<S>& clock, layers<S>& model, ahead_grid const& grid,
                               std::vector<std::string>& out) {
  using P = pool_policy;
  constexpr int layers_of_group = 4;
  sessions<P, S> on{clock, grid.requests(), grid.history(), 2 * grid.pool()};
  std::unique_ptr<generated_steps> steps;
  auto const make = [&](int batch, double us, room r) {
    steps = std::make_unique<generated_steps>(batch, 1, grid.pool(), grid.history(), on.groups, P::top_k);
    auto const group = [&model, us, r] {
      for (int k = 0; k < layers_of_group; ++k) model.run(r, us);
    };
    auto const later = [&on, group] {
      for (int g = 1; g < on.groups; ++g) {
        on.resolve(g);
        group();
      }
    };
    return arrangement<P, S>{.on = on,
                             .next = [&] { shares<P, S>::put(on, steps->next()); },
                             .compute =
                                 [&on, group] {
                                   for (int g = 0; g < on.groups; ++g) group();
                                 },
                             .front =
                                 [&on, group, later] {
                                   on.resolve(0);
                                   on.prefetch(1);
                                   on.join();
                                   group();
                                   later();
                                 },
                             .beside =
                                 [&on, group, later] {
                                   on.resolve(0);
                                   on.prefetch(1);
                                   group();
                                   later();
                                 },
                             .demand =
                                 [&on, group, later] {
                                   on.resolve(0);
                                   group();
                                   later();
                                 },
                             .first = [&on] { on.resolve(0); },
                             .check = [&on] { on.check(on.groups - 1, 0); }};
  };
  return over_grid<P>(grid, on, "prefetch", make, out);
}

}  // namespace bench

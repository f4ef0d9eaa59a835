#pragma once
/// Which cells are measured.

#include <algorithm>
#include <vector>

#include "measure.hpp"

namespace bench {

/// A setting and its cells.
struct group_of_cells {
  setting s;
  std::vector<cell> cells;
};

/// The grid: the centre, then one axis at a time around it. `quick`: what tuning needs, in under a minute.
/// `speculation`: several queries whose rows are all missing, different or identical, and recorded ones; each axis has its
/// cell with one query. `tiny`: a few cells of each kind, small, for a machine without a GPU.
inline std::vector<group_of_cells> cells_of_grid(options const& o) {
  std::vector<group_of_cells> out;
  auto const wanted = [&](std::string const& axis) {
    return o.axes.empty() || std::find(o.axes.begin(), o.axes.end(), axis) != o.axes.end();
  };
  auto const add = [&](std::string const& axis, setting s, std::vector<cell> const& cells) {
    if (!wanted(axis)) return;
    s.requests = std::min(s.requests, o.requests);
    group_of_cells group{s, {}};
    for (cell c : cells) {
      bool const cut = c.batch > o.requests;
      if (cut && std::any_of(group.cells.begin(), group.cells.end(), [&](cell const& k) { return k.miss == c.miss; }))
        continue;
      c.axis = axis;
      c.batch = std::min(c.batch, o.requests);
      group.cells.push_back(c);
    }
    out.push_back(group);
  };
  auto const square = [](std::vector<int> const& batches, std::vector<double> const& misses, cell const& like = {}) {
    std::vector<cell> cells;
    for (double miss : misses)
      for (int batch : batches) {
        cell c = like;
        c.batch = batch;
        c.miss = miss;
        cells.push_back(c);
      }
    return cells;
  };
  cell swept;
  swept.swept = true;

  if (o.grid == "tiny") {
    setting s{.top_k = 512, .history = 8'192, .requests = 2};
    add("centre", s, square({1, 2}, {0, 0.14}));
    add("swept", s, square({2}, {0.14}, swept));
    s.pinned = true;
    add("pinned", s, square({2}, {0.14}));
    add("resident", {.top_k = 512, .history = 8'192, .requests = 2, .whole = true},
        square({2}, {0}, {.select = pattern::resident}));
    add("skew", {.top_k = 512, .hot_factor = 4, .history = 16'384, .requests = 2},
        square({2}, {0.14}, {.select = pattern::skew}));
    setting wide{.top_k = 512, .max_queries = 8, .history = 32'768, .requests = 2};
    add("queries", wide, square({2}, {0.14}, {.queries = 8}));
    add("queries", wide, square({2}, {0}, {.queries = 4, .select = pattern::recorded}));
    add("queries", wide, square({2}, {1}, {.queries = 8, .select = pattern::disjoint}));
    add("identical", wide, square({2}, {1}, {.queries = 8}));
    add("rows", {.row_bytes = 584, .history = 16'384, .requests = 2}, square({2}, {0.14}));
    add("rows", {.row_bytes = 288, .history = 16'384, .requests = 2}, square({2}, {0.14}));
    return out;
  }

  std::vector<int> const batches = {1, 8, 32, 64, 128};
  std::vector<double> const misses = {0, 0.01, 0.14, 0.5};
  if (o.grid == "quick") {
    add("centre", {}, square(batches, misses));
    add("swept", {}, square({1, 128}, {0, 0.14}, swept));
    add("centre", {.top_k = 512}, square({1, 32, 128}, {0, 0.14}));
    add("resident", {.history = 32'768, .requests = 128, .whole = true},
        square({1, 32, 128}, {0}, {.select = pattern::resident}));
    add("queries", {.max_queries = 8, .requests = 32}, square({1, 32}, {0.14}, {.queries = 8}));
    return out;
  }

  if (o.grid == "speculation") {
    for (int queries : {1, 2, 4, 8}) {
      setting const wide{.max_queries = 8, .requests = 32};
      add("disjoint", wide, square({1, 8, 32}, {1}, {.queries = queries, .select = pattern::disjoint}));
      add("identical", wide, square({1, 8, 32}, {1}, {.queries = queries}));
      if (!o.gemma.empty())
        add("recorded", wide, square({1, 8, 32}, {0}, {.queries = queries, .select = pattern::gemma}));
      add("recorded", {.top_k = 512, .max_queries = 8, .requests = 32},
          square({1, 8, 32}, {0}, {.queries = queries, .select = pattern::recorded}));
    }
    return out;
  }

  for (bool pinned : {false, true}) {
    for (int top_k : {2048, 512})
      for (int factor : {2, 4})
        add(pinned ? "pinned" : "centre", {.top_k = top_k, .hot_factor = factor, .pinned = pinned},
            square(batches, misses));
    setting s{.pinned = pinned};
    add("swept", s, square({1, 32, 128}, {0, 0.01, 0.14}, swept));
  }
  for (int bytes : {288, 584, 656, 1152})
    add("rows", {.row_bytes = bytes, .requests = bytes > 656 ? 64 : 128}, square({1, 8, 32, 64}, misses));
  for (int history : {8'192, 32'768, 131'072, 524'288, 1'048'576})
    add("history", {.history = history, .requests = 64}, square({1, 64}, {0, 0.14}));
  add("history", {.history = 524'288, .requests = 128}, square({128}, {0, 0.14}));
  add("history", {.history = 524'288, .requests = 128}, square({128}, {0.14}, swept));
  for (int queries : {4, 8}) {
    setting const wide{.max_queries = 8, .requests = 32};
    add("queries", wide, square({1, 8, 32}, {0.01, 0.14}, {.queries = queries}));
    add("queries", wide, square({1, 8, 32}, {1}, {.queries = queries, .select = pattern::disjoint}));
    if (!o.gemma.empty())
      add("recorded", wide, square({1, 8, 32}, {0}, {.queries = queries, .select = pattern::gemma}));
    add("recorded", {.top_k = 512, .max_queries = 8, .requests = 32},
        square({1, 8, 32}, {0}, {.queries = queries, .select = pattern::recorded}));
  }
  // One query, to compare eight identical ones with.
  add("queries", {.max_queries = 8, .requests = 32}, square({1, 8, 32}, {0.01, 0.14}));
  add("recorded", {.top_k = 512}, square(batches, {0}, {.select = pattern::recorded}));
  if (!o.gemma.empty()) add("recorded", {}, square(batches, {0}, {.select = pattern::gemma}));
  add("skew", {}, square({8, 32, 64}, {0.01, 0.14}, {.select = pattern::skew}));
  add("resident", {.whole = true}, square(batches, {0}, {.select = pattern::resident}));
  add("resident", {.top_k = 512, .whole = true}, square(batches, {0}, {.select = pattern::resident}));
  return out;
}

/// Groups of one setting together, so that each instance is made once.
inline std::vector<group_of_cells> merged(std::vector<group_of_cells> groups) {
  std::vector<group_of_cells> out;
  for (group_of_cells& g : groups) {
    auto const same = [&](group_of_cells const& o) {
      return o.s.row_bytes == g.s.row_bytes && o.s.top_k == g.s.top_k && o.s.max_queries == g.s.max_queries &&
             o.s.hot_factor == g.s.hot_factor && o.s.history == g.s.history && o.s.requests == g.s.requests &&
             o.s.pinned == g.s.pinned && o.s.whole == g.s.whole;
    };
    auto const at = std::find_if(out.begin(), out.end(), same);
    if (at == out.end()) {
      out.push_back(std::move(g));
    } else {
      at->cells.insert(at->cells.end(), g.cells.begin(), g.cells.end());
    }
  }
  return out;
}

}  // namespace bench

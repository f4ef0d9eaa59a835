#pragma once
/// One point of the grid, and what was measured there.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "json.hpp"

namespace bench {

/// Where a call's selections come from.
enum class pattern {
  fresh,     ///< a share `miss` of each selection is rows never used before; all queries select alike
  disjoint,  ///< all rows of all queries differ, none was used before
  skew,      ///< fresh, with all misses in the first request of the batch
  recorded,  ///< of a real decoder, stretched to the history; queries are consecutive steps
  gemma,     ///< the same, from the file of `--gemma`
  resident   ///< everything on the GPU: the direct path
};
inline char const* name_of(pattern p) {
  constexpr char const* names[] = {"fresh", "disjoint", "skew", "recorded", "gemma", "resident"};
  return names[static_cast<int>(p)];
}

struct cell {
  std::string axis = "centre";
  int batch = 1;
  double miss = 0;  ///< asked for; of each request, with `skew` of the whole batch
  int queries = 1;
  pattern select = pattern::fresh;
  bool swept = false;
};

inline constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

struct measured {
  double us = unknown;  ///< one resolve, as a graph node; median of the passes
  double us_least = unknown;
  double reference_us = unknown;  ///< the reference kernel, one launch a query
  double floor_us = unknown;      ///< the best gather of the same rows; of the direct path: the bare table lookup
  std::string floor_grid;         ///< which of the grid it was
  double fetched_rows = 0;        ///< of one resolve, by the library's counter
  double staged_rows = 0;
  double found_rows = 0;  ///< the same, found by comparing addresses; must be equal
  std::int64_t row_bytes = 0;
  std::uint64_t wrong = 0;  ///< returned rows with a wrong byte, reference and gather included
  std::uint64_t checked = 0;
  int calls = 0;
  std::vector<double> passes;  ///< us of each
};

/// A point of the grid that all cells of one instance share.
struct setting {
  int row_bytes = 576;
  int top_k = 2048;
  int max_queries = 1;
  int hot_factor = 2;
  int history = 131'072;
  int requests = 128;
  bool pinned = false;
  bool whole = false;

  int hot() const { return hot_factor * top_k; }
};

inline std::string to_json(setting const& s, cell const& c, measured const& m) {
  double const picked = static_cast<double>(c.batch) * c.queries * s.top_k;
  bool const asked = c.select == pattern::fresh || c.select == pattern::skew || c.select == pattern::resident;
  json_object out;
  out.text("axis", c.axis)
      .text("selection", name_of(c.select))
      .number("batch", c.batch)
      .number("miss", asked ? c.miss : std::round(1e4 * m.fetched_rows / picked) / 1e4)
      .number("top_k", s.top_k)
      .number("hot", s.hot())
      .number("row_bytes", s.row_bytes)
      .number("queries", c.queries)
      .number("history", s.history)
      .text("memory", s.pinned ? "pinned" : "managed")
      .flag("swept", c.swept)
      .flag("resident", c.select == pattern::resident)
      .number("us", m.us)
      .number("reference_us", m.reference_us)
      .number("floor_us", m.floor_us)
      .number("bytes", m.fetched_rows * static_cast<double>(m.row_bytes))
      .number("wrong", m.wrong)
      .number("checked", m.checked)
      .number("fetched_rows", m.fetched_rows)
      .number("found_rows", m.found_rows)
      .number("staged_rows", m.staged_rows)
      .number("us_least", m.us_least)
      .text("floor_grid", m.floor_grid)
      .number("calls", m.calls);
  std::string list;
  for (double us : m.passes) list += (list.empty() ? "" : ", ") + std::to_string(us);
  return out.raw("passes_us", "[" + list + "]").str();
}

}  // namespace bench

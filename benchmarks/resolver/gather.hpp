#pragma once
/// The ceilings: rows gathered from given addresses, contiguous copies, and a bare page-table lookup.

#include <ebb/ids.hpp>
#include <ebb/team.hpp>

#include <cstdint>
#include <optional>

#include "subject.hpp"

namespace bench {

/// Copies rows from given places to given places. Its blocks share out one list of all rows, or `blocks` blocks each
/// list of a request's; a warp takes `Rows` neighbours of the list at a time, all loads before the first store. What
/// rows have at the page end is moved by warps of their own, one lane a row, so that no warp waits twice for a row. At
/// most `limit` blocks copy at once (0: no limit).
template <int InRow, int PageEnd, int Rows, int Threads>
struct gather_body {
  static constexpr int threads = Threads;
  static constexpr int parts = InRow / 16;
  static constexpr int end_width = PageEnd == 0 ? 16 : ebb::copy_width(PageEnd);
  static_assert(InRow % 16 == 0);

  std::byte* to;
  std::byte const* from;
  fetched_row const* rows;
  int const* first;  ///< of each list; first[lists] is the end
  int blocks;        ///< of a list
  int limit;
  std::uint32_t* turnstile;  ///< two words: blocks that came, blocks that left; never reset

  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    constexpr int lanes = T::width < 32 ? T::width : 32;
    constexpr int warps = T::width / lanes;
    int const list = item / blocks;
    int const begin = first[list], n = first[list + 1] - begin;
    int const lane = t.rank() % lanes;
    int const step = warps * blocks;
    int const units = (n + Rows - 1) / Rows;
    int const end_units = PageEnd == 0 ? 0 : (n + lanes - 1) / lanes;
    if (limit > 0) {
      if (t.rank() == 0) {
        std::uint32_t const ticket = t.add(turnstile, std::uint32_t{1});
        while (static_cast<int>(ticket - t.load(turnstile + 1)) >= limit) {
        }
      }
      t.sync();
    }
    for (int u = item % blocks * warps + t.rank() / lanes; u < units + end_units; u += step) {
      if (u < units) {
        copy_rows<lanes>(t, rows + begin + u * Rows, n - u * Rows < Rows ? n - u * Rows : Rows, lane);
      } else if constexpr (PageEnd > 0) {
        int const i = (u - units) * lanes + lane;
        if (i < n) {
          fetched_row const r = rows[begin + i];
          for (int k = 0; k < PageEnd; k += end_width)
            t.template copy<end_width>(to + r.to_end + k, from + r.from_end + k);
        }
      }
    }
    if (limit > 0) {
      t.sync();
      if (t.rank() == 0) t.add(turnstile + 1, std::uint32_t{1});
    }
  }

 private:
  template <int Lanes, class T>
  EBB_FN void copy_rows(T const& t, fetched_row const* list, int n, int lane) const {
    constexpr int pieces = (Rows * parts + Lanes - 1) / Lanes;
    std::byte* into[pieces] = {};
    std::byte const* out_of[pieces] = {};
    for (int k = 0; k < pieces; ++k) {
      int const piece = k * Lanes + lane;
      if (piece >= n * parts) continue;
      into[k] = to + list[piece / parts].to + piece % parts * 16;
      out_of[k] = from + list[piece / parts].from + piece % parts * 16;
    }
    t.template copy<16>(into, out_of);
  }
};

/// Reads each page's place and writes the address: what no resolver of paged rows can do without.
template <int PageTokens, int Threads>
struct lookup_body {
  static constexpr int threads = Threads;
  ebb::map_entry const* map;
  int pages;
  std::int32_t const* slots;
  std::int32_t const* selection;
  std::int32_t* out;
  int per_request;
  int blocks;  ///< of a request

  /// Four positions a lane, all of their loads before the first store.
  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    constexpr int in_flight = 4;
    int const r = item / blocks;
    ebb::map_entry const* const entries = map + std::int64_t{slots[r]} * pages;
    std::int32_t const* const from = selection + std::int64_t{r} * per_request;
    std::int32_t* const to = out + std::int64_t{r} * per_request;
    int const step = blocks * T::width;
    for (int first = item % blocks * T::width + t.rank(); first < per_request; first += in_flight * step) {
      std::int32_t position[in_flight], address[in_flight];
      for (int k = 0; k < in_flight; ++k) position[k] = first + k * step < per_request ? from[first + k * step] : -1;
      for (int k = 0; k < in_flight; ++k) {
        ebb::frame_id const frame = position[k] < 0 ? ebb::frame_id::none : entries[position[k] / PageTokens].frame;
        address[k] = frame == ebb::frame_id::none ? -1 : ebb::index(frame) * PageTokens + position[k] % PageTokens;
      }
      for (int k = 0; k < in_flight; ++k)
        if (first + k * step < per_request) to[first + k * step] = address[k];
    }
  }
};

/// Copies one contiguous range, four pieces of 16 bytes in flight a lane.
struct contiguous_body {
  static constexpr int threads = 512;
  std::byte* to;
  std::byte const* from;
  std::int64_t bytes;
  int blocks;

  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    std::int64_t const step = std::int64_t{blocks} * T::width * 16;
    for (std::int64_t at = (std::int64_t{item} * T::width + t.rank()) * 16; at < bytes; at += 4 * step) {
      std::byte* into[4] = {};
      std::byte const* out_of[4] = {};
      for (int k = 0; k < 4; ++k) {
        if (at + k * step >= bytes) continue;
        into[k] = to + at + k * step;
        out_of[k] = from + at + k * step;
      }
      t.template copy<16>(into, out_of);
    }
  }
};

/// One way to gather.
struct gather_shape {
  int blocks;   ///< with `split` of each request, else in all
  bool split;   ///< a list for each request
  int threads;  ///< 256 or 512
  int rows;     ///< in flight a warp
  bool sorted;  ///< by host address
  int limit;

  std::string name() const {
    return std::to_string(blocks) + (split ? " blocks a request, " : " blocks, ") + std::to_string(threads) +
           " threads, " + std::to_string(rows) + (rows == 1 ? " row" : " rows") + " in flight a warp" +
           (sorted ? ", in host order" : "") + (limit > 0 ? ", at most " + std::to_string(limit) + " blocks" : "");
  }
};

/// `thorough`: all of it; else what was best most often.
inline std::vector<gather_shape> gather_grid(int batch, bool pinned, bool thorough) {
  std::vector<gather_shape> out;
  std::vector<int> const flat = thorough ? std::vector{8, 16, 32, 64, 132, 264, 528} : std::vector{32, 64, 132, 264};
  for (int blocks : flat)
    for (int threads : {256, 512})
      for (int rows : {1, 2, 4}) {
        if (!thorough && rows == 4 && threads == 256) continue;
        out.push_back({blocks, false, threads, rows, false, 0});
        if (thorough || pinned) out.push_back({blocks, false, threads, rows, true, 0});
      }
  for (int blocks : {1, 2, 4, 8}) {
    if (blocks * batch > 528 || (!thorough && blocks == 4)) continue;
    for (int rows : {1, 2, 4}) {
      if (!thorough && rows == 1) continue;
      out.push_back({blocks, true, 512, rows, false, 0});
      if (thorough || pinned) out.push_back({blocks, true, 512, rows, true, 0});
      if (pinned && batch > 16 && blocks == 1) out.push_back({blocks, true, 512, rows, true, 16});
      if (pinned && thorough && batch > 32 && blocks == 1) out.push_back({blocks, true, 512, rows, true, 32});
    }
  }
  return out;
}

/// The best gather of exactly what a cell's calls fetched.
template <class P, ebb::space S>
class gather {
 public:
  struct result {
    double us = unknown;
    std::string grid;
    std::uint64_t wrong = 0;
  };

  /// Tries the whole grid once, with five calls, then its best four three times each, with all. Effects: overwrites rows in the hot rows of the
  /// requests, with themselves. The best one's last call is checked.
  static result best(timing<S>& clock, subject<P, S>& on, script const& s, std::vector<fetched_call> const& calls,
                     bool pinned, bool thorough, bool swept) {
    gather g{clock, on, s, calls};
    if (g.rows_ == 0) return {swept ? 0 : clock.empty_us(), "an empty kernel", 0};
    std::vector<std::pair<double, gather_shape>> tried;
    g.used_ = std::min<std::size_t>(g.used_, 5);
    for (gather_shape const& shape : gather_grid(s.batch, pinned, thorough))
      tried.push_back({g.time(shape, false), shape});
    g.used_ = calls.size();
    std::sort(tried.begin(), tried.end(), [](auto const& a, auto const& b) { return a.first < b.first; });
    tried.resize(std::min<std::size_t>(tried.size(), 4));
    for (auto& [us, shape] : tried) us = median({g.time(shape, swept), g.time(shape, swept), g.time(shape, swept)});
    auto const least =
        std::min_element(tried.begin(), tried.end(), [](auto const& a, auto const& b) { return a.first < b.first; });
    on.poison();
    g.time(least->second, false);
    return {least->first, least->second.name(), on.check_rows(calls.back())};
  }

 private:
  gather(timing<S>& clock, subject<P, S>& on, script const& s, std::vector<fetched_call> const& calls)
      : clock_{clock}, on_{on}, s_{s}, calls_{calls}, used_{calls.size()} {
    for (fetched_call const& c : calls) {
      at_.push_back(rows_);
      rows_ += static_cast<std::int64_t>(c.rows.size());
    }
    for (bool sorted : {false, true}) {
      std::vector<fetched_row> all;
      for (fetched_call const& c : calls) {
        auto rows = c.rows;
        for (int r = 0; sorted && r < s.batch; ++r)
          std::sort(rows.begin() + c.first[static_cast<std::size_t>(r)],
                    rows.begin() + c.first[static_cast<std::size_t>(r) + 1],
                    [](auto const& a, auto const& b) { return a.from < b.from; });
        all.insert(all.end(), rows.begin(), rows.end());
      }
      lists_[sorted] = put(all);
    }
    std::vector<int> split, whole;
    for (fetched_call const& c : calls) {
      split.insert(split.end(), c.first.begin(), c.first.end());
      whole.insert(whole.end(), {0, c.first.back()});
    }
    split_ = put(split);
    whole_ = put(whole);
    turnstile_ = clock.space().device_memory(2 * sizeof(std::uint32_t));
  }
  template <class T>
  std::shared_ptr<std::byte> put(std::vector<T> const& v) {
    auto memory = clock_.space().device_memory(std::max<std::size_t>(1, v.size()) * sizeof(T));
    if (!v.empty()) copy_in(clock_.space(), memory.get(), v.data(), v.size() * sizeof(T));
    return memory;
  }

  double time(gather_shape const& shape, bool swept) {
    if (shape.threads == 256) return time_as<256>(shape, swept);
    return time_as<512>(shape, swept);
  }
  template <int Threads>
  double time_as(gather_shape const& shape, bool swept) {
    switch (shape.rows) {
      case 1:
        return time_body<1, Threads>(shape, swept);
      case 2:
        return time_body<2, Threads>(shape, swept);
      default:
        return time_body<4, Threads>(shape, swept);
    }
  }
  template <int Rows, int Threads>
  double time_body(gather_shape const& shape, bool swept) {
    auto const call = [&](int c) {
      int const* const lists = reinterpret_cast<int const*>((shape.split ? split_ : whole_).get());
      clock_.space().run(
          clock_.on(), shape.split ? shape.blocks * s_.batch : shape.blocks,
          gather_body<P::row.in_row, P::row.at_page_end, Rows, Threads>{
              on_.view().base, on_.view().host,
              reinterpret_cast<fetched_row const*>(lists_[shape.sorted].get()) + at_[static_cast<std::size_t>(c)],
              lists + c * (shape.split ? s_.batch + 1 : 2), shape.blocks, shape.limit,
              reinterpret_cast<std::uint32_t*>(turnstile_.get())});
    };
    int const calls = static_cast<int>(used_);
    return swept ? clock_.swept(calls, call) : clock_.as_graph(calls, call);
  }

  timing<S>& clock_;
  subject<P, S>& on_;
  script const& s_;
  std::vector<fetched_call> const& calls_;
  std::size_t used_;  ///< calls that are timed
  std::int64_t rows_ = 0;
  std::vector<std::int64_t> at_;  ///< where each call's rows start
  std::shared_ptr<std::byte> lists_[2], split_, whole_, turnstile_;
};

/// The bare lookup of a cell's calls, the best of a few shapes; microseconds of one call.
template <class P, ebb::space S>
typename gather<P, S>::result best_lookup(timing<S>& clock, subject<P, S>& on, script const& s, bool swept) {
  std::vector<std::int32_t> slots;
  for (int r = 0; r < s.batch; ++r) slots.push_back(on.slot(r));
  auto const place = clock.space().device_memory(slots.size() * sizeof(std::int32_t));
  copy_in(clock.space(), place.get(), slots.data(), slots.size() * sizeof(std::int32_t));
  typename gather<P, S>::result best;
  auto const attempt = [&]<int Threads>(int blocks) {
    auto const call = [&](int c) {
      clock.space().run(clock.on(), blocks * s.batch,
                        lookup_body<P::page_tokens, Threads>{
                            on.map(), on.map_pages(), reinterpret_cast<std::int32_t const*>(place.get()),
                            on.selection(s.warm + c), on.out_memory(s.warm + c), s.queries * s.k, blocks});
    };
    auto const once = [&] { return swept ? clock.swept(s.calls, call) : clock.as_graph(s.calls, call); };
    double const us = median({once(), once(), once()});
    if (best.us <= us) return;
    best = {us, std::to_string(blocks) + " blocks a request, " + std::to_string(Threads) + " threads", 0};
  };
  for (int blocks : {1, 2, 4}) {
    if (blocks * s.batch > 264) continue;
    attempt.template operator()<256>(blocks);
    attempt.template operator()<512>(blocks);
    attempt.template operator()<1024>(blocks);
  }
  best.wrong = on.check_last();
  return best;
}

}  // namespace bench

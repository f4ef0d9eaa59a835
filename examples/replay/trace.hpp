#pragma once
/// Sessions of the Weka trace: conversations whose calls share a prefix.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "text.hpp"

namespace replay {

/// One model call of a session.
struct call {
  std::int64_t in_tokens;   ///< history it starts with
  std::int64_t out_tokens;  ///< tokens it decodes
  std::int64_t prefix;      ///< tokens that it shares with the call before: lcp_blocks · block_size
  double at;                ///< seconds since the session began
  double pause;             ///< seconds from the end of the call before to this one
};

struct session {
  std::string name;
  std::vector<call> calls;
};

inline constexpr char const* trace_header =
    "trace,thread,idx,t_s,in_tokens,out_tokens,api_time_s,think_time_s,lcp_blocks,n_blocks,block_size,tool_tokens,"
    "system_tokens";

/// Reads the Weka trace, `.csv` or `.csv.gz`: one session per (trace, thread), in file order.
/// Throws input_error at the first line that is not as described, or when the calls of a session do not follow each
/// other.
inline std::vector<session> read_sessions(std::string const& path) {
  text_file file{path};
  std::string_view line;
  if (!file.next(line) || line != trace_header) file.fail(std::string{"expected the header '"} + trace_header + "'");
  std::vector<session> sessions;
  std::map<std::string, std::size_t> where;
  constexpr std::int64_t most = 1LL << 31;
  while (file.next(line)) {
    auto const f = split(line, ',');
    if (f.size() != 13) file.fail("expected 13 comma-separated fields, found " + std::to_string(f.size()));
    if (f[0].empty() || f[1].empty()) file.fail("expected trace and thread to be named, found " + quoted(line));
    auto const [at, fresh] = where.try_emplace(std::string{f[0]} + "/" + std::string{f[1]}, sessions.size());
    if (fresh) sessions.push_back({at->first, {}});
    auto& calls = sessions[at->second].calls;
    auto const index = file.number<std::int64_t>("idx", f[2], 0, most);
    if (index != static_cast<std::int64_t>(calls.size())) {
      file.fail("expected idx " + std::to_string(calls.size()) + " of session " + at->first + ", found " +
                quoted(f[2]));
    }
    auto const block = file.number<std::int64_t>("block_size", f[10], 1, most);
    auto const blocks = file.number<std::int64_t>("n_blocks", f[9], 0, most / block);
    auto const common = file.number<std::int64_t>("lcp_blocks", f[8], 0, blocks);
    double const since = calls.empty() ? 0.0 : calls.back().at;
    double const at_s = file.number<double>("t_s", f[3], since, 1e12);
    call const c{file.number<std::int64_t>("in_tokens", f[4], std::max<std::int64_t>(1, blocks * block), most),
                 file.number<std::int64_t>("out_tokens", f[5], 0, most), common * block, at_s,
                 f[7].empty() ? at_s - since : file.number<double>("think_time_s", f[7], 0.0, 1e12)};
    auto const before = calls.empty() ? 0 : calls.back().in_tokens + calls.back().out_tokens;
    if (c.prefix > before) {
      file.fail("expected lcp_blocks to be at most " + std::to_string(before / block) +
                ", what the call before left, found " + quoted(f[8]));
    }
    calls.push_back(c);
  }
  if (sessions.empty()) file.fail("expected at least one call after the header");
  return sessions;
}

}  // namespace replay

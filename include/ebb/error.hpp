#pragma once
/// What callers are told: mistakes as exceptions with name, value and range; shortages as results with numbers.

#include <ebb/config.hpp>

#include <cuda/std/expected>

#include <stdexcept>
#include <string>

namespace ebb {

/// The pools a call can run short of. `tokens`: longer than `max_tokens`.
enum class pool { requests, frames, host_pages, tokens, draft_rings };

constexpr char const* name(pool p) {
  switch (p) {
    case pool::requests:
      return "requests";
    case pool::frames:
      return "frames";
    case pool::host_pages:
      return "host pages";
    case pool::draft_rings:
      return "draft rings";
    default:
      return "tokens";
  }
}

/// Not enough of `pool`: what the call wanted, and what is promised to nobody else, loans included; where it can never
/// fit, all there is. `revocable`: frames that are lent or being filled.
struct shortage {
  ebb::pool pool;
  long long wanted;
  long long free;
  long long revocable;
  bool ever;  ///< false: it can never fit, waiting is in vain

  std::string message() const {
    return std::string{"not enough "} + name(pool) + ": wanted " + std::to_string(wanted) + ", free " +
           std::to_string(free) + ", revocable " + std::to_string(revocable) + (ever ? "" : " (can never fit)");
  }
};

template <class T>
using outcome = cuda::std::expected<T, shortage>;
using refused = cuda::std::unexpected<shortage>;

/// The throwing twin: the value, or std::runtime_error with the shortage's message.
template <class T>
T or_throw(outcome<T> const& result) {
  if (!result) throw std::runtime_error(result.error().message());
  return *result;
}

/// A step cannot be begun: the space refused copies that would free or fill a frame. The call may be repeated.
struct frames_refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline std::string text(std::string const& s) { return s; }
inline std::string text(char const* s) { return s; }
inline std::string text(long long n) { return std::to_string(n); }

/// Throws std::invalid_argument "ARGUMENT is VALUE; legal: RANGE" unless `legal`. The range may be given in parts, texts and numbers, which are
/// put together only then.
template <class Value, class... Parts>
void require(bool legal, char const* argument, Value const& value, Parts const&... range) {
  if (legal) [[likely]]
    return;
  throw std::invalid_argument(std::string{argument} + " is " + text(value) + "; legal: " + (text(range) + ...));
}

}  // namespace ebb

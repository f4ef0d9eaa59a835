#pragma once
// Sequences of one policy after another: runs, counts, and what a failing one leaves behind.

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "sequences.hpp"
#include "shrink.hpp"

namespace ebb::testing {

inline long long number_from(char const* variable, long long otherwise) {
  char const* const text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? otherwise : std::atoll(text);
}

/// Runs the operations; what happened goes into `out`, and each call in words to stdout if `tell`.
template <policy P, class S>
void run_operations(setting how, std::vector<operation> const& list, report& out, bool tell = false) {
  std::string doing;
  try {
    trial<P, S> t{how};
    for (std::size_t i = 0; i <= list.size(); ++i) {
      out.at = static_cast<int>(i);
      try {
        i < list.size() ? t.perform(list[i]) : t.finish_up();
      } catch (...) {
        doing = t.note();
        if (tell) std::printf("%s", t.books().c_str()), std::fflush(stdout);
        throw;
      }
      if (tell) std::printf("  %4zu %s\n", i, t.note().c_str()), std::fflush(stdout);
    }
    int n = 0;
    for (auto const& [what, number] : t.totals()) out.totals[n++] = number;
  } catch (std::exception const& e) {
    std::snprintf(out.message, sizeof out.message, "%s [in: %s]", e.what(), doing.c_str());
  }
}

/// One sequence; prints and shrinks a failing one. True if all was well.
template <policy P, class S>
bool run_sequence(char const* name, setting how, int operations, bool alone, unsigned long long (&totals)[40]) {
  auto const list = random_operations(how.seed, operations, how.deferred);
  auto const run = [&](std::vector<operation> const& some) {
    if (alone) return isolated([&](report& r) { run_operations<P, S>(how, some, r); }, 120, totals);
    report r{};
    run_operations<P, S>(how, some, r);
    for (int i = 0; i < 40; ++i) totals[i] += r.totals[i];
    return verdict{r.message, r.at};
  };
  verdict const v = run(list);
  if (v.message.empty()) return true;
  std::printf("%s, seed %llu%s, operation %d: %s\n", name, static_cast<unsigned long long>(how.seed),
              how.deferred ? " (deferred)" : "", v.at, v.message.c_str());
  std::fflush(stdout);
  if (number_from("EBB_RANDOM_SHRINK", 1) == 0) return false;
  std::vector<operation> shorter(
      list.begin(), list.begin() + std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(list.size()), v.at + 1));
  if (run(shorter).message.empty()) shorter = list;
  // Another fault on the way is not followed: it has a sequence of its own.
  auto const kind = [](std::string const& message) { return message.substr(0, message.find_first_of(":0123456789")); };
  shorter = shrink(shorter, [&](auto const& some) { return kind(run(some).message) == kind(v.message); });
  std::printf("shortest failing list, %zu operations:\n", shorter.size());
  std::fflush(stdout);
  auto const last = isolated([&](report& r) { run_operations<P, S>(how, shorter, r, true); }, 120);
  std::printf("  %4d %s\nagain: EBB_RANDOM_ONLY=%llu EBB_RANDOM_LIST='", last.at, last.message.c_str(),
              static_cast<unsigned long long>(how.seed));
  for (auto const& op : shorter) std::printf("%d:%u ", static_cast<int>(op.what), op.seed);
  std::printf("'\n");
  std::fflush(stdout);
  return false;
}

/// `operations` in all, in sequences of `each`, half of them with streams that are advanced at random. True if all was well.
template <policy P, class S>
bool run_policy(char const* name, long long operations, int each = 4'000, bool alone = true) {
  auto const seed = static_cast<std::uint64_t>(number_from("EBB_RANDOM_SEED", 1));
  long long const only = number_from("EBB_RANDOM_ONLY", -1);  // the seed of one sequence, as a failure printed it
  unsigned long long totals[40] = {};
  bool well = true;
  long long done = 0;
  if (char const* const text = std::getenv("EBB_RANDOM_LIST"); text != nullptr && only >= 0) {
    std::vector<operation> list;
    std::istringstream in{text};
    char colon = 0;
    unsigned seed_of = 0;
    for (int what = 0; in >> what >> colon >> seed_of;) list.push_back({static_cast<call>(what), seed_of});
    report r{};
    run_operations<P, S>({static_cast<std::uint64_t>(only), only % 2 == 1}, list, r, true);
    std::printf("%s: operation %d: %s\n", name, r.at, r.message);
    return r.message[0] == '\0';
  }
  for (std::uint64_t i = 0; done < operations; ++i) {
    int const n = static_cast<int>(std::min<long long>(each, operations - done));
    done += n;
    std::uint64_t own = mixed(seed * 1'000'003 + i) >> 32;
    if (only >= 0) own = static_cast<std::uint64_t>(only);
    well &= run_sequence<P, S>(name, {own, own % 2 == 1}, n, alone, totals);
    if (only >= 0 || !well) break;
  }
  std::printf("%s: %lld operations", name, done);
  int n = 0;
  for (auto const& [what, number] : trial<P, S>{setting{}}.totals()) std::printf(", %llu %s", totals[n++], what);
  std::printf("\n");
  std::fflush(stdout);
  return well;
}

}  // namespace ebb::testing

#pragma once
// Runs a sequence of operations in a process of its own, so that a crash or a hang is a result, and shortens one that fails.

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace ebb::testing {

/// What became of a sequence: empty message = all well.
struct verdict {
  std::string message{};
  int at = -1;  ///< the operation that failed
};

/// What a child reports while it runs; shared with its parent.
struct report {
  int at;
  unsigned long long totals[40];  ///< whatever `run` counts
  char message[4000];
};

/// Calls `run(report&)` in a child process, for `seconds` at most. `run` leaves a message where something was wrong.
template <class Run>
verdict isolated(Run run, unsigned seconds, unsigned long long* totals = nullptr) {
  auto* const shared =
      static_cast<report*>(mmap(nullptr, sizeof(report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED) return {"mmap failed", -1};
  std::fflush(nullptr);
  pid_t const child = fork();
  if (child == 0) {
    for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(s, SIG_DFL);
    alarm(seconds);
    run(*shared);
    _exit(shared->message[0] == '\0' ? 0 : 1);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
  }
  verdict v;
  if (shared->message[0] != '\0') v.message = shared->message;
  if (v.message.empty() && WIFSIGNALED(status)) {
    v.message =
        WTERMSIG(status) == SIGALRM ? "does not end" : std::string{"ended by signal "} + strsignal(WTERMSIG(status));
  } else if (v.message.empty() && WEXITSTATUS(status) != 0) {
    v.message = "ended with status " + std::to_string(WEXITSTATUS(status));
  }
  v.at = shared->at;
  for (int i = 0; totals != nullptr && i < 40; ++i) totals[i] += shared->totals[i];
  munmap(shared, sizeof(report));
  return v;
}

/// The shortest list that still fails, by delta debugging. `fails(list)` tells; `tries`: how often it may be asked.
/// Source: Zeller, Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28 (2002).
template <class T, class Fails>
std::vector<T> shrink(std::vector<T> list, Fails fails, int tries = 2'000) {
  std::size_t piece = (list.size() + 1) / 2;
  while (!list.empty()) {
    bool shorter = false;
    for (std::size_t at = 0; at < list.size() && tries > 0;) {
      std::size_t const end = std::min(list.size(), at + piece);
      std::vector<T> without(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(at));
      without.insert(without.end(), list.begin() + static_cast<std::ptrdiff_t>(end), list.end());
      --tries;
      if (fails(without)) {
        list = std::move(without);
        shorter = true;
      } else {
        at = end;
      }
    }
    if (tries <= 0 || (piece == 1 && !shorter)) break;
    if (!shorter) piece = (piece + 1) / 2;
  }
  return list;
}

}  // namespace ebb::testing

#pragma once
/// Other programs, started without a shell.

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

extern char** environ;

namespace replay {

struct file_closer {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using file_pointer = std::unique_ptr<std::FILE, file_closer>;

/// A started program. The destructor waits for it.
class process {
 public:
  process() = default;
  /// Starts `arguments[0]`, found in PATH. With `output` its standard output can be read there and its messages are
  /// dropped.
  explicit process(std::vector<std::string> const& arguments, file_pointer* output = nullptr) {
    std::vector<char*> argv;
    for (auto const& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    int ends[2] = {-1, -1};
    if (output != nullptr && pipe2(ends, O_CLOEXEC) == 0) {
      posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
      posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    }
    if (posix_spawnp(&id_, argv[0], &actions, nullptr, argv.data(), environ) != 0) id_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    if (ends[1] >= 0) close(ends[1]);
    if (ends[0] >= 0) output->reset(fdopen(ends[0], "rb"));
  }
  process(process&& other) noexcept : id_{std::exchange(other.id_, -1)} {}
  process& operator=(process&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~process() { wait(); }

  /// Waits until it has ended; true if it was started and succeeded.
  bool wait() {
    if (id_ <= 0) return false;
    int status = 0;
    while (waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    id_ = -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t id_ = -1;
};

}  // namespace replay

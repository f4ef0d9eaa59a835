#pragma once
/// Text files, plain or gzipped, read line by line, and the one message that a bad line gets.

#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "process.hpp"

namespace replay {

/// Input that is not what it should be: FILE:LINE: what was expected and what is there. Line 0: the file as a whole.
struct input_error : std::runtime_error {
  input_error(std::string const& file, long line, std::string const& message)
      : std::runtime_error{file + (line > 0 ? ":" + std::to_string(line) : "") + ": " + message} {}
};

/// Quotes a field for a message, shortened.
inline std::string quoted(std::string_view text) {
  return "'" + std::string{text.substr(0, 40)} + (text.size() > 40 ? "…'" : "'");
}

/// Reads lines of a plain or gzipped file; gzip itself unpacks it, which every system has and no build needs.
/// Throws input_error when the file cannot be opened, is damaged or has an overlong line.
class text_file {
 public:
  static constexpr std::size_t longest_line = 1 << 16;

  explicit text_file(std::string path) : path_{std::move(path)}, file_{std::fopen(path_.c_str(), "rbe")} {
    if (!file_) throw input_error{path_, 0, "cannot be opened for reading"};
    if (std::fgetc(file_.get()) == 0x1f && std::fgetc(file_.get()) == 0x8b) {
      unpacking_.emplace(std::vector<std::string>{"gzip", "-dc", "--", path_}, &file_);
    } else {
      std::rewind(file_.get());
    }
  }
  text_file(text_file const&) = delete;
  text_file& operator=(text_file const&) = delete;
  ~text_file() {
    std::free(buffer_);
    file_.reset();  // gzip ends when nobody reads
  }

  /// The next line without its end, or false at the end of the file.
  bool next(std::string_view& line) {
    ssize_t const n = getline(&buffer_, &capacity_, file_.get());
    line = n > 0 ? std::string_view{buffer_, static_cast<std::size_t>(n)} : std::string_view{};
    if (!line.ends_with('\n')) require_sound();
    if (n <= 0) return false;
    ++line_;
    if (line.size() > longest_line) fail("expected lines of at most " + std::to_string(longest_line) + " characters");
    if (line.ends_with('\n')) line.remove_suffix(1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    return true;
  }

  [[noreturn]] void fail(std::string const& message) const { throw input_error{path_, line_, message}; }

  /// Field `text` called `name` as a whole number or a decimal, at least `least` and at most `most`.
  template <class N>
  N number(char const* name, std::string_view text, N least, N most) const {
    N value{};
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || !(value >= least && value <= most)) {
      fail(std::string{"expected "} + name + " to be a number from " + shown(least) + " to " + shown(most) +
           ", found " + quoted(text));
    }
    return value;
  }

 private:
  /// The end of the file must be its real end: not a directory, not a broken or cut gzip stream.
  void require_sound() {
    if (std::ferror(file_.get()) != 0) throw input_error{path_, line_ + 1, "cannot be read on"};
    if (unpacking_ && !std::exchange(sound_, true) && !unpacking_->wait()) {
      throw input_error{path_, line_ + 1, "cannot be read on: expected a whole gzip file, and the program gzip"};
    }
  }

  template <class N>
  static std::string shown(N value) {
    std::array<char, 32> digits{};
    return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
  }
  std::string path_;
  file_pointer file_;
  std::optional<process> unpacking_;
  bool sound_ = false;
  char* buffer_ = nullptr;
  std::size_t capacity_ = 0;
  long line_ = 0;
};

/// The parts of `line` between separators; n separators give n + 1 parts.
inline std::vector<std::string_view> split(std::string_view line, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    auto const at = line.find(separator);
    parts.push_back(line.substr(0, at));
    if (at == std::string_view::npos) return parts;
    line.remove_prefix(at + 1);
  }
}

}  // namespace replay

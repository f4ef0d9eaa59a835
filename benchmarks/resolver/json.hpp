#pragma once
/// JSON out, and the few numbers that are read from the shapes of recorded selections. No library: the machines with a
/// GPU have none.

#include <cmath>
#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>

namespace bench {

inline std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

/// One JSON object, member by member, in the order given.
class json_object {
 public:
  json_object& text(std::string_view name, std::string_view value) { return raw(name, quoted(value)); }
  json_object& flag(std::string_view name, bool value) { return raw(name, value ? "true" : "false"); }
  json_object& number(std::string_view name, std::integral auto value) { return raw(name, std::to_string(value)); }
  /// Not a number: null.
  json_object& number(std::string_view name, double value) {
    if (!std::isfinite(value)) return raw(name, "null");
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.6g", value);
    return raw(name, digits);
  }
  json_object& raw(std::string_view name, std::string_view value) {
    members_ += (members_.empty() ? "" : ", ") + quoted(name) + ": " + std::string{value};
    return *this;
  }
  std::string str() const { return "{" + members_ + "}"; }

 private:
  std::string members_;
};

/// The whole number behind the first `"name":` of a JSON text; −1 where there is none.
inline long long number_in(std::string const& text, std::string_view name) {
  auto at = text.find(quoted(name));
  if (at == std::string::npos) return -1;
  at = text.find(':', at);
  return at == std::string::npos ? -1 : std::strtoll(text.c_str() + at + 1, nullptr, 10);
}
/// How many entries the first list `"name": […]` has; 0 where there is none. The list is flat.
inline int entries_in(std::string const& text, std::string_view name) {
  auto const at = text.find(quoted(name));
  if (at == std::string::npos) return 0;
  auto const from = text.find('[', at), to = text.find(']', at);
  if (from == std::string::npos || to == std::string::npos || to == from + 1) return 0;
  int commas = 0;
  for (auto i = from; i < to; ++i) commas += text[i] == ',';
  return commas + 1;
}
/// Entry i of that list.
inline long long entry_in(std::string const& text, std::string_view name, int i) {
  auto at = text.find('[', text.find(quoted(name)));
  for (; i > 0; --i) at = text.find(',', at + 1);
  return std::strtoll(text.c_str() + at + 1, nullptr, 10);
}

}  // namespace bench

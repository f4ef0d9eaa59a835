#pragma once
/// Recorded selections of a real decoder, and their stretching to longer histories.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "text.hpp"

namespace replay {

/// The positions that each recorded step selected in one layer, best first.
struct recording {
  std::string name;
  int context = 0;     ///< positions of the recorded history
  int first_step = 0;  ///< position of the query of step 0; step s asks from first_step + s
  int steps = 0;
  int k = 0;
  std::vector<std::uint16_t> positions;  ///< [steps][k]

  std::span<std::uint16_t const> step(int s) const {
    return std::span{positions}.subspan(static_cast<std::size_t>(s) * static_cast<std::size_t>(k),
                                        static_cast<std::size_t>(k));
  }
};

/// Reads NAME.json and NAME.u16 (either may be named): one recording per layer.
/// Throws input_error when a shape is missing or illegal, the sizes disagree, or a step selects what lies after it.
inline std::vector<recording> read_selections(std::string const& path) {
  std::filesystem::path const json_path = std::filesystem::path{path}.replace_extension(".json");
  std::filesystem::path const data_path = std::filesystem::path{path}.replace_extension(".u16");
  std::ifstream json_file{json_path};
  if (!json_file) throw input_error{json_path, 0, "cannot be opened for reading"};
  auto const shape = nlohmann::json::parse(json_file, nullptr, false);
  auto const number = [&](char const* key) {
    if (!shape.is_object() || !shape.contains(key) || !shape[key].is_number_integer() || shape[key] < 1 ||
        shape[key] > 65'536) {
      throw input_error{json_path, 0, std::string{"expected \""} + key + "\" to be a whole number from 1 to 65536"};
    }
    return shape[key].get<int>();
  };
  recording one{json_path.stem().string(), number("context"), number("first_step"), number("steps"), number("k"), {}};
  if (!shape.contains("layers") || !shape["layers"].is_array() || shape["layers"].empty()) {
    throw input_error{json_path, 0, "expected \"layers\" to be a list of layer numbers"};
  }
  if (one.first_step + one.steps > one.context || one.k > one.context) {
    throw input_error{json_path, 0, "expected first_step + steps and k to be at most context"};
  }
  std::size_t const per_layer = static_cast<std::size_t>(one.steps) * static_cast<std::size_t>(one.k);
  std::size_t const wanted = shape["layers"].size() * per_layer * sizeof(std::uint16_t);
  std::error_code error;
  auto const bytes = std::filesystem::file_size(data_path, error);
  if (error || bytes != wanted) {
    throw input_error{
        data_path, 0,
        "expected " + std::to_string(wanted) + " bytes, found " + (error ? "no readable file" : std::to_string(bytes))};
  }
  std::ifstream data{data_path, std::ios::binary};
  std::vector<recording> layers;
  for (std::size_t layer = 0; layer < shape["layers"].size(); ++layer) {
    one.positions.resize(per_layer);
    std::vector<unsigned char> raw(per_layer * 2);
    if (!data.read(reinterpret_cast<char*>(raw.data()), static_cast<std::streamsize>(raw.size()))) {
      throw input_error{data_path, 0, "cannot be read"};
    }
    for (std::size_t i = 0; i < per_layer; ++i) {
      one.positions[i] = static_cast<std::uint16_t>(raw[2 * i] | raw[2 * i + 1] << 8);
      int const now = one.first_step + static_cast<int>(i / static_cast<std::size_t>(one.k));
      if (one.positions[i] > now) {
        throw input_error{data_path, 0,
                          "expected positions up to " + std::to_string(now) + " in layer " + std::to_string(layer) +
                              ", step " + std::to_string(now - one.first_step) + ", found " +
                              std::to_string(one.positions[i])};
      }
    }
    layers.push_back(one);
  }
  return layers;
}

/// One recording played for one call. With `now` the position of the query and `first` that of the call's first query:
/// the newest 1,024 positions keep their distance from the present; older 64-row pages are spread evenly over the rest,
/// offset in page kept, by a page map fixed at the first step. In histories shorter than the recorded one positions
/// stay as they are and those past the end are dropped. After the last step the recording is played backwards, then
/// forwards again.
class stretched_selection {
 public:
  static constexpr int newest = 1'024;
  static constexpr int page = 64;

  stretched_selection() = default;
  stretched_selection(recording const& recorded, std::int64_t first) : recorded_{&recorded}, first_{first} {
    stretched_ = first + 1 >= recorded.context;
    if (!stretched_) return;
    old_ = recorded.first_step - (newest - 1);
    if (old_ < 0) old_ = 0;
    std::int64_t const pages = (old_ + page - 1) / page;
    std::int64_t const room = (first - (newest - 1)) / page;
    for (std::int64_t p = 0; p < pages; ++p) moved_.push_back((p * room / pages - p) * page);
  }

  /// The recorded step that the query `asked` queries after the first one replays.
  static int recorded_step(std::int64_t asked, int steps) {
    int const turn = static_cast<int>(asked % (2LL * steps));
    return turn < steps ? turn : 2 * steps - 1 - turn;
  }

  /// Writes the best out.size() positions for the query at position `now`; dropped ones become -1. Returns how many are
  /// left.
  int operator()(std::int64_t now, std::span<std::int32_t> out) const {
    int const step = recorded_step(now - first_, recorded_->steps);
    auto const from = recorded_->step(step);
    std::int64_t const shift = now - (recorded_->first_step + step);
    int kept = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::int64_t to = from[i];
      if (stretched_) to += to < old_ ? moved_[static_cast<std::size_t>(to / page)] : shift;
      bool const there = to <= now;
      out[i] = there ? static_cast<std::int32_t>(to) : -1;
      kept += there;
    }
    return kept;
  }

 private:
  recording const* recorded_ = nullptr;
  std::int64_t first_ = 0;
  bool stretched_ = false;
  std::int64_t old_ = 0;             ///< recorded positions below are older than the newest 1,024 at the first step
  std::vector<std::int64_t> moved_;  ///< how far each older page moves
};

}  // namespace replay

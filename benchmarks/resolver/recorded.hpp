#pragma once
/// Recorded selections of real decoders.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "json.hpp"

namespace bench {

/// The positions that each recorded step selected in one layer, best first.
struct recording {
  std::string file;
  int layer = 0;
  int context = 0;
  int first_step = 0;  ///< position of the query of step 0
  int steps = 0;
  int k = 0;
  std::vector<std::uint16_t> positions;  ///< [steps][k]

  std::span<std::uint16_t const> step(int s) const {
    return {positions.data() + static_cast<std::size_t>(s) * static_cast<std::size_t>(k), static_cast<std::size_t>(k)};
  }
};

/// NAME.json beside NAME.u16, one recording a layer. Throws: std::runtime_error where a file is missing or too short.
inline std::vector<recording> read_recordings(std::filesystem::path path) {
  std::ifstream shape{path.replace_extension(".json")};
  std::ifstream data{std::filesystem::path{path}.replace_extension(".u16"), std::ios::binary};
  std::string const text{std::istreambuf_iterator<char>{shape}, {}};
  recording one{path.stem().string(),
                0,
                static_cast<int>(number_in(text, "context")),
                static_cast<int>(number_in(text, "first_step")),
                static_cast<int>(number_in(text, "steps")),
                static_cast<int>(number_in(text, "k")),
                {}};
  int const layers = entries_in(text, "layers");
  if (!shape || !data || one.context <= 0 || one.first_step < 0 || one.steps <= 0 || one.k <= 0 || layers == 0)
    throw std::runtime_error("recorded selections: " + path.string() + " or its .u16 is missing or has no shape");
  std::vector<recording> out;
  for (int i = 0; i < layers; ++i) {
    one.layer = static_cast<int>(entry_in(text, "layers", i));
    std::size_t const n = static_cast<std::size_t>(one.steps) * static_cast<std::size_t>(one.k);
    std::vector<unsigned char> raw(2 * n);
    if (!data.read(reinterpret_cast<char*>(raw.data()), static_cast<std::streamsize>(raw.size())))
      throw std::runtime_error("recorded selections: " + path.string() + ": .u16 is too short");
    one.positions.resize(n);
    for (std::size_t j = 0; j < n; ++j) one.positions[j] = static_cast<std::uint16_t>(raw[2 * j] | raw[2 * j + 1] << 8);
    out.push_back(one);
  }
  return out;
}

/// Recorded position p of a call that begins at recorded step `start`, in a history of `history` rows whose present is
/// at its end: the newest 1,024 keep their distance from the present, older 64-row pages are spread evenly over the
/// rest, offset in page kept, by a map fixed for the call. A history no longer than the recorded one: unchanged.
class stretch {
 public:
  stretch(recording const& r, int history) : shift_{history - r.context}, old_{r.first_step - 1023} {
    std::int64_t const pages = (old_ + 63) / 64, room = (old_ + shift_) / 64;
    for (std::int64_t p = 0; shift_ > 0 && p < pages; ++p)
      moved_.push_back(static_cast<int>((p * room / pages - p) * 64));
  }
  std::int32_t operator()(int p) const {
    if (shift_ <= 0) return p;
    return p < old_ ? p + moved_[static_cast<std::size_t>(p / 64)] : p + shift_;
  }

 private:
  int shift_;
  int old_;
  std::vector<int> moved_;
};

}  // namespace bench

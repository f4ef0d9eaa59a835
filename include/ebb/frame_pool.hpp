#pragma once
/// The frames of the GPU, each in exactly one state.

#include <ebb/error.hpp>
#include <ebb/ids.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

namespace ebb {

/// `free`: nobody has work left on it. `required`: a request cannot run without it. `lent`: a revocable loan. `taken`:
/// the engine's own. `filling`: a loan whose copy is under way. `revoking`: taken away, waiting for a backup or for
/// earlier readers and writers.
enum class frame_state : std::uint8_t { free, required, lent, taken, filling, revoking };
inline constexpr int frame_states = 6;

struct frame_record {
  frame_state state = frame_state::free;
  std::int32_t slot = -1;        ///< the request that holds it, −1: nobody
  std::int32_t page = -1;        ///< the page it keeps, −1: none (idle, hot rows, taken, or on its way back)
  ticket after = ticket::none;   ///< work of earlier holders ends here
  ticket copies = ticket::none;  ///< newest side-stream job that reads or writes it, whoever asked for it
  bool ordered =
      false;  ///< revoking: all of that work is in the main stream, so its later work may use the frame at once
};

/// Keeps the state of every frame and the counts of each state. Host only, no locks: one control thread.
class frame_pool {
 public:
  static constexpr std::int32_t handed_over = -2;  ///< page of a taken frame that the engine has collected

  explicit frame_pool(int frames) : records_(static_cast<std::size_t>(frames)) {
    counts_[static_cast<std::size_t>(frame_state::free)] = frames;
    for (int f = frames; f-- > 0;) free_.push_back(frame_id{f});
  }

  int size() const { return static_cast<int>(records_.size()); }
  int count(frame_state s) const { return counts_[static_cast<std::size_t>(s)]; }
  frame_record const& operator[](frame_id f) const { return records_[static_cast<std::size_t>(index(f))]; }

  /// Frames that the main stream's next work may use: free, or revoked behind nothing but earlier work of that stream.
  int usable() const { return count(frame_state::free) + static_cast<int>(ordered_.size()); }

  /// A frame that nobody works on any more, or none. The caller states its new use.
  std::optional<frame_id> take_free(frame_state use, int slot, int page) {
    if (free_.empty()) return std::nullopt;
    frame_id const f = free_.back();
    free_.pop_back();
    set(f, use, slot, page);
    return f;
  }
  /// A frame for work of the main stream enqueued from now on, or for other work that first waits for `after`.
  std::optional<frame_id> take(frame_state use, int slot, int page) {
    if (ordered_.empty()) return take_free(use, slot, page);
    frame_id const f = ordered_.front();
    ordered_.pop_front();
    set(f, use, slot, page);
    return f;
  }

  /// A new use of a frame that stays in use.
  void set(frame_id f, frame_state s, int slot, int page) {
    frame_record& r = at(f);
    --counts_[static_cast<std::size_t>(r.state)];
    ++counts_[static_cast<std::size_t>(s)];
    r.state = s;
    r.slot = slot;
    r.page = page;
  }

  void touch(frame_id f, ticket job) { at(f).copies = job; }
  /// Takes a frame out of use. It becomes free once `after` is done; with `ordered`, the main stream may use it at
  /// once.
  void retire(frame_id f, ticket after, bool ordered) {
    set(f, frame_state::revoking, -1, -1);
    at(f).after = std::max(at(f).after, after);
    at(f).ordered = ordered;
    (ordered ? ordered_ : cooling_).push_back(f);
  }

  /// Frees what waited for tickets up to `done`.
  void settle(ticket done) {
    for (auto* list : {&ordered_, &cooling_}) {
      std::erase_if(*list, [&](frame_id f) {
        if (at(f).after > done) return false;
        set(f, frame_state::free, -1, -1);
        free_.push_back(f);
        return true;
      });
    }
  }

  /// Frames on their way back, whatever they wait for.
  int returning() const { return static_cast<int>(ordered_.size() + cooling_.size()); }
  /// The first frame that waits for work outside the main stream: its user must wait for `after`.
  std::optional<frame_id> take_cooling(frame_state use, int slot, int page) {
    if (cooling_.empty()) return std::nullopt;
    frame_id const f = cooling_.front();
    cooling_.pop_front();
    set(f, use, slot, page);
    return f;
  }

 private:
  frame_record& at(frame_id f) { return records_[static_cast<std::size_t>(index(f))]; }

  std::vector<frame_record> records_;
  std::array<int, frame_states> counts_{};
  std::vector<frame_id> free_;
  std::deque<frame_id> ordered_;
  std::deque<frame_id> cooling_;
};

}  // namespace ebb

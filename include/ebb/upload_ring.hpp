#pragma once
/// Host memory that bodies read small arguments from, reused only when its readers are done.

#include <ebb/space.hpp>

#include <cstring>
#include <deque>
#include <span>
#include <stdexcept>

namespace ebb {

/// A ring of shared memory. `put` copies arguments in; `close` says that work reading them was enqueued up to an event.
/// Where the ring is full, `put` waits for the oldest readers: an argument is never overwritten before it was read.
template <space S>
class upload_ring {
 public:
  upload_ring(S const& space, std::size_t bytes) : space_{space}, memory_{space.shared_memory(bytes)}, size_{bytes} {}

  /// Largest number of bytes one `put` takes.
  std::size_t largest() const { return size_ / 4; }

  template <class T>
  T const* put(std::span<T const> values) {
    std::size_t const bytes = (values.size_bytes() + 63) / 64 * 64;
    if (bytes > largest()) throw std::length_error("upload_ring: more in one piece than a quarter of the ring");
    std::size_t at = next_;
    if (at + bytes > size_) at = 0;
    reclaim(at, bytes);
    if (bytes > 0) std::memcpy(memory_.get() + at, values.data(), values.size_bytes());
    next_ = at + bytes;
    open_.push_back({at, at + bytes});
    return reinterpret_cast<T const*>(memory_.get() + at);
  }
  /// Everything put since the last close is read before `e`.
  void close(typename S::event e) {
    for (auto piece : open_) closed_.push_back({piece, e});
    open_.clear();
  }

 private:
  struct piece {
    std::size_t begin, end;
  };
  struct fenced {
    piece range;
    typename S::event until;
  };

  void reclaim(std::size_t at, std::size_t bytes) {
    auto const meets = [&](piece p) { return p.begin < at + bytes && at < p.end; };
    for (auto p : open_) {
      if (meets(p)) throw std::length_error("upload_ring: more in one step than the ring holds");
    }
    while (!closed_.empty()) {
      fenced const& oldest = closed_.front();
      if (!space_.reached(oldest.until)) {
        bool any = false;
        for (auto const& f : closed_) any |= meets(f.range);
        if (!any) return;
        space_.synchronize(oldest.until);
      }
      closed_.pop_front();
    }
  }

  S space_;
  std::shared_ptr<std::byte> memory_;
  std::size_t size_;
  std::size_t next_ = 0;
  std::deque<piece> open_;
  std::deque<fenced> closed_;
};

}  // namespace ebb

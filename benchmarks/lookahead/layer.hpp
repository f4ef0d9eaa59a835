#pragma once
/// A stand-in for a layer's computation.

#include <ebb/space.hpp>
#include <ebb/team.hpp>

#include <cstdint>
#include <cstring>
#include <memory>

#include "../resolver/timing.hpp"

namespace bench {

/// Streams weights from GPU memory, as a layer of a decode step does. With 512 lanes and one team a multiprocessor the
/// memory is busy and three quarters of each multiprocessor's lanes are left to copies beside it; with 1,024 lanes and two
/// teams every lane is taken, and copies start where teams end.
template <int Lanes>
struct layer_body {
  static constexpr int threads = Lanes;
  std::byte const* weights;
  std::int64_t all;    ///< bytes of the buffer
  std::int64_t first;  ///< byte where this layer starts; it goes on at 0 behind the end
  std::int64_t bytes;
  int items;
  std::uint32_t* sink;

  EBB_BODY
  template <ebb::team T>
  EBB_FN void operator()(T const& t, int item) const {
    constexpr int flying = 4096 / Lanes;  // registers: two blocks of 1,024 lanes must fit
    std::int64_t const stride = std::int64_t{items} * T::width, pieces = bytes / 16;
    std::uint32_t sum = 0;
    for (std::int64_t i = std::int64_t{item} * T::width + t.rank(); i < pieces; i += flying * stride) {
      ebb::piece<16> held[flying];
      std::byte const* from[flying];
      EBB_UNROLL
      for (int k = 0; k < flying; ++k) {
        std::int64_t const at = first + (i + k * stride) * 16;
        held[k] = {};
        from[k] = i + k * stride < pieces ? weights + (at < all ? at : at - all) : nullptr;
      }
      t.template read<16>(held, from);
      EBB_UNROLL
      for (int k = 0; k < flying; ++k) sum += held[k].bytes[0];
    }
    if (sum == 1) t.add(sink, 1u);  // the weights are zeroes: never
  }
};

/// How much of the GPU a layer takes: see `layer_body`.
enum class room { shared, full };
inline char const* name_of(room r) { return r == room::shared ? "shared" : "full"; }

/// Layers of chosen length.
template <ebb::space S>
class layers {
 public:
  layers(timing<S>& clock, std::size_t bytes)
      : clock_{clock},
        bytes_{static_cast<std::int64_t>(bytes)},
        weights_{clock.space().device_memory(bytes)},
        sink_{clock.space().device_memory(sizeof(std::uint32_t))} {
#if defined(__CUDACC__)
    int device = 0;
    ebb::check(cudaGetDevice(&device));
    ebb::check(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, device));
#endif
    for (room r : {room::shared, room::full}) {
      auto const half = [&](int) { run(r, bytes_ / 2); };
      half(0);  // loaded before it is captured
      double const us = median({clock_.as_graph(4, half), clock_.as_graph(4, half), clock_.as_graph(4, half)});
      rate_[static_cast<int>(r)] = static_cast<double>(bytes_ / 2) / us;
    }
  }
  /// Bytes a microsecond.
  double rate(room r) const { return rate_[static_cast<int>(r)]; }
  /// Enqueues one layer.
  void run(room r, double us) {
    double const wanted = us * rate(r);
    run(r, std::min(bytes_, static_cast<std::int64_t>(wanted) / 16 * 16));
  }

 private:
  void run(room r, std::int64_t bytes) {
    auto* const sink = reinterpret_cast<std::uint32_t*>(sink_.get());
    if (r == room::shared) {
      clock_.space().run(clock_.on(), processors_,
                         layer_body<512>{weights_.get(), bytes_, next_, bytes, processors_, sink});
    } else {
      clock_.space().run(clock_.on(), 2 * processors_,
                         layer_body<1024>{weights_.get(), bytes_, next_, bytes, 2 * processors_, sink});
    }
    next_ = (next_ + bytes) % bytes_;
  }

  timing<S>& clock_;
  std::int64_t bytes_;
  std::shared_ptr<std::byte> weights_, sink_;
  int processors_ = 2;
  double rate_[2] = {};
  std::int64_t next_ = 0;
};

}  // namespace bench

#pragma once
/// The memory of rows: arenas and staging on the GPU, the host store behind them; owned or borrowed.

#include <ebb/capacity.hpp>
#include <ebb/geometry.hpp>
#include <ebb/page_mover.hpp>
#include <ebb/space.hpp>

#include <limits>
#include <span>
#include <vector>

namespace ebb {

/// A source's rows in one memory: address a is at `page_layout` offsets from `base`, pages `frame_stride` bytes apart,
/// `bytes` in all. Arenas may share an allocation where they have one stride and no byte in common.
struct arena_view {
  std::byte* base = nullptr;
  std::int64_t frame_stride = 0;
  std::int64_t bytes = 0;
};

/// Frames of a source's arena: the instance's own, one of zeroes where the metadata is packed, and staging behind them.
constexpr std::int64_t frames_in_arena(int frames, bool packed, int max_batch, int staging_slots, int rows_per_page) {
  return std::int64_t{frames} + (packed ? 1 : 0) + std::int64_t{max_batch} * (staging_slots / rows_per_page);
}

/// What the memory must hold.
struct arena_sizes {
  int frames;
  int host_pages;
  int staging_slots;  ///< row slots of one request in a plane, a multiple of the rows per page of every source
  int max_batch;
  host_kind host = host_kind::managed;
  std::span<arena_view const> borrowed = {};
  std::span<std::byte> host_memory = {};
};

/// Owns or borrows all row memory of an instance.
/// Owned: `[arena of source 0] … [staging planes]` in one reservation, so that a staged row has a row address from
/// every source's base. Borrowed: every arena holds, behind its frames, one that is zeroed here where the metadata is
/// packed, and staging frames of its own.
template <policy P, space S>
class arenas {
 public:
  static constexpr int zero_frames = P::metadata::packed ? 1 : 0;

  arenas(S const& space, geometry<P> const& geo, arena_sizes const& sizes) : geo_{geo}, sizes_{sizes} {
    for (int s = 0; s < geo.sources(); ++s) widest_ = geo.rows_per_page(s) > widest_.rows ? geo.layout(s) : widest_;
    if (sizes.borrowed.empty()) {
      own(space);
    } else {
      borrow();
    }
    if constexpr (requires { P::metadata::check(std::span<source_view const>{views_}, rows_); })
      P::metadata::check(std::span<source_view const>{views_}, rows_);
    place_host(space);
    publish(space);
  }

  source_view const& view(int source) const { return views_[static_cast<std::size_t>(source)]; }
  /// The views of all local sources in device memory.
  source_view const* on_device() const { return reinterpret_cast<source_view const*>(device_views_.get()); }
  /// Bytes of GPU memory for rows: owned ones, staging among them.
  std::int64_t gpu_bytes() const { return gpu_bytes_; }
  std::int64_t host_bytes() const { return host_bytes_; }

 private:
  void own(S const& space) {
    static_assert(
        geometry_of<P>::staging_shareable(),
        "ebb policy: `page_multiple` pads sources of different ratio differently, so they cannot share staging; use 1");
    int planes = sizes_.staging_slots > 0 ? staging_planes(geo_.largest_set()) : 0;
    std::int64_t const plane = std::int64_t{sizes_.max_batch} * (sizes_.staging_slots / widest_.rows) * widest_.stride;
    std::vector<std::int64_t> at;
    std::int64_t total = 0;
    for (int s = 0; s < geo_.sources(); ++s) {
      at.push_back(total);
      std::int64_t const bytes = std::int64_t{sizes_.frames + zero_frames} * geo_.layout(s).stride;
      total += (bytes + widest_.stride - 1) / widest_.stride * widest_.stride;
    }
    std::int64_t const staging = total;
    gpu_bytes_ = staging + planes * plane;
    for (int set = 0; set < geo_.sets(); ++set) {
      for (int k = 0; k < geo_.sources_of_set(set); ++k) {
        int const s = geo_.source_of_set(set, k);
        page_layout const layout = geo_.layout(s);
        std::int64_t const rows_to_staging =
            (staging + (planes > 0 ? k % planes : 0) * plane - at[static_cast<std::size_t>(s)]) / layout.stride *
            layout.rows;
        std::int64_t const last = rows_to_staging + std::int64_t{sizes_.max_batch} * sizes_.staging_slots;
        require(last <= std::numeric_limits<std::int32_t>::max(), "frames", sizes_.frames,
                "so many that every row has an int32 address; source " + std::to_string(index(geo_.id_of_source(s))) +
                    " would need row " + std::to_string(last));
        rows_ = std::max(rows_, last);
        add(s, nullptr, layout, static_cast<std::int32_t>(rows_to_staging));
      }
    }
    memory_ = space.device_memory(static_cast<std::size_t>(gpu_bytes_));
    for (source_view& v : views_) v.base = memory_.get() + at[static_cast<std::size_t>(v.ordinal)];
  }

  void borrow() {
    require(static_cast<int>(sizes_.borrowed.size()) == geo_.sources(), "arenas",
            static_cast<long long>(sizes_.borrowed.size()),
            "one for each local source: " + std::to_string(geo_.sources()));
    for (int s = 0; s < geo_.sources(); ++s) {
      arena_view const given = sizes_.borrowed[static_cast<std::size_t>(s)];
      page_layout layout = geo_.layout(s);
      int const width = geometry_of<P>::in_row_width;  // page-end pieces are no wider
      require(given.base != nullptr && reinterpret_cast<std::uintptr_t>(given.base) % static_cast<unsigned>(width) == 0,
              "arenas: base alignment",
              static_cast<long long>(reinterpret_cast<std::uintptr_t>(given.base) % static_cast<unsigned>(width)),
              "a multiple of " + std::to_string(width) + " bytes for rows of " + std::to_string(P::row.total()));
      require(given.frame_stride >= layout.stride && given.frame_stride % width == 0, "arenas: frame_stride",
              given.frame_stride,
              "at least " + std::to_string(layout.stride) + " and a multiple of " + std::to_string(width));
      std::int64_t const count =
          frames_in_arena(sizes_.frames, P::metadata::packed, sizes_.max_batch, sizes_.staging_slots, layout.rows);
      require(given.bytes >= layout.stride && count - 1 <= (given.bytes - layout.stride) / given.frame_stride,
              "arenas: bytes", given.bytes, "enough for ", count, " frames of source ", index(geo_.id_of_source(s)),
              ", staging included");
      for (int other = 0; other < s; ++other) check_apart(other, s);
      layout.stride = given.frame_stride;
      std::int64_t const staging = std::int64_t{sizes_.frames + zero_frames} * layout.rows;
      std::int64_t const last = staging + std::int64_t{sizes_.max_batch} * sizes_.staging_slots;
      require(last <= std::numeric_limits<std::int32_t>::max(), "frames", sizes_.frames,
              "so many that every row has an int32 address");
      rows_ = std::max(rows_, last);
      add(s, given.base, layout, static_cast<std::int32_t>(staging));
    }
  }

  /// Two arenas have no byte in common: one lies behind the other, or pages of one stride lie side by side.
  void check_apart(int a, int b) const {
    arena_view const x = sizes_.borrowed[static_cast<std::size_t>(a)];
    arena_view const y = sizes_.borrowed[static_cast<std::size_t>(b)];
    auto const at = [](arena_view const& v) { return reinterpret_cast<std::uintptr_t>(v.base); };
    auto const bytes = [](arena_view const& v) { return static_cast<std::uintptr_t>(v.bytes); };
    bool apart = at(x) <= at(y) ? at(y) - at(x) >= bytes(x) : at(x) - at(y) >= bytes(y);
    if (!apart && x.frame_stride == y.frame_stride) {
      std::int64_t const stride = x.frame_stride;
      std::int64_t const away = (static_cast<std::int64_t>(at(y) - at(x)) % stride + stride) % stride;
      apart = away >= geo_.layout(a).stride && away + geo_.layout(b).stride <= stride;
    }
    require(apart, "arenas: source", index(geo_.id_of_source(b)), "one that shares no bytes with source ",
            index(geo_.id_of_source(a)));
  }

  void add(int s, std::byte* base, page_layout layout, std::int32_t staging) {
    if (views_.empty()) views_.resize(static_cast<std::size_t>(geo_.sources()));
    views_[static_cast<std::size_t>(s)] = {base,
                                           layout,
                                           nullptr,
                                           geo_.layout(s),
                                           static_cast<std::int32_t>((sizes_.frames + zero_frames) * layout.rows),
                                           staging,
                                           s};
  }

  /// Source-major: [source][host page].
  void place_host(S const& space) {
    for (int s = 0; s < geo_.sources(); ++s) host_bytes_ += std::int64_t{sizes_.host_pages} * geo_.layout(s).stride;
    std::byte* at = sizes_.host_memory.data();
    if (at != nullptr) {
      require(static_cast<std::int64_t>(sizes_.host_memory.size()) >= host_bytes_, "host_memory: bytes",
              static_cast<long long>(sizes_.host_memory.size()), "at least ", host_bytes_);
    } else {
      host_ = space.history_memory(static_cast<std::size_t>(host_bytes_), sizes_.host);
      at = host_.get();
    }
    require(reinterpret_cast<std::uintptr_t>(at) % 16 == 0, "host_memory: alignment",
            static_cast<long long>(reinterpret_cast<std::uintptr_t>(at) % 16), "a multiple of 16 bytes");
    for (source_view& v : views_) {
      v.host = at;
      at += std::int64_t{sizes_.host_pages} * v.host_layout.stride;
    }
  }

  void publish(S const& space) {
    static_assert(sizeof(source_view) % sizeof(std::uint64_t) == 0 && std::is_trivially_copyable_v<source_view>);
    std::size_t const bytes = views_.size() * sizeof(source_view);
    auto const staged = space.shared_memory(bytes);
    std::memcpy(staged.get(), views_.data(), bytes);
    device_views_ = space.device_memory(bytes);
    auto const stream = space.make_stream();
    if constexpr (P::metadata::packed) {
      for (source_view const& v : views_)
        space.zero(stream, v.base + sizes_.frames * v.layout.stride, static_cast<std::size_t>(v.host_layout.stride));
    }
    space.run(stream, 1,
              words_body{reinterpret_cast<std::uint64_t const*>(staged.get()),
                         reinterpret_cast<std::uint64_t*>(device_views_.get()), static_cast<int>(bytes / 8)});
    space.synchronize(space.record(stream));
  }

  geometry<P> geo_;
  arena_sizes sizes_;
  page_layout widest_{};
  std::shared_ptr<std::byte> memory_;
  std::shared_ptr<std::byte> host_;
  std::shared_ptr<std::byte> device_views_;
  std::vector<source_view> views_;
  std::int64_t rows_ = 0;  ///< row addresses are below it
  std::int64_t gpu_bytes_ = 0;
  std::int64_t host_bytes_ = 0;
};

}  // namespace ebb

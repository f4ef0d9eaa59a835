#pragma once
/// The rows of one step on their way through device memory: what is selected, what is written, what must be found.

#include <ebb/source_view.hpp>
#include <ebb/space.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "bodies.hpp"
#include "oracle.hpp"

namespace replay {

/// `n` values of T in a space's memory.
template <class T>
class array_of {
 public:
  array_of() = default;
  array_of(std::shared_ptr<std::byte> memory, std::size_t n) : memory_{std::move(memory)}, size_{n} {}
  T* data() const { return reinterpret_cast<T*>(memory_.get()); }
  std::span<T> span() const { return {data(), size_}; }

 private:
  std::shared_ptr<std::byte> memory_;
  std::size_t size_ = 0;
};

/// Buffers of a step with up to `rows` queries of `top_k` positions. The host fills selection(), seeds() and
/// write_seeds(); `upload` brings them to the device, where the library and the bodies of the replay read them.
template <ebb::space S>
class step_rows {
 public:
  using stream = typename S::stream;

  step_rows(S space, ebb::source_view const& view, int rows, int top_k)
      : space_{space},
        base_{view.base},
        layout_{view.layout},
        top_k_{top_k},
        entries_{static_cast<std::size_t>(rows) * static_cast<std::size_t>(top_k)},
        selection_{shared<std::int32_t>(entries_)},
        seeds_{shared<std::uint64_t>(entries_)},
        write_seeds_{shared<std::uint64_t>(static_cast<std::size_t>(rows))},
        wrong_{shared<std::uint64_t>(static_cast<std::size_t>(rows))},
        columns_{shared<std::uint64_t>(most_words)},
        on_device_{device<std::uint64_t>(entries_ / 2 + entries_ + static_cast<std::size_t>(rows) + most_words)},
        addresses_{device<std::int32_t>(entries_)} {
    std::ranges::copy(detail::columns, columns_.data());
  }

  std::span<std::int32_t> selection(int row) const {
    return selection_.span().subspan(at(row), static_cast<std::size_t>(top_k_));
  }
  std::span<std::uint64_t> seeds(int row) const {
    return seeds_.span().subspan(at(row), static_cast<std::size_t>(top_k_));
  }
  std::uint64_t& write_seed(int row) const { return write_seeds_.data()[row]; }

  /// Where the library reads the selection and writes addresses.
  std::int32_t const* device_selection() const { return reinterpret_cast<std::int32_t const*>(on_device_.data()); }
  std::int32_t* device_addresses() const { return addresses_.data(); }

  /// Stream: enqueues copies of what the host filled in for `rows` queries.
  void upload(stream const& on, int rows) {
    std::size_t const entries = at(rows);
    copy(on, reinterpret_cast<std::uint64_t const*>(selection_.data()), on_device_.data(), entries / 2);
    copy(on, seeds_.data(), device_seeds(), entries);
    copy(on, write_seeds_.data(), device_write_seeds(), static_cast<std::size_t>(rows));
    if (std::exchange(fresh_, false)) copy(on, columns_.data(), device_columns(), most_words);
    std::fill_n(wrong_.data(), rows, 0);
  }
  /// Stream: enqueues the engine's own writes of this step.
  void write(stream const& on, int rows, std::int32_t const* addresses) const {
    space_.run(on, rows, write_rows_body{store(), addresses, device_write_seeds()});
  }
  /// Stream: enqueues the comparison of every resolved row with the oracle.
  void check(stream const& on, int rows) const {
    space_.run(on, rows, check_rows_body{store(), addresses_.data(), device_seeds(), top_k_, wrong_.data()});
  }
  /// Rows of query `row` that `check` found wrong, once its work is done.
  long long wrong(int row) const { return static_cast<long long>(wrong_.data()[row]); }

 private:
  row_store store() const { return {base_, layout_, device_columns()}; }
  std::size_t at(int row) const { return static_cast<std::size_t>(row) * static_cast<std::size_t>(top_k_); }
  std::uint64_t* device_seeds() const { return on_device_.data() + entries_ / 2; }
  std::uint64_t* device_write_seeds() const { return device_seeds() + entries_; }
  std::uint64_t* device_columns() const { return on_device_.data() + on_device_.span().size() - most_words; }

  template <class T>
  array_of<T> shared(std::size_t n) const {
    return {space_.shared_memory(n * sizeof(T)), n};
  }
  template <class T>
  array_of<T> device(std::size_t n) const {
    return {space_.device_memory(n * sizeof(T)), n};
  }
  void copy(stream const& on, std::uint64_t const* from, std::uint64_t* to, std::size_t words) const {
    constexpr int per_item = 4'096;
    int const n = static_cast<int>(words);
    space_.run(on, (n + per_item - 1) / per_item, upload_body{from, to, n, per_item});
  }

  S space_;
  std::byte* base_;
  ebb::page_layout layout_;
  int top_k_;
  std::size_t entries_;
  array_of<std::int32_t> selection_;
  array_of<std::uint64_t> seeds_;
  array_of<std::uint64_t> write_seeds_;
  array_of<std::uint64_t> wrong_;
  array_of<std::uint64_t> columns_;
  array_of<std::uint64_t> on_device_;  ///< selection, seeds, seeds of written rows, columns
  array_of<std::int32_t> addresses_;
  bool fresh_ = true;
};

/// Memory for the history of one arriving call, packed row after row as imports want it; grows to the longest one.
template <ebb::space S>
class import_buffer {
 public:
  import_buffer(S space, int row_bytes) : space_{space}, row_bytes_{row_bytes} {}

  /// Rows [first, end) as their writer would send them; `written` counts them as written once more.
  std::byte const* fill(write_history& written, std::int64_t first, std::int64_t end) {
    std::size_t const bytes = static_cast<std::size_t>(end - first) * static_cast<std::size_t>(row_bytes_);
    if (bytes > size_) {
      memory_.reset();
      size_ = std::max(bytes, size_ + size_ / 2);
      memory_ = space_.shared_memory(size_);
    }
    written.expect(end);
    for (std::int64_t p = first; p < end; ++p) {
      write_words(memory_.get() + (p - first) * row_bytes_, written.write(p), detail::columns.data(), 0,
                  row_bytes_ / 8);
    }
    return memory_.get();
  }

 private:
  S space_;
  int row_bytes_;
  std::size_t size_ = 0;
  std::shared_ptr<std::byte> memory_;
};

}  // namespace replay

#pragma once
/// Host memory for the histories of all settings.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "grid.hpp"
#include "part.hpp"

namespace bench {

/// Host memory of one kind, as large as the largest setting needs; made once, because making it takes seconds.
class stores {
 public:
  stores(home space, std::vector<group_of_cells> const& groups) : space_{space} {
    for (group_of_cells const& g : groups) {
      if (part const* p = part_for(g.s)) wanted_[g.s.pinned] = std::max(wanted_[g.s.pinned], p->store_bytes(g.s));
    }
  }
  std::byte* of(bool pinned) {
    if (!memory_[pinned] && wanted_[pinned] > 0) {
      std::fprintf(stderr, "%.1f GB of %s host memory …\n", static_cast<double>(wanted_[pinned]) / 1e9,
                   pinned ? "pinned" : "managed");
      memory_[pinned] =
          space_.history_memory(wanted_[pinned], pinned ? ebb::host_kind::pinned : ebb::host_kind::managed);
    }
    return memory_[pinned].get();
  }
  std::size_t bytes(bool pinned) const { return wanted_[pinned]; }

 private:
  home space_;
  std::size_t wanted_[2] = {};
  std::shared_ptr<std::byte> memory_[2];
};

}  // namespace bench

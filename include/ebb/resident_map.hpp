#pragma once
/// Owner of the logical-to-physical map.

#include <ebb/resident_map_ref.hpp>
#include <ebb/space.hpp>

namespace ebb {

/// entry[request][page] in device memory: one word of 8 bytes a page, 125 KB for a request of a million tokens at 64 a
/// page. Its host mirror is the ledger. Move-only; changes go through begin_step's upload.
template <policy P, space S>
class resident_map {
 public:
  resident_map(S const& space, int requests, int pages)
      : memory_{space.device_memory(static_cast<std::size_t>(requests) * static_cast<std::size_t>(pages) *
                                    sizeof(map_entry))},
        pages_{pages} {}
  resident_map(resident_map&&) = default;
  resident_map& operator=(resident_map&&) = default;

  resident_map_ref<P> ref() const { return {reinterpret_cast<map_entry*>(memory_.get()), pages_}; }

 private:
  std::shared_ptr<std::byte> memory_;
  int pages_;
};

}  // namespace ebb

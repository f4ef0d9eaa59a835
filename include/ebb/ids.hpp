#pragma once
/// Distinct identifier types: a host page number can never be used as a frame number.

#include <ebb/config.hpp>

#include <concepts>
#include <cstdint>

namespace ebb {

enum class frame_id : std::int32_t { none = -1 };
enum class host_page_id : std::int32_t { none = -1 };
enum class page_index : std::int32_t {};
enum class source_id : std::int32_t {};
enum class group_id : std::int32_t {};
/// Numbers every asynchronous job of an instance in the order it was enqueued. 0: nothing to wait for.
enum class ticket : std::uint64_t { none = 0 };

template <class Id>
concept identifier = std::same_as<Id, frame_id> || std::same_as<Id, host_page_id> || std::same_as<Id, page_index> ||
                     std::same_as<Id, source_id> || std::same_as<Id, group_id>;

/// The number behind an identifier, for indexing its own table.
template <identifier Id>
EBB_FN constexpr int index(Id id) {
  return static_cast<int>(id);
}

/// One live session: a slot and the incarnation that occupies it. A handle of an older incarnation is rejected.
struct request_id {
  std::int32_t slot = -1;
  std::uint32_t incarnation = 0;
  friend constexpr bool operator==(request_id const&, request_id const&) = default;
};

/// One word of the resident map: where a page is on the GPU and where its host copy is.
struct alignas(8) map_entry {
  frame_id frame = frame_id::none;
  host_page_id host = host_page_id::none;
  friend constexpr bool operator==(map_entry const&, map_entry const&) = default;
};
static_assert(sizeof(map_entry) == 8);

}  // namespace ebb

#pragma once
/// The concept of attention metadata.

#include <ebb/source_view.hpp>

#include <concepts>
#include <cstdint>

namespace ebb {

/// What the resolver writes for attention.
///
/// | expression | returns | meaning |
/// |---|---|---|
/// | `typename M::entry`, `typename M::ref` | – | one entry; the device buffers of one call, trivially copyable |
/// | `M::packed` | bool | valid entries form a prefix and each row has a length |
/// | `M::width(top_k)` | int | entries of one row |
/// | `M::entries(ref)` | entry* | `[rows][width]` |
/// | `M::make(view, address)` | entry | entry of a row address of a source |
/// | `M::invalid()` | entry | filler of unused entries (not asked for where packed) |
/// | `M::translate(entry, from, to)` | entry | the same row slot of another source of the set |
/// | `M::check(views, rows)` | – | optional: throws where the local sources' views or row addresses below `rows` do not suit |
template <class M>
concept metadata = requires(typename M::ref r, source_view const& v, typename M::entry e) {
  { M::packed } -> std::convertible_to<bool>;
  { M::width(512) } -> std::convertible_to<int>;
  { M::entries(r) } -> std::same_as<typename M::entry*>;
  { M::make(v, 0) } -> std::same_as<typename M::entry>;
  { M::invalid() } -> std::same_as<typename M::entry>;
  { M::translate(e, v, v) } -> std::same_as<typename M::entry>;
};

}  // namespace ebb

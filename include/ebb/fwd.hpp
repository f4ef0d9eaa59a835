#pragma once
/// Forward declarations of what an engine names.

#include <ebb/ids.hpp>
#include <ebb/policy.hpp>
#include <ebb/space.hpp>

namespace ebb {

template <policy P>
struct resident_map_ref;
template <policy P, space S>
class resident_map;
template <policy P>
class loan_allocator;
template <policy P>
struct resolve_body;
template <policy P, space S>
class residency;

}  // namespace ebb

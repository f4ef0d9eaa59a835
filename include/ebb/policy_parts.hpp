#pragma once
/// Whether a policy's parts are what their concepts ask for.

#include <ebb/metadata/metadata.hpp>
#include <ebb/orders/backup.hpp>
#include <ebb/orders/keep.hpp>
#include <ebb/policy.hpp>
#include <ebb/tiers/host_pages.hpp>
#include <ebb/tiers/row_table.hpp>

namespace ebb {

template <class T>
using is_row_cache = std::bool_constant<row_cache<T>>;
template <class T>
using has_exponent_bits = std::bool_constant<requires { requires T::exponent_bits >= 0 && T::exponent_bits <= 16; }>;
template <class T>
using is_row_place = std::bool_constant<row_place<T>>;
template <class T>
using is_backing_tier = std::bool_constant<backing_tier<T>>;

/// Refuses a policy whose parts are not what their concepts ask for, with one sentence each.
template <policy P>
constexpr bool check_parts() {
  static_assert(P::tiers::template each<tier_kind::cache, has_exponent_bits>,
                "ebb policy: `exponent_bits` of the row cache is out of range; 0 to 16 bits of a word are legal");
  static_assert(P::tiers::template each<tier_kind::cache, is_row_cache>,
                "ebb policy: the row cache of `tiers` is not a row place; it needs find and claim, as "
                "ebb/tiers/row_table.hpp says");
  static_assert(P::tiers::template each<tier_kind::staging, is_row_place>,
                "ebb policy: the staging tier of `tiers` is not a row place; it needs claim, as "
                "ebb/tiers/row_table.hpp says");
  static_assert(P::tiers::template each<tier_kind::backing, is_backing_tier>,
                "ebb policy: a backing tier of `tiers` has no fetch that ebb/tiers/host_pages.hpp asks for");
  static_assert(keep_order<typename P::keep>,
                "ebb policy: `keep` is not a keep order; use newest, most_selected, whole_requests or a type as "
                "ebb/orders/keep.hpp says");
  static_assert(backup_order<typename P::backup>,
                "ebb policy: `backup` is not a backup order; use sealed_pages, each_step or on_revoke");
  static_assert(metadata<typename P::metadata>,
                "ebb policy: `metadata` is not attention metadata; use plain_rows, flashmla, flashinfer_packed, "
                "row_pointers, interleaved or a type as ebb/metadata/metadata.hpp says");
  return true;
}

}  // namespace ebb

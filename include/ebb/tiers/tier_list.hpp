#pragma once
/// The ordered list of tiers of a policy, and the two kinds of tier.

#include <ebb/orders/eviction.hpp>

#include <concepts>
#include <type_traits>

namespace ebb {

/// Where a tier keeps rows: in pages of the resident map, in a request's own cache frames, in row slots reused by every
/// resolve, or outside the GPU.
enum class tier_kind { lent, cache, staging, backing };

template <class T>
concept tier = requires {
  { T::kind } -> std::convertible_to<tier_kind>;
};

struct lent_pages;
struct staging_rows;
struct host_pages;
template <class Order = lrfu>
struct hot_rows;

/// The first of `Ts` that is of kind `K`, `void` where none is.
template <tier_kind K, class... Ts>
struct first_tier : std::type_identity<void> {};
template <tier_kind K, class T, class... Rest>
struct first_tier<K, T, Rest...> : std::conditional_t<T::kind == K, std::type_identity<T>, first_tier<K, Rest...>> {};

/// Where a row may be found and from where it may be fetched: places, then one or more backing tiers. A look asks the
/// resident map, then the row cache, wherever they are in the list. A claim asks the places with row slots in list order,
/// a fetch the backing tiers in list order.
///
/// Requires: every tier is a complete type where a member is first used; naming the list asks for nothing.
template <class... Ts>
struct tier_list {
  static_assert((tier<Ts> && ...),
                "ebb tiers: a type in the tier_list has no `kind`; give it `static constexpr tier_kind kind`, and "
                "include its header");

  static constexpr int size = sizeof...(Ts);

  /// Tiers of kind `K`.
  template <tier_kind K>
  static constexpr int count = (0 + ... + (Ts::kind == K ? 1 : 0));
  template <tier_kind K>
  static constexpr bool has = count<K> > 0;

  static constexpr bool lends = has<tier_kind::lent>;
  static constexpr bool caches = has<tier_kind::cache>;
  static constexpr bool stages = has<tier_kind::staging>;

  /// One or more backing tiers, all at the end; before them at most one tier of each other kind.
  static constexpr bool legal = [] {
    bool backed = false;
    bool in_order = true;
    ((in_order = in_order && (!backed || Ts::kind == tier_kind::backing),
      backed = backed || Ts::kind == tier_kind::backing),
     ...);
    return backed && in_order && count<tier_kind::lent> <= 1 && count<tier_kind::cache> <= 1 &&
           count<tier_kind::staging> <= 1;
  }();

  /// Whether every tier of kind `K` satisfies what `Is` asks for.
  template <tier_kind K, template <class> class Is>
  static constexpr bool each = ((Ts::kind != K || Is<Ts>::value) && ...);

  /// Calls `f.template operator()<Place>()` for every place with row slots, in list order.
  EBB_BODY
  template <class F>
  EBB_FN static void for_each_place(F&& f) {
    (
        [&] {
          if constexpr (Ts::kind == tier_kind::cache || Ts::kind == tier_kind::staging) f.template operator()<Ts>();
        }(),
        ...);
  }
  /// The row's index in the first backing tier that has it, −1 where none has.
  template <class Entry>
  EBB_FN static long long fetch(Entry const& entry, int offset, int rows_per_page) {
    long long found = -1;
    (
        [&] {
          if constexpr (Ts::kind == tier_kind::backing) {
            if (found < 0) found = Ts::fetch(entry, offset, rows_per_page);
          }
        }(),
        ...);
    return found;
  }

  /// The first tier of a kind, `void` where there is none; `cache` is the row cache.
  template <tier_kind K>
  using first = typename first_tier<K, Ts...>::type;
  using cache = first<tier_kind::cache>;
};

}  // namespace ebb

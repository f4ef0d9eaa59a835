#include <ebb/geometry.hpp>
#include <ebb/models.hpp>
#include <ebb/tiers/host_pages.hpp>
#include <ebb/tiers/hot_rows.hpp>
#include <ebb/tiers/lent_pages.hpp>
#include <ebb/tiers/staging_rows.hpp>

#include <doctest/doctest.h>

#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace {

using namespace ebb;

static_assert(std::is_trivially_copyable_v<geometry<models::glm51_bf16>>);

/// Two groups of two sources each share one set, in another layer order; a third has a source of its own, at another
/// ratio.
struct crossed : policy_defaults {
  static constexpr row_segments row{100, 4};
  static constexpr int page_tokens = 16;
  static constexpr int page_multiple = 7;
  static constexpr int top_k = 8;
  static constexpr std::array<layer_binding, 5> layers{{{1, 2}, {0, 0}, {0, 1}, {2, 1}, {2, 0}}};
  static constexpr std::array<int, 3> ratios{2, 2, 4};
};

static_assert(check_policy<crossed>());
static_assert(check_policy<models::dsv32_fp8ds>() && check_policy<models::glm53_fp8ds>() &&
              check_policy<models::glm53_fp8>() && check_policy<models::glm51_bf16>() &&
              check_policy<models::dsv4_flash>() && check_policy<models::qsa_record>() &&
              check_policy<models::dsv41_flash_fp4>() && check_policy<models::dsv41_flash_fp8>());

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (std::exception const& e) {
    return e.what();
  }
  return "nothing thrown";
}

/// Compares a geometry with sets of numbers collected layer by layer.
template <policy P>
void check_range(int first, int count) {
  geometry<P> const g{{first, count}};
  std::map<int, std::set<int>> model_sources;
  for (auto l : P::layers) model_sources[l.group].insert(l.source);
  std::set<int> sources;
  std::set<int> groups;
  for (int i = first; i < first + count; ++i) {
    sources.insert(P::layers[static_cast<std::size_t>(i)].source);
    groups.insert(P::layers[static_cast<std::size_t>(i)].group);
  }
  REQUIRE(g.sources() == static_cast<int>(sources.size()));
  REQUIRE(g.groups() == static_cast<int>(groups.size()));
  int local = 0;
  for (int s : sources) {
    CHECK(g.source(source_id{s}) == local);
    CHECK(g.id_of_source(local++) == source_id{s});
  }
  std::set<std::set<int>> sets;
  std::map<std::set<int>, int> users;
  for (int id : groups) {
    std::set<int> here;
    for (int s : model_sources[id]) {
      if (sources.count(s) != 0) here.insert(s);
    }
    sets.insert(here);
    ++users[here];
  }
  REQUIRE(g.sets() == static_cast<int>(sets.size()));
  std::size_t largest = 0;
  for (int id : groups) {
    int const group = g.group(group_id{id});
    CHECK(g.id_of_group(group) == group_id{id});
    int const set = g.set_of_group(group);
    std::set<int> here;
    for (int i = 0; i < g.sources_of_set(set); ++i) {
      int const s = g.source_of_set(set, i);
      CHECK(g.set_of_source(s) == set);
      CHECK(g.ratio(s) == g.ratio_of_set(set));
      here.insert(index(g.id_of_source(s)));
    }
    CHECK(sets.count(here) == 1);
    CHECK(g.groups_of_set(set) == users[here]);
    largest = std::max(largest, here.size());
  }
  CHECK(g.largest_set() == static_cast<int>(largest));
}

template <policy P>
void check_all_ranges() {
  int const layers = static_cast<int>(P::layers.size());
  for (int first = 0; first < layers; ++first) {
    for (int count = 1; count <= layers - first; count += 1 + count / 4) check_range<P>(first, count);
  }
}

TEST_CASE("any range of any preset has the sources, groups and sets of its layers") {
  check_all_ranges<models::dsv32_fp8ds>();
  check_all_ranges<models::glm53_fp8>();
  check_all_ranges<models::dsv4_flash>();
  check_all_ranges<models::dsv41_flash_fp4>();
  check_all_ranges<models::qsa_record>();
  check_all_ranges<crossed>();
}

TEST_CASE("by default a rank runs the whole model") {
  geometry<models::glm53_fp8> const g;
  CHECK(g.sources() == 78);
  CHECK(g.groups() == 21);
  CHECK(g.sets() == 21);
  CHECK(g.largest_set() == 4);
  CHECK(g.page_bytes() == 78LL * 64 * 576);
  geometry<models::glm53_fp8> const rest{{70, -1}};
  CHECK(rest.sources() == 8);
  CHECK(rest.groups() == 2);
}

TEST_CASE("five groups share the table of V4.1's last source") {
  geometry<models::dsv41_flash_fp4> const g;
  REQUIRE(g.sets() == 4);
  CHECK(g.groups_of_set(0) == 1);
  CHECK(g.groups_of_set(3) == 5);
  CHECK(g.ratio_of_set(0) == 2);
  CHECK(g.ratio_of_set(3) == 1);
  CHECK(g.smallest_ratio() == 1);
  CHECK(g.page_bytes() == 3 * 18'432 + 36'864);
}

TEST_CASE("layouts are those of the local source") {
  geometry<models::dsv41_flash_fp8> const last{{18, -1}};
  REQUIRE(last.sources() == 1);
  CHECK(last.id_of_source(0) == source_id{3});
  CHECK(last.layout(0).rows == 128);
  CHECK(last.layout(0).stride == 67'584);
  CHECK(last.layout(0).page_end_offset(129) == 67'584 + 65'536 + 16);
  geometry<crossed> const g;
  CHECK(g.layout(0).stride == 833);  // 8 rows of 104 bytes, up to a multiple of 7
  CHECK(g.layout(2).stride == 420);  // 4 rows
  CHECK(g.rows_per_page(2) == 4);
}

TEST_CASE("a group cut by the range keeps its local layers") {
  geometry<models::glm53_fp8> const g{{4, 4}};  // layers 4 and 5 of group 2, 6 and 7 of group 3
  REQUIRE(g.groups() == 2);
  CHECK(g.sources_of_set(g.set_of_group(g.group(group_id{2}))) == 2);
  CHECK(g.source(source_id{4}) == 0);
  CHECK(g.source(source_id{7}) == 3);
}

TEST_CASE("groups cut differently still share the table of their set") {
  geometry<crossed> const g{{2, 2}};  // group 0 reads source 1 here, and so does group 2
  REQUIRE(g.groups() == 2);
  CHECK(g.sets() == 1);
  geometry<crossed> const wider{{2, 3}};  // group 0 reads source 1 here, group 2 both
  CHECK(wider.sets() == 1);
  CHECK(wider.sources_of_set(0) == 2);
  CHECK(wider.groups_of_set(0) == 2);
}

TEST_CASE("an unknown number is refused with what is legal here") {
  geometry<models::dsv32_fp8ds> const g{{12, 20}};
  CHECK_THROWS_AS(static_cast<void>(g.source(source_id{11})), std::out_of_range);
  CHECK(message_of([&] { static_cast<void>(g.source(source_id{32})); }) ==
        "source is 32; legal on this rank: 12 to 31");
  CHECK(message_of([&] { static_cast<void>(g.group(group_id{-1})); }) == "group is -1; legal on this rank: 12 to 31");
  CHECK(message_of([&] { static_cast<void>(g.source(source_id{61})); }) ==
        "source is 61; legal on this rank: 12 to 31");
  geometry<crossed> const gap{{0, 2}};  // sources 2 and 0
  CHECK(message_of([&] { static_cast<void>(gap.source(source_id{1})); }) == "source is 1; legal on this rank: 0, 2");
}

TEST_CASE("a range that leaves the model is refused with parameter, value and range") {
  using g = geometry<models::qsa_record>;
  CHECK_THROWS_AS(g({-1, 1}), std::invalid_argument);
  CHECK(message_of([] { g({12, -1}); }) == "layers.first is 12; legal: 0 to 11");
  CHECK(message_of([] { g({3, 10}); }) == "layers.count is 10; legal: 1 to 9, or -1 for all to the end");
  CHECK(message_of([] { g({3, 0}); }) == "layers.count is 0; legal: 1 to 9, or -1 for all to the end");
  CHECK(g({3, 9}).sources() == 9);
}

}  // namespace

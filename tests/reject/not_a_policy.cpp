// expect: check_policy
#include <ebb/policy.hpp>

struct only_a_page {
  static constexpr int page_tokens = 64;
};
static_assert(ebb::check_policy<only_a_page>());

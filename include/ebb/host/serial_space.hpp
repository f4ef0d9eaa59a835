#pragma once
/// Bodies as plain serial code: teams of one lane, one item after another.

#include <ebb/host/queue_space.hpp>
#include <ebb/space.hpp>
#include <ebb/team.hpp>

namespace ebb {

/// `serial_space{}` runs work when it is enqueued; `serial_space{host::deferred{seed}}` when a test advances, items in
/// seeded order.
class serial_space : public host::queue_space {
 public:
  serial_space() = default;
  explicit serial_space(host::deferred mode) : queue_space{mode} {}

  template <class Body>
  void run(stream on, int items, Body const& body) const {
    enqueue_run(on, items, [items, body](host::generator* shuffle) {
      host::shared_storage<typename shared_of<Body>::type> shared;
      for (int const item : item_order(items, shuffle)) ebb::call(body, serial_team{}, item, shared.poison());
    });
  }
};
static_assert(space<serial_space>);

}  // namespace ebb

// What the data of a group's collectives goes through.
#pragma once

#include "hierarchy.hpp"
#include "node_layout.hpp"

#include <oneapi/ccl.hpp>

namespace ccl_backend {

// The paths of one lane of a group.
struct Paths {
  std::unique_ptr<ccl::communicator> communicator; // of all ranks
  // Of the ranks with this rank's position on their nodes; only with `hierarchy`, which uses it.
  std::unique_ptr<ccl::communicator> across;
  std::shared_ptr<SharedExchange> shared; // nullptr unless all ranks share memory
  bool oneccl_rounds = false; // see NodeLayout
  std::shared_ptr<Hierarchy> hierarchy; // nullptr unless each of several nodes has several ranks that share memory
};

// A collective of all ranks of the group. `check` as in `connect`. Raises DistBackendError with the reason.
Paths open_paths(
    const GroupOptions& group, const c10::intrusive_ptr<c10d::Store>& store, const TimeLimit& limit,
    const std::function<void()>& check);

} // namespace ccl_backend

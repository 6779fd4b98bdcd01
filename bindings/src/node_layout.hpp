// Which ranks of a group are on the same node.
#pragma once

#include "group_options.hpp"

#include <functional>
#include <vector>

namespace ccl_backend {

struct NodeLayout {
  // Ranks of the group on this rank's node, ascending.
  std::vector<int> node;
  // The ranks that have this rank's position on their nodes, in the order of the nodes. Empty if the nodes have
  // different numbers of ranks.
  std::vector<int> across;
  // Whether oneCCL's own sums and products of bfloat16 are rounded on all ranks. If so, all ranks use them; otherwise, no rank does.
  bool oneccl_rounds = true;

  bool is_one_node() const {
    return across.size() == 1;
  }
};

// A collective of all ranks of the store. A node is where processes see each other: the same kernel and the same PID
// namespace. A rank whose shared memory is off is a node of its own. `check` is called while this rank waits, and may
// raise.
NodeLayout find_layout(
    const GroupOptions& group, const c10::intrusive_ptr<c10d::Store>& store, const TimeLimit& limit,
    const std::function<void()>& check);

// The layout of ranks with these nodes, for one of them.
NodeLayout layout_of(const std::vector<std::string>& nodes, int rank);

// The group that consists of these ranks of `group`, without a store.
GroupOptions part_of(const GroupOptions& group, const std::vector<int>& ranks);

} // namespace ccl_backend

#include "node_layout.hpp"

#include "store_barriers.hpp"
#include "sums.hpp"
#include "transport.hpp"

#include <algorithm>
#include <array>
#include <climits>
#include <fstream>
#include <sstream>
#include <unistd.h>

namespace ccl_backend {
namespace {

constexpr const char* kNodes = "nodes"; // in the store: every rank's node, separated by spaces
constexpr const char* kTruncates = "truncates"; // exists if oneCCL's own sums truncate on any rank

std::string node_key(int rank) {
  return c10::str("node/", rank);
}

// Without spaces.
std::string own_node(int rank) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string kernel;
  file >> kernel;
  std::array<char, PATH_MAX> space{};
  const auto length = ::readlink("/proc/self/ns/pid", space.data(), space.size() - 1);
  if (kernel.empty() || length < 0 || !uses_shared_memory()) {
    return c10::str("rank-", rank);
  }
  return c10::str(kernel, "-", space.data());
}

} // namespace

NodeLayout layout_of(const std::vector<std::string>& nodes, int rank) {
  std::vector<std::string> names; // of the nodes, in the order of their first ranks
  std::vector<std::vector<int>> ranks;
  for (size_t other = 0; other < nodes.size(); ++other) {
    const auto found = static_cast<size_t>(std::find(names.begin(), names.end(), nodes[other]) - names.begin());
    if (found == names.size()) {
      names.push_back(nodes[other]);
      ranks.emplace_back();
    }
    ranks[found].push_back(static_cast<int>(other));
  }
  const auto own = std::find(names.begin(), names.end(), nodes[rank]) - names.begin();
  NodeLayout layout;
  layout.node = ranks[own];
  const auto is_like_own = [&](const std::vector<int>& node) { return node.size() == layout.node.size(); };
  if (std::all_of(ranks.begin(), ranks.end(), is_like_own)) {
    const auto position = std::find(layout.node.begin(), layout.node.end(), rank) - layout.node.begin();
    for (const auto& node : ranks) {
      layout.across.push_back(node[position]);
    }
  }
  return layout;
}

NodeLayout find_layout(
    const GroupOptions& group, const c10::intrusive_ptr<c10d::Store>& parent, const TimeLimit& limit,
    const std::function<void()>& check) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::PrefixStore>("layout", parent);
  put_text(*store, node_key(group.rank), own_node(group.rank));
  if (!oneccl_rounds_bfloat16()) {
    put_text(*store, kTruncates, "");
  }
  join(group, *store, limit, check);
  if (group.rank == 0) { // reads all keys for the others, which would be a square of them
    std::string nodes;
    for (int rank = 0; rank < group.size; ++rank) {
      nodes += get_text(*store, node_key(rank)) + " ";
    }
    put_text(*store, kNodes, nodes);
  }
  wait_for(*store, kNodes, limit, check);
  std::istringstream text(get_text(*store, kNodes));
  std::vector<std::string> nodes(group.size);
  for (auto& node : nodes) {
    text >> node;
  }
  auto layout = layout_of(nodes, group.rank);
  layout.oneccl_rounds = !store->check({kTruncates});
  return layout;
}

GroupOptions part_of(const GroupOptions& group, const std::vector<int>& ranks) {
  GroupOptions part{{}, 0, static_cast<int>(ranks.size()), group.timeout, group.name, {}, false};
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == group.rank) {
      part.rank = static_cast<int>(i);
    }
    part.global_ranks.push_back(group.global_rank(ranks[i]));
  }
  return part;
}

} // namespace ccl_backend

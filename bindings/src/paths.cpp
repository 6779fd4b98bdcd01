#include "paths.hpp"

#include "connect.hpp"
#include "engine.hpp"
#include "store_barriers.hpp"
#include "transport.hpp"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace ccl_backend {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Sets `across` and `hierarchy`, if every node has the same number of ranks, at least two, which share memory.
void open_hierarchy(
    Paths& paths, const GroupOptions& group, const NodeLayout& layout, const StorePtr& parent, const TimeLimit& limit,
    const std::function<void()>& check) {
  if (layout.across.size() < 2 || layout.node.size() < 2) {
    return;
  }
  const StorePtr store = c10::make_intrusive<c10d::PrefixStore>("hierarchy", parent);
  const auto store_of = [&](const char* kind, const std::vector<int>& ranks) {
    return c10::make_intrusive<c10d::PrefixStore>(c10::str(kind, "/", ranks.front()), store);
  };
  const auto node = part_of(group, layout.node);
  auto exchange = SharedExchange::create(node, store_of("node", layout.node), limit, check);
  if (exchange == nullptr) {
    store->set("missing", "");
  }
  join(group, *store, limit, check);
  if (store->check({"missing"})) { // on any node
    return;
  }
  paths.across = connect(part_of(group, layout.across), store_of("across", layout.across), limit, check);
  paths.hierarchy = std::make_shared<Hierarchy>(std::move(exchange), node.size, node.rank, *paths.across);
}

} // namespace

Paths open_paths(
    const GroupOptions& group, const StorePtr& store, const TimeLimit& limit, const std::function<void()>& check) {
  const auto layout = find_layout(group, store, limit, check);
  Paths paths;
  if (layout.is_one_node()) {
    paths.shared = SharedExchange::create(group, store, limit, check);
  }
  paths.communicator = connect(group, store, limit, check);
  try {
    open_hierarchy(paths, group, layout, store, limit, check);
  } catch (...) {
    Remains remains;
    remains.add(std::move(paths));
    const auto guard = Engine::instance().lock();
    (void)retire(std::move(remains), false);
    throw;
  }
  return paths;
}

} // namespace ccl_backend

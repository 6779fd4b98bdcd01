#include "paths.hpp"

#include "connect.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "store_barriers.hpp"
#include "transport.hpp"

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
    put_text(*store, "missing", "");
  }
  join(group, *store, limit, check);
  if (store->check({"missing"})) { // on any node
    return;
  }
  paths.across = connect(part_of(group, layout.across), store_of("across", layout.across), limit, check);
  paths.hierarchy = std::make_shared<Hierarchy>(std::move(exchange), node.size, node.rank, *paths.across);
}

// Sets all paths. Those that exist after an error belong to the caller.
void open_all(
    Paths& paths, const GroupOptions& group, const StorePtr& store, const TimeLimit& limit,
    const std::function<void()>& check) {
  const auto layout = find_layout(group, store, limit, check);
  paths.oneccl_rounds = layout.oneccl_rounds;
  if (layout.is_one_node()) {
    paths.shared = SharedExchange::create(group, store, limit, check);
  }
  paths.communicator = connect(group, store, limit, check);
  open_hierarchy(paths, group, layout, store, limit, check);
}

} // namespace

Paths open_paths(
    const GroupOptions& group, const StorePtr& store, const TimeLimit& limit, const std::function<void()>& check) {
  Paths paths;
  try {
    open_all(paths, group, store, limit, check);
  } catch (const std::exception& error) {
    Remains remains;
    remains.add(std::move(paths));
    if (!remains.communicators.empty()) {
      try {
        const auto guard = Engine::instance().lock();
        retire(std::move(remains), false);
      } catch (const std::exception&) { // the process is ending, or oneCCL is blocked and may use them
        for (auto& communicator : remains.communicators) {
          (void)communicator.release();
        }
      }
    }
    C10_THROW_ERROR(
        DistBackendError, c10::str("ccl: the ranks could not connect, ", group.where(), ": ", message_of(error)));
  }
  return paths;
}

} // namespace ccl_backend

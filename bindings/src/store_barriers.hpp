// How the ranks of a group wait for each other through its store. The barriers name the ranks that are missing.
#pragma once

#include "group_options.hpp"

#include <functional>

namespace ccl_backend {

// Returns when the store has the key. Raises the store's error at the limit. `check` is called every 10 ms and may raise
// to give up.
void wait_for(
    c10d::Store& store, const std::string& key, const TimeLimit& limit, const std::function<void()>& check);

// Returns when all ranks have called this with this store. `check`, if there is one, is as in `wait_for`. Raises
// DistBackendError that names the ranks that did not call in time.
void join(
    const GroupOptions& group, c10d::Store& store, const TimeLimit& limit,
    const std::function<void()>& check = nullptr);

// torch.distributed.monitored_barrier: rank 0 waits for all others, the others wait for rank 0. `number` counts the
// group's barriers. Raises DistBackendError that names the missing ranks: all of them with `wait_for_all`, else the
// first.
void monitored_barrier(const GroupOptions& group, uint64_t number, Milliseconds timeout, bool wait_for_all);

} // namespace ccl_backend

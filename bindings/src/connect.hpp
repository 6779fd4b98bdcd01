// Creates oneCCL's communicators.
#pragma once

#include "group_options.hpp"

#include <oneapi/ccl.hpp>

#include <functional>
#include <memory>

namespace ccl_backend {

// A communicator of all ranks of the group. Every rank has to call this. `check` is called every 50 ms and may raise
// to give up. Raises DistBackendError at the limit, or with oneCCL's own message.
std::unique_ptr<ccl::communicator> connect(
    const GroupOptions& group, const c10::intrusive_ptr<c10d::Store>& store, const TimeLimit& limit,
    const std::function<void()>& check);

} // namespace ccl_backend

// Which ranks the process can talk to through shared memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ccl_backend {

// oneCCL's transport is one for the process: the first communicator makes it, the last one takes it down. Over shared
// memory it never learns of ranks that were not in the first; a group with such a rank would wait for ever.
//
// `ranks` are the default group's numbers; empty means all of them.

// Raises ValueError if a communicator of these ranks would wait for ever.
void check_reach(const std::vector<int64_t>& ranks, const std::string& where);
void communicator_made(const std::vector<int64_t>& ranks);
void communicator_gone();

} // namespace ccl_backend

// oneCCL's transport, which is one for the process: its start, whom it reaches, and its end.
#pragma once

#include "mailbox.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ccl_backend {

// The first communicator makes the transport, the last one takes it down. Over shared memory the transport never
// learns of ranks that were not in the first communicator: a group with such a rank would wait for ever.
//
// `ranks` are the default group's numbers; empty means all of them.

// Raises ValueError if a communicator of these ranks would wait for ever.
void check_reach(const std::vector<int64_t>& ranks, const std::string& where);

// All below: with the engine locked.

// oneCCL prints a line on standard output for each variable that is not at its default, the first of them before
// its log level is read. These lines are taken out; whatever else it prints goes on to standard error.
void initialize_library();

void communicator_made(const std::vector<int64_t>& ranks);

// What a group leaves. Members go in the reverse order: a mailbox uses the communicator.
struct Remains {
  std::vector<std::unique_ptr<ccl::communicator>> communicators;
  std::unique_ptr<Mailbox> mailbox;
};

// The group's end. Where transfers are in flight that may never complete, `is_idle` false, its communicators stay
// until no other group of the process uses oneCCL: then the transport is taken down with all that is in flight.
// True if that has happened: nobody writes to the tensors of operations that were given up any more.
bool retire(Remains remains, bool is_idle);

} // namespace ccl_backend

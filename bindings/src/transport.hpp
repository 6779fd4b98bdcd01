// oneCCL's transport, of which a process has one: its start, the ranks that it reaches, and its end.
#pragma once

#include "mailbox.hpp"
#include "paths.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ccl_backend {

// The first communicator creates the transport, and the last one destroys it. Over shared memory, the transport reaches
// only ranks of the first communicator: a group with another rank would wait forever.
//
// `ranks` are numbers in the default group; empty means all ranks: see GroupOptions::reached.

// Raises ValueError if a communicator of these ranks would wait forever.
void check_reach(const std::vector<int64_t>& ranks, const std::string& where);

// Whether ranks of one node exchange data through shared memory: CCL_ATL_SHM.
bool uses_shared_memory();

// All functions below are called with the engine locked.

// Initializes oneCCL, once. oneCCL prints a line to standard output for each variable that differs from its default,
// even before it reads its log level. These lines are dropped; the rest of its output goes to standard error.
void initialize_library();

void communicator_made(const std::vector<int64_t>& ranks);

// Receives what other ranks send. oneCCL does this only while a oneCCL call of this rank is in flight: a rank that waits
// for something else, such as a sum through shared memory, would block ranks whose messages fill the queues to it.
void make_progress();

// What a group leaves behind. Members are destroyed in reverse order: a mailbox uses the communicator.
struct Remains {
  void add(Paths paths);

  std::vector<std::unique_ptr<ccl::communicator>> communicators;
  std::unique_ptr<Mailbox> mailbox;
};

// Destroys the remains of a group. If `is_idle` is false, transfers that may never complete are in flight: the
// communicators are then kept until no other group of the process uses oneCCL, when the transport is destroyed with all
// transfers. oneCCL then no longer writes to the tensors of abandoned operations, so these are released too.
void retire(Remains remains, bool is_idle);

} // namespace ccl_backend

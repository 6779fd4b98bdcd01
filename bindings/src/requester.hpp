// The Python thread that requested a future, and may be about to attach a callback to it.
#pragma once

#include "patience.hpp"

#include <ATen/core/ivalue.h>

#include <sys/types.h>

namespace ccl_backend {

// A future that completes before a callback is attached runs the callback in the thread that attaches it, whose
// collectives would use another lane than on the other ranks. Python may interrupt the thread between the request of
// the future and the attachment, and torch's `then` releases the GIL.
class Requester {
 public:
  // The calling thread.
  Requester();

  // In another thread, without the GIL: returns when the future has a callback, or when the thread does something else
  // than attach one: it waits for an event, such as the future's completion, it sleeps, or it computes.
  void wait_until_attached(c10::ivalue::Future& future) const;

 private:
  microseconds cpu_time() const;
  bool is_runnable() const;
  bool waits_for_event() const;
  std::string status(const char* file) const;

  pid_t thread_;
  clockid_t clock_;
};

} // namespace ccl_backend

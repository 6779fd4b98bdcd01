// File descriptors, and TCP connections that detect an unreachable peer.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

namespace ccl_backend {

// Owns a file descriptor. Closed in forked children, which would otherwise keep connections open after their parent's
// death.
class Socket {
 public:
  Socket() = default;
  // Owns the descriptor that `open` returns, and preserves errno. Not open if `open` returns a negative number. `open`
  // must not block, because a fork of the process waits for it.
  static Socket make(const std::function<int()>& open);
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() {
    close();
  }

  int descriptor() const {
    return descriptor_;
  }
  bool is_open() const {
    return descriptor_ >= 0;
  }
  void close();

 private:
  int descriptor_ = -1;
  pid_t process_ = 0; // in another process, the number may refer to another file
};

using Deadline = std::chrono::steady_clock::time_point;

// Raises DistBackendError with `what` and the description of errno.
[[noreturn]] void raise_errno(const std::string& what);

// Rounded up, as a timeout for poll().
int milliseconds_until(Deadline deadline);

// Whether one of the poll() events occurred before the deadline.
bool is_ready(const Socket& socket, short events, Deadline deadline);

// Makes the kernel close the connection when the peer host has not responded for `limit`.
void close_when_unreachable(const Socket& socket, std::chrono::seconds limit);

} // namespace ccl_backend

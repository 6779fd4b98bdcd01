// File descriptors, and TCP connections whose other host may disappear.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

namespace ccl_backend {

// Owns a file descriptor. A forked child has none of its parent's: it would keep connections open after the parent's
// death.
class Socket {
 public:
  Socket() = default;
  // What `open` returns, with errno as it left it; not open where that is negative. `open` must not block: no fork of
  // the process comes in between.
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
  pid_t process_ = 0; // in another one the number may stand for another file
};

using Deadline = std::chrono::steady_clock::time_point;

// Raises DistBackendError with `what` and errno's meaning.
[[noreturn]] void raise_errno(const std::string& what);

// Rounded up, for poll.
int milliseconds_until(Deadline deadline);

// Whether one of poll's events came before the deadline.
bool is_ready(const Socket& socket, short events, Deadline deadline);

// The kernel reports a connection whose other host does not answer for `limit` as closed.
void close_when_unreachable(const Socket& socket, std::chrono::seconds limit);

} // namespace ccl_backend

// TCP connections between two ranks, each step bounded.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace ccl_backend {

// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(other.release()) {}
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
  int release();

 private:
  int descriptor_ = -1;
};

using Deadline = std::chrono::steady_clock::time_point;

// Where a rank listens, as it tells others: "10.0.0.1 40123 9f3c...". The last is a secret that shows that a
// connection is meant for this rank and this group.
class Listener {
 public:
  // On the address of the interface FI_TCP_IFACE, else on that of the host's name; the port is any, or from
  // FI_TCP_PORT_LOW_RANGE to FI_TCP_PORT_HIGH_RANGE, like libfabric's. Raises DistBackendError.
  Listener();

  std::string address() const;
  // The connection of the rank that was given the address; not open if there is none at the deadline.
  Socket accept(Deadline deadline) const;

 private:
  Socket socket_;
  std::string host_;
  uint16_t port_ = 0;
  std::string secret_;
};

// Raises DistBackendError at the deadline, or with what the kernel said.
Socket connect_to(const std::string& address, Deadline deadline);

// The kernel reports a connection whose other host does not answer for `limit` as closed.
void close_when_unreachable(const Socket& socket, std::chrono::seconds limit);

} // namespace ccl_backend

// IP addresses of ranks.
#pragma once

#include "sockets.hpp"

#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace ccl_backend {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  sockaddr* get() {
    return reinterpret_cast<sockaddr*>(&storage);
  }
};

// The address of the interface FI_TCP_IFACE if the variable is set, else of the host name. The port is not set. Raises
// DistBackendError.
Address own_address();

// Raises DistBackendError.
Address resolve(const std::string& host, const std::string& port);

// Binds to a free port, as libfabric does: within FI_TCP_PORT_LOW_RANGE to FI_TCP_PORT_HIGH_RANGE if both are set.
// Returns false if all ports of the range are in use.
bool bind_to_any(const Socket& socket, Address& address);

} // namespace ccl_backend

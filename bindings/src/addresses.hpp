// Where a rank can be reached.
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

// Of the interface FI_TCP_IFACE, else of the host's name, without a port. Raises DistBackendError.
Address own_address();

// Raises DistBackendError.
Address resolve(const std::string& host, const std::string& port);

// Binds to a port that is free, from FI_TCP_PORT_LOW_RANGE to FI_TCP_PORT_HIGH_RANGE where they are set, like
// libfabric; false where all are in use.
bool bind_to_any(const Socket& socket, Address& address);

} // namespace ccl_backend

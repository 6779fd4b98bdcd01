#include "addresses.hpp"

#include <c10/util/Exception.h>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

namespace ccl_backend {
namespace {

bool is_usable(const sockaddr* address) {
  if (address == nullptr) {
    return false;
  }
  if (address->sa_family == AF_INET6) {
    return !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  return address->sa_family == AF_INET;
}

Address copy(const sockaddr* address) {
  Address result;
  result.length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&result.storage, address, result.length);
  return result;
}

Address of_interface(const std::string& name) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    raise_errno("cannot list the network interfaces");
  }
  Address result;
  for (const auto* entry = all; entry != nullptr; entry = entry->ifa_next) {
    const bool is_better = result.length == 0 || (result.storage.ss_family == AF_INET6);
    if (name == entry->ifa_name && is_usable(entry->ifa_addr) && is_better) {
      result = copy(entry->ifa_addr);
    }
  }
  freeifaddrs(all);
  if (result.length == 0) {
    C10_THROW_ERROR(
        DistBackendError, c10::str("FI_TCP_IFACE is '", name, "', expected an interface with an IP address"));
  }
  return result;
}

void set_port(Address& address, uint16_t port) {
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  (address.storage.ss_family == AF_INET ? v4->sin_port : v6->sin6_port) = htons(port);
}

int port_from(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? 0 : std::clamp(std::atoi(value), 0, 65535);
}

} // namespace

Address resolve(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    C10_THROW_ERROR(DistBackendError, c10::str("cannot resolve ", host, ": ", gai_strerror(error)));
  }
  const auto result = copy(found->ai_addr);
  freeaddrinfo(found);
  return result;
}

Address own_address() {
  const char* interface = std::getenv("FI_TCP_IFACE");
  if (interface != nullptr && *interface != '\0') {
    return of_interface(interface);
  }
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return resolve(name, "0");
}

bool bind_to_any(const Socket& socket, Address& address) {
  const int low = port_from("FI_TCP_PORT_LOW_RANGE");
  const int high = port_from("FI_TCP_PORT_HIGH_RANGE");
  const int count = low > 0 && high >= low ? high - low + 1 : 1;
  // Ranks of one host start at the same time: a random first port avoids collisions.
  const int first = static_cast<int>(std::random_device()() % static_cast<unsigned>(count));
  for (int i = 0; i < count; ++i) {
    set_port(address, count == 1 && low != high ? 0 : static_cast<uint16_t>(low + (first + i) % count));
    if (bind(socket.descriptor(), address.get(), address.length) == 0) {
      return true;
    }
  }
  return false;
}

} // namespace ccl_backend

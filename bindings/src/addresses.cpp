#include "addresses.hpp"

#include <c10/util/Exception.h>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
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

// Of the first interface that `is_wanted`; IPv4 if any has such an address. Of length zero if there is none.
Address find_address(const std::function<bool(const ifaddrs&)>& is_wanted) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    raise_errno("cannot list the network interfaces");
  }
  Address result;
  for (const auto* entry = all; entry != nullptr; entry = entry->ifa_next) {
    const bool is_better = result.length == 0 ||
        (result.storage.ss_family == AF_INET6 && entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET);
    if (is_usable(entry->ifa_addr) && is_better && is_wanted(*entry)) {
      result = copy(entry->ifa_addr);
    }
  }
  freeifaddrs(all);
  return result;
}

Address of_interface(const std::string& name) {
  const auto result = find_address([&](const ifaddrs& entry) { return name == entry.ifa_name; });
  if (result.length == 0) {
    C10_THROW_ERROR(
        DistBackendError, c10::str("FI_TCP_IFACE is '", name, "', expected an interface with an IP address"));
  }
  return result;
}

bool is_loopback(const Address& address) {
  const auto* const v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  return address.storage.ss_family == AF_INET ? ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET
                                              : IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

// The address from which this host reaches another one. Of length zero if it does not.
Address source_towards(const char* host) {
  Address result;
  try {
    auto there = resolve(host, "9");
    const auto probe = Socket::make([&] { return socket(there.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0); });
    result.length = sizeof(result.storage);
    // Sends nothing: UDP.
    if (!probe.is_open() || connect(probe.descriptor(), there.get(), there.length) != 0 ||
        getsockname(probe.descriptor(), result.get(), &result.length) != 0 || !is_usable(result.get())) {
      result.length = 0;
    }
  } catch (const std::exception&) { // the name has no address
    result.length = 0;
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
  const auto named = resolve(name, "0");
  if (!is_loopback(named)) {
    return named;
  }
  // Debian's own /etc/hosts has 127.0.1.1 for the host's name, which other hosts cannot reach.
  const char* master = std::getenv("MASTER_ADDR");
  const auto towards_master = source_towards(master == nullptr ? "" : master);
  if (towards_master.length > 0 && !is_loopback(towards_master)) {
    return towards_master;
  }
  const auto outer = find_address([](const ifaddrs& entry) {
    return (entry.ifa_flags & IFF_LOOPBACK) == 0 && (entry.ifa_flags & IFF_RUNNING) != 0;
  });
  return outer.length > 0 ? outer : named;
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

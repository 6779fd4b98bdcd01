#include "sockets.hpp"

#include <c10/util/Exception.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <random>
#include <sstream>

namespace ccl_backend {
namespace {

using std::chrono::milliseconds;

// A stranger's connection must not hold up the rank that is expected.
constexpr milliseconds kSayWho{2000};

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  sockaddr* get() {
    return reinterpret_cast<sockaddr*>(&storage);
  }
};

[[noreturn]] void raise(const std::string& what) {
  C10_THROW_ERROR(DistBackendError, c10::str(what, ": ", std::strerror(errno)));
}

int left_until(Deadline deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

bool is_ready(const Socket& socket, short events, Deadline deadline) {
  pollfd wanted{socket.descriptor(), events, 0};
  int found;
  do {
    found = poll(&wanted, 1, left_until(deadline));
  } while (found < 0 && errno == EINTR);
  return found > 0;
}

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
    raise("the network interfaces cannot be read");
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
    C10_THROW_ERROR(DistBackendError, c10::str("FI_TCP_IFACE is ", name, ", an interface without an address"));
  }
  return result;
}

Address resolve(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    C10_THROW_ERROR(DistBackendError, c10::str("no address for ", host, ": ", gai_strerror(error)));
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

void set_port(Address& address, uint16_t port) {
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  (address.storage.ss_family == AF_INET ? v4->sin_port : v6->sin6_port) = htons(port);
}

int port_from(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? 0 : std::clamp(std::atoi(value), 0, 65535);
}

// Binds to a port that is free; false where all of the range are in use.
bool bind_to_any(const Socket& socket, Address& address) {
  const int low = port_from("FI_TCP_PORT_LOW_RANGE");
  const int high = port_from("FI_TCP_PORT_HIGH_RANGE");
  const int count = low > 0 && high >= low ? high - low + 1 : 1;
  // Ranks of one host start at the same time: they begin their search at different ports.
  const int first = static_cast<int>(std::random_device()() % static_cast<unsigned>(count));
  for (int i = 0; i < count; ++i) {
    set_port(address, count == 1 && low != high ? 0 : static_cast<uint16_t>(low + (first + i) % count));
    if (bind(socket.descriptor(), address.get(), address.length) == 0) {
      return true;
    }
  }
  return false;
}

void set_option(const Socket& socket, int level, int option, int value) {
  if (setsockopt(socket.descriptor(), level, option, &value, sizeof(value)) != 0) {
    raise("a socket option cannot be set");
  }
}

} // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  close();
  descriptor_ = other.release();
  return *this;
}

void Socket::close() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    descriptor_ = -1;
  }
}

int Socket::release() {
  return std::exchange(descriptor_, -1);
}

Listener::Listener() {
  auto own = own_address();
  socket_ = Socket(socket(own.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket_.is_open() || !bind_to_any(socket_, own) || listen(socket_.descriptor(), 16) != 0) {
    raise("no port to listen on");
  }
  getsockname(socket_.descriptor(), own.get(), &own.length);
  char host[INET6_ADDRSTRLEN] = {};
  char port[8] = {};
  getnameinfo(own.get(), own.length, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  host_ = host;
  port_ = static_cast<uint16_t>(std::atoi(port));
  std::random_device random;
  std::ostringstream secret;
  for (int i = 0; i < 4; ++i) {
    secret << std::hex << std::setw(8) << std::setfill('0') << random();
  }
  secret_ = secret.str();
}

std::string Listener::address() const {
  return c10::str(host_, " ", port_, " ", secret_);
}

Socket Listener::accept(Deadline deadline) const {
  while (is_ready(socket_, POLLIN, deadline)) {
    Socket peer(accept4(socket_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const auto say_who = std::min(deadline, std::chrono::steady_clock::now() + kSayWho);
    std::string said;
    while (peer.is_open() && said.size() < secret_.size() && is_ready(peer, POLLIN, say_who)) {
      char part[64];
      const auto count = recv(peer.descriptor(), part, secret_.size() - said.size(), 0);
      if (count <= 0) {
        break;
      }
      said.append(part, static_cast<size_t>(count));
    }
    if (said == secret_) {
      return peer;
    }
  }
  return {};
}

Socket connect_to(const std::string& address, Deadline deadline) {
  std::istringstream parts(address);
  std::string host;
  std::string port;
  std::string secret;
  parts >> host >> port >> secret;
  auto there = resolve(host, port);
  Socket result(socket(there.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!result.is_open()) {
    raise("no socket");
  }
  if (connect(result.descriptor(), there.get(), there.length) != 0 && errno != EINPROGRESS) {
    raise(c10::str("connecting to ", host, " port ", port));
  }
  if (!is_ready(result, POLLOUT, deadline)) {
    C10_THROW_ERROR(DistBackendError, c10::str("connecting to ", host, " port ", port, ": no answer in time"));
  }
  int outcome = 0;
  socklen_t length = sizeof(outcome);
  getsockopt(result.descriptor(), SOL_SOCKET, SO_ERROR, &outcome, &length);
  errno = outcome;
  // A new connection takes as little as the secret at once.
  if (outcome != 0 || send(result.descriptor(), secret.data(), secret.size(), MSG_NOSIGNAL) < 0) {
    raise(c10::str("connecting to ", host, " port ", port));
  }
  return result;
}

void close_when_unreachable(const Socket& socket, std::chrono::seconds limit) {
  constexpr int kProbes = 3;
  const int interval = std::max<int>(1, static_cast<int>(limit.count()) / (kProbes + 2));
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(limit.count()) - kProbes * interval);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  // The same for what was sent and not acknowledged, which keepalive does not look at.
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit.count()) * 1000);
}

} // namespace ccl_backend

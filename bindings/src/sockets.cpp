#include "sockets.hpp"

#include <c10/util/Exception.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

namespace ccl_backend {
namespace {

// The descriptors of all sockets of this process. No other lock is taken under the mutex, so a fork can wait for it.
struct Descriptors {
  std::mutex mutex;
  std::vector<int> all;
};

Descriptors& descriptors = *new Descriptors(); // never destroyed: threads may outlive static objects

// Registered when the library is loaded: a child would block on a function-local static that another thread is
// initializing during the fork.
[[maybe_unused]] const int at_fork = pthread_atfork(
    [] { descriptors.mutex.lock(); },
    [] { descriptors.mutex.unlock(); },
    [] {
      for (const int descriptor : descriptors.all) {
        ::close(descriptor);
      }
      descriptors.all.clear();
      descriptors.mutex.unlock();
    });

void set_option(const Socket& socket, int level, int option, int value) {
  if (setsockopt(socket.descriptor(), level, option, &value, sizeof(value)) != 0) {
    raise_errno("cannot set a socket option");
  }
}

} // namespace

Socket Socket::make(const std::function<int()>& open) {
  Socket result;
  result.process_ = getpid();
  std::lock_guard<std::mutex> guard(descriptors.mutex);
  descriptors.all.reserve(descriptors.all.size() + 1); // may throw, so before there is a descriptor to leak
  result.descriptor_ = open();
  if (result.is_open()) {
    descriptors.all.push_back(result.descriptor_);
  }
  return result;
}

Socket::Socket(Socket&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), process_(other.process_) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
    process_ = other.process_;
  }
  return *this;
}

void Socket::close() {
  if (is_open() && process_ == getpid()) {
    std::lock_guard<std::mutex> guard(descriptors.mutex);
    auto& all = descriptors.all;
    all.erase(std::find(all.begin(), all.end(), descriptor_));
    ::close(descriptor_);
  }
  descriptor_ = -1;
}

void raise_errno(const std::string& what) {
  C10_THROW_ERROR(DistBackendError, c10::str(what, ": ", std::strerror(errno)));
}

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
}

bool is_ready(const Socket& socket, short events, Deadline deadline) {
  pollfd wanted{socket.descriptor(), events, 0};
  int found;
  do {
    found = poll(&wanted, 1, milliseconds_until(deadline));
  } while (found < 0 && errno == EINTR);
  return found > 0;
}

void close_when_unreachable(const Socket& socket, std::chrono::seconds limit) {
  const int seconds = static_cast<int>(limit.count());
  const int interval = std::max(1, seconds / 5);
  const int idle = std::max(1, seconds - 3 * interval);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, idle);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, std::max(1, (seconds - idle) / interval));
  // Keepalive ignores data that was sent and not acknowledged: this limits the wait for its acknowledgement.
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);
}

} // namespace ccl_backend

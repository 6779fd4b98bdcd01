#include "listener.hpp"

#include "addresses.hpp"

#include <c10/util/Exception.h>

#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <iomanip>
#include <random>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace ccl_backend {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kBacklog = 4096;
// How long a client may take to send the secret. When kMaxClients are connected, the shorter limit applies.
constexpr milliseconds kHandshakeTimeout{2000};
constexpr milliseconds kMinHandshakeTimeout{100};
constexpr size_t kMaxClients = 128;
// Of the secret, and of the reply.
constexpr size_t kTokenSize = 32;

struct Client {
  Socket socket;
  Clock::time_point since;
  std::string received;

  // Reads without blocking. Returns false if the connection was closed or failed.
  bool read() {
    char part[kTokenSize];
    const auto count = recv(socket.descriptor(), part, kTokenSize - received.size(), MSG_DONTWAIT);
    if (count > 0) {
      received.append(part, static_cast<size_t>(count));
    }
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
  }

  bool has_token() const {
    return received.size() == kTokenSize;
  }
};

std::string random_token() {
  std::random_device random;
  std::ostringstream token;
  for (size_t i = 0; i < kTokenSize / 8; ++i) {
    token << std::hex << std::setw(8) << std::setfill('0') << random();
  }
  return token.str();
}

// Takes constant time: the duration must not reveal how much of a guessed secret is right.
bool is_same(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) {
    return false;
  }
  unsigned difference = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    difference |= static_cast<unsigned char>(one[i] ^ other[i]);
  }
  return difference == 0;
}

// The buffer of a new connection has room for a token, so a partial send is an error.
bool send_token(const Socket& socket, std::string_view token) {
  return send(socket.descriptor(), token.data(), token.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
      static_cast<ssize_t>(token.size());
}

// Milliseconds until the oldest client has to be dropped; -1 if there is none.
int poll_timeout(const std::deque<Client>& clients, bool has_room) {
  if (clients.empty()) {
    return -1;
  }
  return milliseconds_until(clients.front().since + (has_room ? kHandshakeTimeout : kMinHandshakeTimeout));
}

} // namespace

Listener::Listener() : secret_(random_token()), reply_(random_token()) {
  auto own = own_address();
  stop_ = Socket::make([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  socket_ = Socket::make([&] { return socket(own.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!stop_.is_open() || !socket_.is_open() || !bind_to_any(socket_, own) ||
      listen(socket_.descriptor(), kBacklog) != 0) {
    raise_errno("cannot open a listening port");
  }
  getsockname(socket_.descriptor(), own.get(), &own.length);
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  getnameinfo(own.get(), own.length, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  address_ = c10::str(host, " ", port, " ", secret_, reply_);
  thread_ = std::thread([this] {
    try {
      run();
    } catch (const std::exception&) { // the neighbour's handshake times out, and both ranks warn
    }
  });
}

Listener::~Listener() {
  (void)finish();
}

Socket Listener::finish() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    (void)!write(stop_.descriptor(), &one, sizeof(one));
    thread_.join();
    socket_.close();
  }
  return std::move(accepted_);
}

void Listener::run() {
  pthread_setname_np(pthread_self(), "ccl-listener");
  std::deque<Client> clients; // the oldest first
  while (true) {
    const auto now = Clock::now();
    while (!clients.empty() && now >= clients.front().since + kHandshakeTimeout) {
      clients.pop_front();
    }
    if (clients.size() == kMaxClients && now >= clients.front().since + kMinHandshakeTimeout) {
      clients.pop_front();
    }
    const bool has_room = clients.size() < kMaxClients;
    std::vector<pollfd> wanted{{stop_.descriptor(), POLLIN, 0}, {has_room ? socket_.descriptor() : -1, POLLIN, 0}};
    for (const auto& client : clients) {
      wanted.push_back({client.socket.descriptor(), POLLIN, 0});
    }
    if (poll(wanted.data(), wanted.size(), poll_timeout(clients, has_room)) < 0) {
      if (errno != EINTR) {
        return; // the neighbour's handshake times out, and both ranks warn
      }
      continue;
    }
    if (wanted[0].revents != 0) {
      return;
    }
    std::deque<Client> remaining;
    for (size_t i = 0; i < clients.size(); ++i) {
      auto& client = clients[i];
      const bool is_alive = wanted[i + 2].revents == 0 || client.read();
      if (client.has_token() && is_same(client.received, secret_) && send_token(client.socket, reply_)) {
        accepted_ = std::move(client.socket);
        return;
      }
      if (is_alive && !client.has_token()) {
        remaining.push_back(std::move(client));
      }
    }
    clients = std::move(remaining);
    while (wanted[1].revents != 0 && clients.size() < kMaxClients) {
      auto peer = Socket::make(
          [&] { return accept4(socket_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
      if (!peer.is_open()) {
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) { // out of descriptors, for example
          std::this_thread::sleep_for(kMinHandshakeTimeout);
        }
        break;
      }
      clients.push_back({std::move(peer), Clock::now(), ""});
    }
  }
}

Socket connect_to(const std::string& address, Deadline deadline) {
  std::istringstream parts(address);
  std::string host;
  std::string port;
  std::string tokens;
  parts >> host >> port >> tokens;
  const auto where = c10::str("connecting to ", host, " port ", port);
  const auto fail = [&](const char* reason) { C10_THROW_ERROR(DistBackendError, c10::str(where, ": ", reason)); };
  if (tokens.size() != 2 * kTokenSize) {
    fail("the address in the store is invalid");
  }
  auto there = resolve(host, port);
  Client client{
      Socket::make([&] { return socket(there.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }),
      Clock::now(),
      ""};
  const auto& result = client.socket;
  if (!result.is_open()) {
    raise_errno("cannot create a socket");
  }
  if (connect(result.descriptor(), there.get(), there.length) != 0 && errno != EINPROGRESS) {
    raise_errno(where);
  }
  if (!is_ready(result, POLLOUT, deadline)) {
    fail("timed out");
  }
  int outcome = 0;
  socklen_t length = sizeof(outcome);
  getsockopt(result.descriptor(), SOL_SOCKET, SO_ERROR, &outcome, &length);
  errno = outcome;
  if (outcome != 0 || !send_token(result, std::string_view(tokens).substr(0, kTokenSize))) {
    raise_errno(where);
  }
  while (!client.has_token()) {
    if (!is_ready(result, POLLIN, deadline)) {
      fail("connected, but the handshake timed out");
    }
    if (!client.read()) {
      fail("the connection was closed during the handshake");
    }
  }
  if (!is_same(client.received, std::string_view(tokens).substr(kTokenSize))) {
    fail("another process replied");
  }
  return std::move(client.socket);
}

} // namespace ccl_backend

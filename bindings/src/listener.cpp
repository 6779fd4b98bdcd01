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
// A client may be silent for this long; less when so many others wait that there is no room for the next.
constexpr milliseconds kSayWho{2000};
constexpr milliseconds kSayWhoAtLeast{100};
constexpr size_t kMostClients = 128;
// Half of what is in the address is the secret, half the answer.
constexpr size_t kWord = 32;

struct Client {
  Socket socket;
  Clock::time_point since;
  std::string said;

  // Reads what there is; false if it will not say a whole word.
  bool read() {
    char part[kWord];
    const auto count = recv(socket.descriptor(), part, kWord - said.size(), MSG_DONTWAIT);
    if (count > 0) {
      said.append(part, static_cast<size_t>(count));
    }
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
  }

  bool has_said_all() const {
    return said.size() == kWord;
  }
};

std::string random_word() {
  std::random_device random;
  std::ostringstream word;
  for (size_t i = 0; i < kWord / 8; ++i) {
    word << std::hex << std::setw(8) << std::setfill('0') << random();
  }
  return word.str();
}

// In the same time wherever they differ: that must not tell a stranger how much of the secret was right.
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

// A new connection takes as little as a word at once.
bool say(const Socket& socket, std::string_view word) {
  return send(socket.descriptor(), word.data(), word.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
      static_cast<ssize_t>(word.size());
}

// The longest that poll may wait for the oldest client.
int patience(const std::deque<Client>& clients, bool has_room) {
  if (clients.empty()) {
    return -1;
  }
  return milliseconds_until(clients.front().since + (has_room ? kSayWho : kSayWhoAtLeast));
}

} // namespace

Listener::Listener() : secret_(random_word()), answer_(random_word()) {
  auto own = own_address();
  stop_ = Socket::make([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  socket_ = Socket::make([&] { return socket(own.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!stop_.is_open() || !socket_.is_open() || !bind_to_any(socket_, own) ||
      listen(socket_.descriptor(), kBacklog) != 0) {
    raise_errno("no port to listen on");
  }
  getsockname(socket_.descriptor(), own.get(), &own.length);
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  getnameinfo(own.get(), own.length, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  address_ = c10::str(host, " ", port, " ", secret_, answer_);
  thread_ = std::thread([this] { run(); });
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
  return std::move(answered_);
}

void Listener::run() {
  pthread_setname_np(pthread_self(), "ccl-listener");
  std::deque<Client> clients; // the oldest first
  while (true) {
    const auto now = Clock::now();
    while (!clients.empty() && now >= clients.front().since + kSayWho) {
      clients.pop_front();
    }
    if (clients.size() == kMostClients && now >= clients.front().since + kSayWhoAtLeast) {
      clients.pop_front();
    }
    const bool has_room = clients.size() < kMostClients;
    std::vector<pollfd> wanted{{stop_.descriptor(), POLLIN, 0}, {has_room ? socket_.descriptor() : -1, POLLIN, 0}};
    for (const auto& client : clients) {
      wanted.push_back({client.socket.descriptor(), POLLIN, 0});
    }
    if (poll(wanted.data(), wanted.size(), patience(clients, has_room)) < 0) {
      continue;
    }
    if (wanted[0].revents != 0) {
      return;
    }
    std::deque<Client> remaining;
    for (size_t i = 0; i < clients.size(); ++i) {
      auto& client = clients[i];
      const bool goes_on = wanted[i + 2].revents == 0 || client.read();
      if (client.has_said_all() && is_same(client.said, secret_) && say(client.socket, answer_)) {
        answered_ = std::move(client.socket);
        return;
      }
      if (goes_on && !client.has_said_all()) {
        remaining.push_back(std::move(client));
      }
    }
    clients = std::move(remaining);
    while (wanted[1].revents != 0 && clients.size() < kMostClients) {
      auto peer = Socket::make(
          [&] { return accept4(socket_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
      if (!peer.is_open()) {
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) { // out of descriptors, for example
          std::this_thread::sleep_for(kSayWhoAtLeast);
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
  std::string words;
  parts >> host >> port >> words;
  const auto where = c10::str("connecting to ", host, " port ", port);
  const auto fail = [&](const char* reason) { C10_THROW_ERROR(DistBackendError, c10::str(where, ": ", reason)); };
  if (words.size() != 2 * kWord) {
    fail("that is no address of this backend's");
  }
  auto there = resolve(host, port);
  Client client{
      Socket::make([&] { return socket(there.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }),
      Clock::now(),
      ""};
  const auto& result = client.socket;
  if (!result.is_open()) {
    raise_errno("no socket");
  }
  if (connect(result.descriptor(), there.get(), there.length) != 0 && errno != EINPROGRESS) {
    raise_errno(where);
  }
  if (!is_ready(result, POLLOUT, deadline)) {
    fail("no answer in time");
  }
  int outcome = 0;
  socklen_t length = sizeof(outcome);
  getsockopt(result.descriptor(), SOL_SOCKET, SO_ERROR, &outcome, &length);
  errno = outcome;
  if (outcome != 0 || !say(result, std::string_view(words).substr(0, kWord))) {
    raise_errno(where);
  }
  while (!client.has_said_all()) {
    if (!is_ready(result, POLLIN, deadline)) {
      fail("connected, but no answer in time");
    }
    if (!client.read()) {
      fail("the connection was closed without an answer");
    }
  }
  if (!is_same(client.said, std::string_view(words).substr(kWord))) {
    fail("somebody else answered");
  }
  return std::move(client.socket);
}

} // namespace ccl_backend

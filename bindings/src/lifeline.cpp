#include "lifeline.hpp"

#include "errors.hpp"
#include "sockets.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace ccl_backend {
namespace {

using Clock = std::chrono::steady_clock;

// After its farewell a rank reads on for this long: closing with data unread would take the farewell back.
constexpr std::chrono::seconds kFarewell{2};
// For one connection, to a rank that listens.
constexpr std::chrono::seconds kConnect{20};

struct Message {
  uint8_t is_orderly;
  std::array<uint8_t, 4> rank; // little-endian

  static Message of(const Departure& departure) {
    const auto rank = static_cast<uint32_t>(departure.rank);
    Message message{departure.is_orderly, {}};
    for (int i = 0; i < 4; ++i) {
      message.rank[i] = static_cast<uint8_t>(rank >> (8 * i));
    }
    return message;
  }

  Departure departure() const {
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      value |= static_cast<uint32_t>(rank[i]) << (8 * i);
    }
    return {static_cast<int>(value), is_orderly != 0, Clock::now()};
  }
};
static_assert(sizeof(Message) == 5);

struct Neighbour {
  int rank = -1;
  Socket socket;
  std::string unread; // less than a message
};

std::string address_key(int rank) {
  return c10::str("ccl/lifeline/address/", rank);
}

// Whether the rank has connected to the next.
std::string connected_key(int rank) {
  return c10::str("ccl/lifeline/connected/", rank);
}

std::chrono::milliseconds left_until(Clock::time_point deadline) {
  return std::max(std::chrono::milliseconds(1), std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
}

} // namespace

struct Lifeline::Ring {
  int rank = 0;
  Socket wake{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  // The listening thread alone closes the sockets and reads from them.
  std::array<Neighbour, 2> neighbours;

  mutable std::mutex mutex; // of the members below, and of sending
  std::vector<Departure> departures; // each rank once
  bool has_left = false;

  // Connects to both neighbours.
  void tie(c10d::Store& store, Clock::time_point deadline);
  void listen();
  // False once the connection is closed.
  bool read(Neighbour& neighbour);
  void note(const Departure& departure, const Neighbour* from);
  void send(const Neighbour& neighbour, const Departure& departure);
  void leave() noexcept;
};

namespace {

// All rings of the process: for its end, and for forked children.
struct Rings {
  std::mutex mutex;
  std::set<Lifeline*> lifelines;
};

Rings& rings() {
  static auto* const rings = new Rings();
  return *rings;
}

} // namespace

void Lifeline::Ring::send(const Neighbour& neighbour, const Departure& departure) {
  const auto message = Message::of(departure);
  // A neighbour that is gone is not interested, one that does not read has room for thousands.
  (void)::send(neighbour.socket.descriptor(), &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Lifeline::Ring::note(const Departure& departure, const Neighbour* from) {
  std::lock_guard<std::mutex> guard(mutex);
  const auto same = [&](const Departure& known) { return known.rank == departure.rank; };
  if (std::any_of(departures.begin(), departures.end(), same)) {
    return;
  }
  departures.push_back(departure);
  for (const auto& neighbour : neighbours) {
    if (&neighbour != from && neighbour.rank != departure.rank && neighbour.socket.is_open() && !has_left) {
      send(neighbour, departure);
    }
  }
}

bool Lifeline::Ring::read(Neighbour& neighbour) {
  char bytes[512];
  const auto count = recv(neighbour.socket.descriptor(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return true;
  }
  if (count <= 0) {
    note({neighbour.rank, false, Clock::now()}, &neighbour); // if it has said so, then it is known
    return false;
  }
  auto& unread = neighbour.unread.append(bytes, static_cast<size_t>(count));
  for (; unread.size() >= sizeof(Message); unread.erase(0, sizeof(Message))) {
    Message message;
    std::memcpy(&message, unread.data(), sizeof(message));
    note(message.departure(), &neighbour);
  }
  return true;
}

void Lifeline::Ring::listen() {
  pthread_setname_np(pthread_self(), "ccl-lifeline");
  std::optional<Clock::time_point> end;
  while (std::any_of(neighbours.begin(), neighbours.end(), [](const auto& one) { return one.socket.is_open(); })) {
    std::array<pollfd, 3> wanted{};
    for (size_t i = 0; i < neighbours.size(); ++i) {
      wanted[i] = {neighbours[i].socket.descriptor(), POLLIN, 0}; // poll ignores -1
    }
    wanted[2] = {end ? -1 : wake.descriptor(), POLLIN, 0};
    int limit = -1;
    if (end) {
      if (Clock::now() >= *end) {
        return;
      }
      limit = static_cast<int>(left_until(*end).count());
    }
    if (poll(wanted.data(), wanted.size(), limit) < 0 && errno != EINTR) {
      return;
    }
    if (wanted[2].revents != 0) {
      end = Clock::now() + kFarewell;
    }
    for (size_t i = 0; i < neighbours.size(); ++i) {
      if (wanted[i].revents != 0 && !read(neighbours[i])) {
        std::lock_guard<std::mutex> guard(mutex);
        neighbours[i].socket.close();
      }
    }
  }
}

void Lifeline::Ring::leave() noexcept {
  std::lock_guard<std::mutex> guard(mutex);
  if (has_left) {
    return;
  }
  has_left = true;
  for (const auto& neighbour : neighbours) {
    if (neighbour.socket.is_open()) {
      send(neighbour, {rank, true, Clock::now()});
      shutdown(neighbour.socket.descriptor(), SHUT_WR);
    }
  }
  const uint64_t one = 1;
  (void)!write(wake.descriptor(), &one, sizeof(one));
}

void Lifeline::Ring::tie(c10d::Store& store, Clock::time_point deadline) {
  const auto read = [&](const std::string& key, int of) {
    try {
      store.wait({key}, left_until(deadline));
    } catch (const std::exception&) {
      C10_THROW_ERROR(DistBackendError, c10::str("rank ", of, " ended, or was stopped, while the ranks connected"));
    }
    return store.get_to_str(key);
  };
  auto& [next, previous] = neighbours;
  std::optional<Listener> listener;
  std::string hindrance;
  try {
    listener.emplace();
  } catch (const std::exception& error) {
    hindrance = message_of(error);
  }
  store.set(address_key(rank), listener ? listener->address() : "");
  const auto address = read(address_key(next.rank), next.rank);
  try {
    if (!address.empty()) {
      next.socket = connect_to(address, std::min(deadline, Clock::now() + kConnect));
    }
  } catch (const std::exception& error) {
    hindrance = message_of(error);
  }
  // Who reads that it succeeded finds the connection waiting.
  store.set(connected_key(rank), next.socket.is_open() ? "yes" : "no");
  if (read(connected_key(previous.rank), previous.rank) == "yes" && listener) {
    previous.socket = listener->accept(deadline);
  }
  for (const auto& neighbour : neighbours) {
    if (neighbour.socket.is_open()) {
      close_when_unreachable(neighbour.socket, kUnreachable);
    }
  }
  if (!hindrance.empty()) {
    TORCH_WARN(
        "ccl: rank ", rank, " has no connection by which a dead rank is noticed before the timeout: ", hindrance);
  }
}

Lifeline::Lifeline(c10d::Store& store, int rank, int size, Clock::time_point deadline)
    : ring_(std::make_shared<Ring>()) {
  ring_->rank = rank;
  ring_->neighbours[0].rank = (rank + 1) % size;
  ring_->neighbours[1].rank = (rank + size - 1) % size;
  ring_->tie(store, deadline);
  static std::once_flag once;
  std::call_once(once, [] {
    // A child of fork inherits the connections and would keep them open after its parent's death.
    pthread_atfork(
        [] { rings().mutex.lock(); },
        [] { rings().mutex.unlock(); },
        [] {
          for (auto* lifeline : rings().lifelines) {
            for (auto& neighbour : lifeline->ring_->neighbours) {
              neighbour.socket.close();
            }
          }
          rings().lifelines.clear();
          rings().mutex.unlock();
        });
  });
  {
    std::lock_guard<std::mutex> guard(rings().mutex);
    rings().lifelines.insert(this);
  }
  std::thread([ring = ring_] { ring->listen(); }).detach();
}

Lifeline::~Lifeline() {
  {
    std::lock_guard<std::mutex> guard(rings().mutex);
    if (rings().lifelines.erase(this) == 0) {
      return; // a forked child: not its rank's end
    }
  }
  ring_->leave();
}

std::optional<Departure> Lifeline::departure() const {
  std::lock_guard<std::mutex> guard(ring_->mutex);
  const auto& all = ring_->departures;
  const auto lost = std::find_if(all.begin(), all.end(), [](const auto& one) { return !one.is_orderly; });
  if (lost != all.end()) {
    return *lost;
  }
  return all.empty() ? std::nullopt : std::make_optional(all.front());
}

void Lifeline::leave_all() noexcept {
  std::lock_guard<std::mutex> guard(rings().mutex);
  for (auto* lifeline : rings().lifelines) {
    lifeline->ring_->leave();
  }
}

} // namespace ccl_backend

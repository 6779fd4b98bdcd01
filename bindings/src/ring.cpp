#include "ring.hpp"

#include "errors.hpp"
#include "listener.hpp"

#include <c10/util/Exception.h>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ccl_backend {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = Departure::Kind;

// A rank that has left keeps reading for this long: closing a socket with unread data would discard the message that
// the rank has left.
constexpr std::chrono::seconds kDrainTime{2};
// A rank that has left, and that two gaps in the ring separate from other ranks, may wait in vain for their departures.
constexpr std::chrono::seconds kSeparatedTime{60};
// For one connection. At most half of the remaining time is used, since the other rank has to learn the outcome before
// the deadline.
constexpr std::chrono::seconds kConnectTimeout{20};
// The outcome of connecting to the next rank. Any other outcome is an error message.
constexpr const char* kConnected = "connected";

std::string address_key(int rank) {
  return c10::str("ccl/lifeline/address/", rank);
}

// Of the outcome of the rank's connection to the next rank.
std::string connected_key(int rank) {
  return c10::str("ccl/lifeline/connected/", rank);
}

} // namespace

Ring::Ring(int rank, int size, std::chrono::seconds unreachable, std::function<void()> peer_failed)
    : rank_(rank),
      size_(size),
      unreachable_(unreachable),
      peer_failed_(std::move(peer_failed)),
      process_(getpid()),
      wake_(Socket::make([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })),
      neighbours_{Neighbour{(rank + 1) % size}, Neighbour{(rank + size - 1) % size}} {
  withdrawn_.fill(UINT64_MAX);
  if (!wake_.is_open()) {
    raise_errno("cannot create an eventfd");
  }
}

bool Ring::is_inherited() const {
  return getpid() != process_;
}

void Ring::connect(c10d::Store& store, Clock::time_point deadline) {
  const auto read = [&](const std::string& key, int of) {
    try {
      store.wait({key}, std::chrono::milliseconds(std::max(1, milliseconds_until(deadline))));
    } catch (const std::exception&) {
      C10_THROW_ERROR(DistBackendError, c10::str("rank ", of, " ended or was stopped while the ranks were connecting"));
    }
    return get_text(store, key);
  };
  const auto warn = [&](const std::string& reason) {
    TORCH_WARN(
        "ccl: rank ", rank_, " has no lifeline connection, so a dead rank or different calls may go unnoticed until the "
        "timeout: ", reason);
  };
  auto& [next, previous] = neighbours_;
  std::optional<Listener> listener;
  try {
    try {
      listener.emplace();
    } catch (const std::exception& error) {
      warn(message_of(error));
    }
    put_text(store, address_key(rank_), listener ? listener->address() : "");
    const auto address = read(address_key(next.rank), next.rank);
    std::string outcome = kConnected;
    try {
      TORCH_CHECK(!address.empty(), "the rank is not listening");
      const auto now = Clock::now();
      next.socket = connect_to(address, now + std::min<Clock::duration>(kConnectTimeout, (deadline - now) / 2));
      close_when_unreachable(next.socket, unreachable_);
    } catch (const std::exception& error) {
      next.socket.close();
      outcome = message_of(error);
      warn(c10::str("to rank ", next.rank, ": ", outcome));
    }
    // This rank alone decides: the next rank has sent its reply, and cannot know whether it arrived in time.
    put_text(store, connected_key(rank_), outcome);
    outcome = read(connected_key(previous.rank), previous.rank);
    if (outcome == kConnected && listener) {
      previous.socket = listener->finish();
      close_when_unreachable(previous.socket, unreachable_);
    } else if (listener) {
      warn(c10::str("from rank ", previous.rank, ": ", outcome));
    }
  } catch (...) {
    if (listener && !previous.socket.is_open()) {
      previous.socket = listener->finish(); // the previous rank may have reported it as connected
    }
    throw;
  }
}

void Ring::listen() {
  bool has_left = false;
  auto end = Clock::time_point::max();
  const auto is_open = [](const Neighbour& neighbour) { return neighbour.socket.is_open(); };
  while (std::any_of(neighbours_.begin(), neighbours_.end(), is_open)) {
    std::array<pollfd, 3> wanted{};
    for (size_t i = 0; i < neighbours_.size(); ++i) {
      wanted[i] = {neighbours_[i].socket.descriptor(), POLLIN, 0}; // poll ignores -1
    }
    wanted[2] = {has_left ? -1 : wake_.descriptor(), POLLIN, 0};
    if (Clock::now() >= end) {
      return;
    }
    const bool has_end = end != Clock::time_point::max();
    if (poll(wanted.data(), wanted.size(), has_end ? milliseconds_until(end) : -1) < 0 && errno != EINTR) {
      return;
    }
    has_left = has_left || wanted[2].revents != 0;
    for (size_t i = 0; i < neighbours_.size(); ++i) {
      if (wanted[i].revents != 0 && !read(neighbours_[i])) {
        std::lock_guard<std::mutex> guard(mutex_);
        neighbours_[i].socket.close();
      }
    }
    if (const auto time = has_left ? time_to_end() : std::nullopt) {
      end = std::min(end, Clock::now() + *time);
    }
  }
}

std::optional<std::chrono::seconds> Ring::time_to_end() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (departures_.count_others(rank_) == size_ - 1) { // and has sent them on
    close_for_writing();
    return kDrainTime;
  }
  const auto is_open = [](const auto& neighbour) { return neighbour.socket.is_open(); };
  const auto is_here = [&](const auto& neighbour) { return is_open(neighbour) && !departures_.has(neighbour.rank); };
  const bool is_separated = !std::all_of(neighbours_.begin(), neighbours_.end(), is_open) &&
      std::none_of(neighbours_.begin(), neighbours_.end(), is_here);
  return is_separated ? std::make_optional(kSeparatedTime) : std::nullopt;
}

void Ring::close_for_writing() {
  for (auto& neighbour : neighbours_) {
    neighbour.is_writable = false;
    if (neighbour.socket.is_open()) {
      shutdown(neighbour.socket.descriptor(), SHUT_WR);
    }
  }
}

void Ring::fail() noexcept {
  if (is_inherited()) {
    return;
  }
  std::lock_guard<std::mutex> guard(mutex_);
  if (has_failed_ || has_left_) {
    return;
  }
  has_failed_ = true;
  const Departure departure{rank_, Kind::kFailed, sequences(), {}};
  for (auto& neighbour : neighbours_) {
    send(neighbour, departure);
  }
}

void Ring::break_down() {
  fail();
  std::lock_guard<std::mutex> guard(mutex_);
  departures_.add({rank_, Kind::kFailed, {}, Clock::now()});
}

void Ring::leave(bool at_exit) noexcept {
  if (is_inherited()) {
    return;
  }
  compare_calls(); // the last ones
  std::lock_guard<std::mutex> guard(mutex_);
  if (has_left_) {
    return;
  }
  has_left_ = true;
  const Departure departure{rank_, Kind::kLeft, sequences(), {}};
  for (auto& neighbour : neighbours_) {
    if (!has_failed_) { // a failure has been sent already
      send(neighbour, departure);
    }
  }
  if (at_exit) {
    close_for_writing();
  }
  const uint64_t one = 1;
  (void)!write(wake_.descriptor(), &one, sizeof(one));
}

Sequences Ring::sequences() const {
  Sequences last;
  for (int lane = 0; lane < kLanes; ++lane) {
    last[lane] = std::min(started_[lane].load(std::memory_order_relaxed), withdrawn_[lane] - 1);
  }
  return last;
}

void Ring::withdraw(int lane, uint64_t sequence) noexcept {
  if (is_inherited()) {
    return;
  }
  std::lock_guard<std::mutex> guard(mutex_);
  withdrawn_[lane] = std::min(withdrawn_[lane], sequence);
}

std::optional<Departure> Ring::find(Kind kind) const {
  if (is_inherited()) {
    return std::nullopt;
  }
  std::lock_guard<std::mutex> guard(mutex_);
  return departures_.find(kind);
}

std::optional<Departure> Ring::find_left(const Needs& needs) const {
  if (is_inherited()) {
    return std::nullopt;
  }
  std::lock_guard<std::mutex> guard(mutex_);
  return departures_.find_left(needs, size_);
}

} // namespace ccl_backend

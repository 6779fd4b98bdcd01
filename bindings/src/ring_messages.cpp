// What the ranks of a ring send each other.
#include "ring.hpp"

#include <c10/util/StringUtil.h>

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <iostream>

namespace ccl_backend {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = Departure::Kind;

// Messages that are not departures. The next rank gets this rank's calls: a lane, their number, and the records.
constexpr uint8_t kCalls = 3;
// All ranks get the first difference: the rank that found it, and the calls.
constexpr uint8_t kDifference = 4;
// For a neighbour that does not read, because it is stopped for example: no further calls.
constexpr size_t kMostUnsent = 64 << 10;

} // namespace

void Ring::send(Neighbour& neighbour, const Header& header, const void* payload, size_t bytes) {
  if (!neighbour.socket.is_open() || !neighbour.is_writable) {
    return;
  }
  const auto message = encode(header);
  neighbour.unsent.append(reinterpret_cast<const char*>(message.data()), message.size());
  neighbour.unsent.append(static_cast<const char*>(payload), bytes);
  flush(neighbour);
}

void Ring::send(Neighbour& neighbour, const Departure& departure) {
  send(neighbour, {static_cast<uint8_t>(departure.kind), static_cast<uint32_t>(departure.rank), departure.sequences});
}

void Ring::flush(Neighbour& neighbour) {
  auto& unsent = neighbour.unsent;
  if (unsent.empty() || !neighbour.socket.is_open()) {
    return;
  }
  const auto count =
      ::send(neighbour.socket.descriptor(), unsent.data(), unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count >= 0) {
    unsent.erase(0, static_cast<size_t>(count));
  } else if (errno != EAGAIN && errno != EINTR) { // needs no handling: the neighbour has ended
    neighbour.is_writable = false;
    unsent.clear();
  }
}

void Ring::compare_calls() {
  if (is_inherited()) {
    return;
  }
  {
    std::lock_guard<std::mutex> guard(mutex_);
    for (auto& neighbour : neighbours_) {
      flush(neighbour);
    }
    auto& next = neighbours_[0];
    for (int lane = 0; lane < kLanes && next.unsent.size() < kMostUnsent; ++lane) {
      const auto calls = comparison_.take_unsent(lane);
      if (!calls.empty()) {
        const Header header{kCalls, static_cast<uint32_t>(lane), {calls.size()}};
        send(next, header, calls.data(), calls.size() * sizeof(CallRecord));
      }
    }
  }
  if (const auto calls = comparison_.find()) {
    record({rank_, *calls}, nullptr);
  }
}

void Ring::record(const Departure& departure, const Neighbour* from) {
  std::lock_guard<std::mutex> guard(mutex_);
  const bool is_echo = departure.rank == rank_ && departure.kind != Kind::kLost;
  if (is_echo || !departures_.add(departure)) {
    return;
  }
  for (auto& neighbour : neighbours_) {
    if (&neighbour != from && neighbour.rank != departure.rank) {
      send(neighbour, departure);
    }
  }
  if (departure.kind == Kind::kFailed) {
    peer_failed_();
  }
}

void Ring::record(const Difference& difference, const Neighbour* from) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (difference_) {
    return;
  }
  difference_ = difference;
  has_difference_.store(true, std::memory_order_release);
  for (auto& neighbour : neighbours_) {
    if (&neighbour != from) {
      const Header header{kDifference, static_cast<uint32_t>(difference.rank), {}};
      send(neighbour, header, &difference.calls, sizeof(difference.calls));
    }
  }
}

std::optional<Ring::Difference> Ring::difference() const {
  if (!has_difference() || is_inherited()) {
    return std::nullopt;
  }
  std::lock_guard<std::mutex> guard(mutex_);
  return difference_;
}

std::optional<size_t> Ring::payload_bytes(const Header& header) const {
  switch (header.kind) {
    case kCalls: {
      const bool is_valid = header.number < kLanes && header.numbers[0] <= CallComparison::kMost;
      return is_valid ? std::make_optional(header.numbers[0] * sizeof(CallRecord)) : std::nullopt;
    }
    case kDifference:
      return header.number < static_cast<uint32_t>(size_) ? std::make_optional(sizeof(CallDifference)) : std::nullopt;
    default:
      return departure_of(header, size_) ? std::make_optional<size_t>(0) : std::nullopt;
  }
}

void Ring::handle(const Header& header, const char* payload, const Neighbour& from) {
  if (header.kind == kCalls) {
    std::vector<CallRecord> calls(header.numbers[0]);
    std::memcpy(calls.data(), payload, calls.size() * sizeof(CallRecord));
    comparison_.receive(static_cast<int>(header.number), calls);
    if (const auto found = comparison_.find()) {
      record({rank_, *found}, nullptr);
    }
  } else if (header.kind == kDifference) {
    Difference difference{static_cast<int>(header.number), {}};
    std::memcpy(&difference.calls, payload, sizeof(difference.calls));
    record(difference, &from);
  } else {
    record(*departure_of(header, size_), &from);
  }
}

bool Ring::handle_all(Neighbour& neighbour) {
  const auto& unread = neighbour.unread;
  size_t done = 0;
  for (Message message; unread.size() - done >= message.size();) {
    std::memcpy(message.data(), unread.data() + done, message.size());
    const auto header = decode(message);
    const auto bytes = payload_bytes(header);
    if (!bytes) {
      return false;
    }
    if (unread.size() - done < message.size() + *bytes) {
      break;
    }
    handle(header, unread.data() + done + message.size(), neighbour);
    done += message.size() + *bytes;
  }
  neighbour.unread.erase(0, done);
  return true;
}

bool Ring::read(Neighbour& neighbour) {
  char bytes[16384];
  const auto count = recv(neighbour.socket.descriptor(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return true;
  }
  if (count <= 0) {
    if (neighbour.is_readable) {
      record({neighbour.rank, Kind::kLost, {}, Clock::now()}, &neighbour); // no effect if the neighbour has left
    }
    return false;
  }
  if (!neighbour.is_readable) {
    return true;
  }
  neighbour.unread.append(bytes, static_cast<size_t>(count));
  if (!handle_all(neighbour)) {
    // The connection stays open: the neighbour would take a closed one for this rank's death.
    neighbour.is_readable = false;
    // TORCH_WARN reaches Python from Python's threads only.
    std::cerr << c10::str(
        "ccl: rank ", rank_, " received an invalid message from rank ", neighbour.rank,
        " and ignores this connection from now on: a dead rank or different calls may go unnoticed until the "
        "timeout\n");
  }
  return true;
}

} // namespace ccl_backend

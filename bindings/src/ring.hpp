// A rank's two connections in the ring of its group, and the messages on them.
#pragma once

#include "call_comparison.hpp"
#include "departures.hpp"
#include "releases.hpp"
#include "sockets.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

namespace ccl_backend {

// Threads: once `connect` has returned, only the thread in `listen` reads from the connections and closes them. In a
// forked child, all members but the destructor do nothing.
class Ring {
 public:
  // `peer_failed` is called when another rank gives the group up. It must not block.
  Ring(int rank, int size, std::chrono::seconds unreachable, std::function<void()> peer_failed);

  // Connects to both neighbours; see Lifeline.
  void connect(c10d::Store& store, Deadline deadline);
  // Reads messages and forwards them, also after `leave`. Returns soon after all ranks have departed, or when both
  // connections are closed.
  void listen();

  // See Lifeline.
  void add(const Started& call, const Sizes& sizes) {
    auto& started = started_[call.lane];
    if (call.sequence > started.load(std::memory_order_relaxed)) {
      started.store(call.sequence, std::memory_order_relaxed);
    }
    comparison_.add(call, sizes);
  }
  void compare_calls();
  void withdraw(int lane, uint64_t sequence) noexcept;
  void fail() noexcept;
  // The thread of `listen` has ended with an error: the group fails, on this rank too.
  void break_down();
  // `at_exit`: the process ends, so that nothing can be forwarded.
  void leave(bool at_exit) noexcept;
  struct Difference {
    int rank; // that found it
    CallDifference calls;
  };
  bool has_difference() const noexcept {
    return has_difference_.load(std::memory_order_acquire);
  }
  std::optional<Difference> difference() const;
  int previous_of(int rank) const {
    return (rank + size_ - 1) % size_;
  }
  std::optional<Departure> find(Departure::Kind kind) const;
  std::optional<Departure> find_left(const Needs& needs) const;

  // Whether this process is a forked child of the one that created the ring.
  bool is_inherited() const;

 private:
  struct Neighbour {
    int rank;
    Socket socket{};
    std::string unread{}; // an incomplete message
    std::string unsent{}; // what the connection has not taken yet
    bool is_readable = true; // false after an invalid message: further data, and the end of it, mean nothing
    bool is_writable = true;
  };

  // False once the connection is closed.
  bool read(Neighbour& neighbour);
  // Of the messages in `unread`, handles the complete ones. False if there is an invalid one.
  bool handle_all(Neighbour& neighbour);
  // The bytes after the header. None if the header is invalid.
  std::optional<size_t> payload_bytes(const Header& header) const;
  void handle(const Header& header, const char* payload, const Neighbour& from);
  // Store and forward.
  void record(const Departure& departure, const Neighbour* from);
  void record(const Difference& difference, const Neighbour* from);
  // With the mutex held.
  void send(Neighbour& neighbour, const Header& header, const void* payload = nullptr, size_t bytes = 0);
  void send(Neighbour& neighbour, const Departure& departure);
  static void flush(Neighbour& neighbour);
  void close_for_writing();
  // After `leave`: how long this rank still has to read. None: until other ranks depart.
  std::optional<std::chrono::seconds> time_to_end();
  // Of this rank's departure. With the mutex held.
  Sequences sequences() const;

  const int rank_;
  const int size_;
  const std::chrono::seconds unreachable_;
  const std::function<void()> peer_failed_;
  const pid_t process_;
  const Socket wake_;
  std::array<std::atomic<uint64_t>, kLanes> started_{};
  std::array<Neighbour, 2> neighbours_; // the next and the previous
  CallComparison comparison_;
  std::atomic<bool> has_difference_{false};

  mutable std::mutex mutex_; // guards the members below, and sending; may be locked in a forked child
  Departures departures_;
  std::optional<Difference> difference_;
  Sequences withdrawn_; // in each lane, the first collective that this rank left incomplete; UINT64_MAX: none
  bool has_failed_ = false;
  bool has_left_ = false;
};

} // namespace ccl_backend

// A rank's two connections in the ring of its group: how they are made, and what goes over them.
#pragma once

#include "departures.hpp"
#include "sockets.hpp"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

namespace ccl_backend {

// Threads: one, `listen`, alone closes the connections and reads from them, once they are made. In a forked child all
// members but the destructor do nothing.
class Ring {
 public:
  Ring(int rank, int size, std::chrono::seconds unreachable);

  // Connects to both neighbours; see Lifeline.
  void tie(c10d::Store& store, Deadline deadline);
  // Returns soon after `leave`, or when both neighbours are gone.
  void listen();

  void set_sequence(uint64_t sequence) noexcept {
    sequence_.store(sequence, std::memory_order_relaxed);
  }
  void fail() noexcept;
  void leave() noexcept;
  std::optional<Departure> find(Departure::Kind kind) const;

  // Of the parent of this process.
  bool is_inherited() const;

 private:
  struct Neighbour {
    int rank;
    Socket socket{};
    std::string unread{}; // less than a message
    bool is_readable = true; // else what comes makes no sense, its end neither
    bool is_writable = true;
  };

  // False once the connection is closed.
  bool read(Neighbour& neighbour);
  void note(const Departure& departure, const Neighbour* from);
  void send(Neighbour& neighbour, const Departure& departure);

  const int rank_;
  const int size_;
  const std::chrono::seconds unreachable_;
  const pid_t process_;
  const Socket wake_;
  std::atomic<uint64_t> sequence_{0};
  std::array<Neighbour, 2> neighbours_; // the next and the previous

  mutable std::mutex mutex_; // of the members below, and of sending; a forked child may find it locked
  Departures departures_;
  bool has_failed_ = false;
  bool has_left_ = false;
};

} // namespace ccl_backend

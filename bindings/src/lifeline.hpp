// Detects that another rank of the group has ended, or has given up the group.
#pragma once

#include "call_comparison.hpp"
#include "departures.hpp"
#include "releases.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace ccl_backend {

class Ring;

// oneCCL does not detect that a peer has ended, and waits on. The ranks of a group therefore form a ring of TCP
// connections. When a process ends, for any reason, the kernel closes its connections within milliseconds. A lost host or network is detected after CPU_TRAIN_STACK_UNREACHABLE_SECONDS
// (default 25). The rank that detects a loss sends a message along the ring, in both directions. Ranks that have left
// forward messages until all ranks have departed, or their process ends: a rank whose two neighbours' processes have
// ended does not learn of later departures. A stopped process (SIGSTOP) is not detected.
//
// Threads: a background thread reads the connections. All members may be called from any thread. In a forked child
// they do nothing.
class Lifeline {
 public:
  // A collective of all ranks of the store. If two ranks cannot connect, both warn and continue without the connection:
  // a dead rank may then go unnoticed until a collective times out. Raises DistBackendError if a neighbour has not
  // taken part by the deadline, and ValueError if the variable has an invalid value.
  // `peer_failed` is called in the background thread when another rank gives the group up. It must not block.
  Lifeline(
      c10d::Store& store, int rank, int size, std::chrono::steady_clock::time_point deadline,
      std::function<void()> peer_failed);
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;
  // Informs the other ranks that this rank leaves in an orderly way.
  ~Lifeline();

  // This rank starts a collective. When this rank leaves, it sends the highest number in each lane to the other ranks.
  // One thread at a time.
  void add(const Started& call, const Sizes& sizes);
  // For all groups of the process: sends the calls that the next rank does not know. Called every few milliseconds.
  static void compare_calls();
  // The first collective that two ranks called with different arguments: their ranks in the group, and the calls.
  struct Difference {
    int previous;
    int rank;
    CallDifference calls;
  };
  bool has_difference() const noexcept;
  std::optional<Difference> difference() const;
  // This rank leaves before this collective is complete.
  void withdraw(int lane, uint64_t sequence) noexcept;

  // Informs the other ranks immediately that this rank gives up the group. Never blocks.
  void fail() noexcept;

  // The first rank that was lost, else the first that failed.
  std::optional<Departure> failure() const;
  // See Departures.
  std::optional<Departure> find_left(const Needs& needs) const;

  // For an exit handler: leaves all groups of the process.
  static void leave_all() noexcept;

 private:
  std::shared_ptr<Ring> ring_;
};

} // namespace ccl_backend

// Tells a rank that another rank of its group is gone, or has given the group up.
#pragma once

#include "departures.hpp"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

namespace ccl_backend {

class Ring;

// oneCCL never learns that a peer has ended: its waits go on. So the ranks of a group form a ring of TCP connections
// on which nothing is sent while all is well. The kernel closes those of a process that ends, however it ends, within
// milliseconds; a host that is gone, or a cut network, shows after CPU_TRAIN_STACK_UNREACHABLE_SECONDS (25 s where
// that is not set). Whoever notices passes it on along the ring, in both directions. A process that is stopped, but
// there, is not noticed.
//
// Threads: a thread of its own listens; all members may be called from any thread. In a forked child they do nothing.
class Lifeline {
 public:
  // A collective of all ranks of the store. Where a rank cannot be reached both ends warn and go on without the
  // connection: dead ranks may then be noticed at the timeout of a collective only. Raises DistBackendError where a
  // neighbour has not taken part at the deadline, ValueError where the variable is wrong.
  Lifeline(c10d::Store& store, int rank, int size, std::chrono::steady_clock::time_point deadline);
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;
  // Tells the others that this rank leaves in order.
  ~Lifeline();

  // The number of the collective that this rank starts: the others hear the last one when it leaves.
  void set_sequence(uint64_t sequence) noexcept;

  // Tells the others at once that this rank gives the group up. Never blocks.
  void fail() noexcept;

  // The most serious: a rank that was lost, else one that failed, else one that left.
  std::optional<Departure> departure() const;
  std::optional<Departure> departure(Departure::Kind kind) const;

  // The process ends in order: tells the others of every group. For an exit handler.
  static void leave_all() noexcept;

 private:
  std::shared_ptr<Ring> ring_;
};

} // namespace ccl_backend

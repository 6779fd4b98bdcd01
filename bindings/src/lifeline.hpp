// Tells a rank that another rank of its group is gone.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <optional>

namespace ccl_backend {

struct Departure {
  int rank; // in the group
  bool is_orderly; // it left the group or ended in order; else it was killed, or its host cannot be reached
  std::chrono::steady_clock::time_point noticed;
};

// oneCCL never learns that a peer has ended: its waits go on. So the ranks of a group form a ring of TCP connections
// on which nothing is sent while all is well. The kernel closes those of a process that ends, however it ends, within
// milliseconds; a host that is gone, or a cut network, shows after kUnreachable. Whoever notices passes it on along
// the ring, in both directions. A process that is stopped, but there, is not noticed.
//
// Threads: a thread of its own listens; all members may be called from any thread.
class Lifeline {
 public:
  static constexpr std::chrono::seconds kUnreachable{25};

  // A collective of all ranks of the store. Where a rank cannot be reached it warns and goes on without: dead ranks
  // are then noticed at the timeout of a collective. Raises DistBackendError where a neighbour has not taken part at
  // the deadline.
  Lifeline(c10d::Store& store, int rank, int size, std::chrono::steady_clock::time_point deadline);
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;
  // Tells the others that this rank leaves in order.
  ~Lifeline();

  // The first rank that went without a word, else the first that left in order.
  std::optional<Departure> departure() const;

  // The process ends in order: tells the others of every group. For an exit handler.
  static void leave_all() noexcept;

 private:
  struct Ring;
  std::shared_ptr<Ring> ring_;
};

} // namespace ccl_backend

// Fails operations that cannot complete.
#pragma once

#include "operation.hpp"

#include <condition_variable>
#include <list>

namespace ccl_backend {

// Tracks every operation in flight. One thread checks their deadlines and the groups' lifelines, and compares the calls
// of the ranks. Another thread asks the store whether a peer has given up, which may block as long as the store does.
// Neither thread calls oneCCL, waits for the GIL or runs callbacks, so operations end in time even if those hang.
//
// Every failure of an operation has the same effects: the group is broken, its other ranks are informed, and all its
// operations end. The exception is a message to or from a rank that has left the group: it fails alone.
class Watchdog {
 public:
  // Never destroyed.
  static Watchdog& instance();
  // Starts the threads, once. Raises DistBackendError if the system does not start them.
  void start();

  void add(const OperationPtr& operation);
  void remove(const OperationPtr& operation);

  // Fails the operation with "ccl: #12 all_reduce(float32, 100) " and the reason, and its group.
  void fail(const OperationPtr& operation, const std::string& reason);
  // Fails the suspects and their groups. All get one text, which lists the calls that may have caused the error: those
  // that failed before, then the suspects.
  void fail_suspects(
      const std::vector<OperationPtr>& suspects, const std::vector<OperationPtr>& failed_before,
      const std::string& reason);
  // Fails all groups with operations in flight.
  void fail_all(const std::string& message);
  // Ends the group's operations immediately, without the current calls of the other ranks in the message.
  void abort(const std::shared_ptr<Group>& group, const std::string& reason);

  // Whether operations of the group are in flight.
  bool has(const Group& group);
  // For an exit handler: lets the other ranks know which collectives this process leaves incomplete. No operation is
  // added from then on.
  static void withdraw_all();

 private:
  Watchdog() = default;
  void watch();
  void ask_stores();
  // Operations that cannot complete, with the reason: at most one of each group.
  std::vector<std::pair<OperationPtr, std::string>> find_failed();
  std::vector<OperationPtr> claim_all(const Group& group);
  // Fails `first` with the message, and the others with "ccl: #12 all_reduce(float32, 100) was cancelled on group 0,
  // rank 1 of 2: " and the group's reason. Appends the current calls of the peers, if known.
  static void end_all(
      const std::vector<OperationPtr>& operations, const OperationPtr& first, const std::string& message,
      const std::string& peers);
  void fail_alone(const OperationPtr& operation, const std::string& reason);
  // `operation`: the subject of the message, or null.
  void give_up(const std::shared_ptr<Group>& group, const OperationPtr& operation, const std::string& message);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<OperationPtr> in_flight_;
  bool has_news_ = false; // operations were added since the calls were last compared
  bool is_ending_ = false;
};

} // namespace ccl_backend

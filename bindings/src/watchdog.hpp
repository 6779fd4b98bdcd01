// Ends operations that will not complete.
#pragma once

#include "operation.hpp"

#include <condition_variable>
#include <list>

namespace ccl_backend {

// Knows every operation in flight. A thread of its own looks at their deadlines and at the groups' lifelines, another
// one asks the store whether a peer has given up, which may block as long as the store does. Neither calls oneCCL,
// waits for the GIL or runs callbacks, so nothing that hangs elsewhere keeps an operation from ending in time.
//
// However an operation's failure is noticed, it ends in `fail`: the group is broken, its other ranks are told, and all
// its operations end.
class Watchdog {
 public:
  // Never destroyed.
  static Watchdog& instance();

  void add(const OperationPtr& operation);
  void remove(const OperationPtr& operation);

  // Ends this operation, "ccl: #12 all_reduce(float32, 100) " and the reason, and its group.
  void fail(const OperationPtr& operation, const std::string& reason);
  // Ends the group's operations at once, without asking the other ranks what they are at: they have been told.
  void abort(const std::shared_ptr<Group>& group, const std::string& reason);

  // Are operations of the group in flight?
  bool has(const Group& group);
  // Is a collective in flight, or about to start, that a callback has called?
  bool has_callbacks_calls();

 private:
  Watchdog();
  void watch();
  void ask_stores();
  // Operations that will not complete, and why; one for each group.
  std::vector<std::pair<OperationPtr, std::string>> find_hopeless();
  std::vector<OperationPtr> claim_all(const Group& group);
  // "ccl: #12 all_reduce(float32, 100) was given up on group 0, rank 1 of 2: " and the group's reason; of `first` the
  // message. Then what the peers are at, where that is known.
  static void end_all(
      const std::vector<OperationPtr>& operations, const OperationPtr& first, const std::string& message,
      const std::string& peers);
  // `operation`: the one that the message is about, or none.
  void give_up(const std::shared_ptr<Group>& group, const OperationPtr& operation, const std::string& message);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<OperationPtr> in_flight_;
};

} // namespace ccl_backend

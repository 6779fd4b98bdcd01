// Drives oneCCL for the whole process.
#pragma once

#include "operation.hpp"

#include <condition_variable>
#include <list>
#include <thread>

namespace ccl_backend {

// Without worker threads oneCCL moves data only while somebody asks it whether an operation is complete. The engine
// is who asks: the thread that waits for an operation, or else its own thread.
//
// Threads: every call into oneCCL is made under `mutex_`, from any thread. Operations start in the thread and in the
// order of their calls. Whoever finds an operation complete takes it off the list, under the lock, and finishes it
// without the lock; so it is finished once, and callbacks of futures may call back into the backend.
class Engine {
 public:
  // Never destroyed: operations and groups may outlive every static object.
  static Engine& instance();

  using Lock = std::unique_lock<std::timed_mutex>;

  // For calls into oneCCL other than by `submit`. Raises DistBackendError where a thread never came back from oneCCL.
  Lock lock();
  // A thread that holds the lock was left behind: oneCCL is of no use any more in this process.
  void mark_stuck() {
    stuck_ = true;
  }

  void submit(const OperationPtr& operation);

  // Asks about all operations in flight, once. False if another thread was doing so.
  bool poll();

  // Returns when the operation is finished, in whatever way, or at the limit.
  void wait(Operation& operation, std::optional<Clock::time_point> limit);

  // Waits for the group's operations in flight; false if some are left at the limit.
  bool drain(const Group& group, Clock::time_point limit);

 private:
  Engine();
  // Asks while nobody waits, and fails operations that will not complete.
  void run();
  // Asks the store about long waits; a thread of its own, since the store may block.
  void watch();
  void stop();
  void fail_hopeless();
  // `compare`: adds to the message what each rank is at.
  void give_up(const OperationPtr& operation, const std::string& message, bool compare);
  std::vector<OperationPtr> take(const std::function<bool(Operation&)>& wanted);

  std::timed_mutex mutex_;
  std::atomic<bool> stuck_{false};
  std::list<OperationPtr> in_flight_;
  std::atomic<size_t> count_{0}; // size of in_flight_, readable without the lock
  std::atomic<uint64_t> submissions_{0};
  std::atomic<int> waiting_{0}; // threads in `wait`
  std::atomic<clockid_t> caller_clock_; // processor time of the thread that called last
  std::mutex park_mutex_;
  std::condition_variable park_;
  bool parked_ = false;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

} // namespace ccl_backend

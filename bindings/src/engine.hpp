// Drives oneCCL for the whole process.
#pragma once

#include "operation.hpp"

#include <condition_variable>
#include <list>
#include <thread>

namespace ccl_backend {

// Without worker threads oneCCL moves data only while somebody asks it whether an operation is complete. The engine
// asks: in the thread that waits for an operation, or else in a thread of its own.
//
// Threads: every call into oneCCL is made under `mutex_`, from any thread. Operations start in the thread and in the
// order of their calls. An operation ends once: whoever claims it, because it is complete (here) or because it failed
// (watchdog.hpp), ends it. The engine's thread never waits for the GIL, for a callback or for the store: those have
// threads of their own (completions.hpp, watchdog.hpp).
class Engine {
 public:
  // Never destroyed: operations and groups may outlive every static object.
  static Engine& instance();

  using Lock = std::unique_lock<std::timed_mutex>;

  // For calls into oneCCL other than by `submit`. Raises DistBackendError where a thread never came back from oneCCL,
  // and once the process ends.
  Lock lock();
  // A thread that holds the lock was left behind, or has come back after all. Meanwhile oneCCL is of no use.
  void count_left_behind(int more) {
    left_behind_ += more;
  }

  void submit(const OperationPtr& operation);

  // Asks about all operations in flight, once. False if another thread was doing so. `waited` is the one that the
  // calling thread waits for: it does what is left to do for that one.
  bool poll(const Operation* waited = nullptr);

  // Returns when the operation is finished, in whatever way, or at the limit. Does nothing in a forked child.
  void wait(Operation& operation, std::optional<Clock::time_point> limit);

  // With the lock held: keeps an operation whose transfers may never complete until oneCCL has been reset.
  void keep(OperationPtr operation) {
    given_up_.push_back(std::move(operation));
  }
  // With the lock held: what was kept, which nobody writes to any more. Release it without the lock.
  std::vector<OperationPtr> take_kept();

  // The process ends: nobody calls oneCCL from here on. Call it without the GIL.
  void stop() noexcept;
  bool is_stopping() const {
    return stopping_.load(std::memory_order_acquire);
  }
  // In a child of fork there are no threads, and the locks may be taken for ever.
  bool is_forked() const;

 private:
  Engine();
  // Asks while nobody waits.
  void run();

  const pid_t process_;
  std::timed_mutex mutex_;
  std::atomic<int> left_behind_{0};
  std::list<OperationPtr> in_flight_; // under mutex_
  std::vector<OperationPtr> given_up_; // under mutex_
  std::atomic<size_t> count_{0}; // size of in_flight_, readable without the lock
  std::atomic<uint64_t> submissions_{0};
  std::atomic<int> waiting_{0}; // threads in `wait`
  std::atomic<clockid_t> caller_clock_; // processor time of the thread that called last
  std::mutex park_mutex_;
  std::condition_variable park_;
  bool parked_ = false;
  std::atomic<bool> stopping_{false};
};

} // namespace ccl_backend

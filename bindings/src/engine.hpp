// Drives oneCCL for all groups of the process.
#pragma once

#include "operation.hpp"

#include <condition_variable>
#include <list>
#include <thread>

namespace ccl_backend {

// Without worker threads, oneCCL transfers data only while it is polled for the completion of an operation. The engine
// polls: in the thread that waits for an operation, or else in a background thread.
//
// Threads: every call into oneCCL is made under `mutex_`, from any thread. Operations start in the thread and in the
// order of their calls. An operation ends once: the code that claims it ends it, because it is complete (here) or
// because it failed (watchdog.hpp). The engine's thread never waits for the GIL, for a callback or for the store: other
// threads do (completions.hpp, watchdog.hpp).
class Engine {
 public:
  // Never destroyed: operations and groups may outlive every static object.
  static Engine& instance();
  // Starts the threads that all groups need, once. Raises DistBackendError if the system does not start them.
  void start();

  using Lock = std::unique_lock<std::timed_mutex>;

  // For calls into oneCCL outside of `submit`. Raises DistBackendError while an abandoned thread holds the lock, and
  // once the process exits.
  Lock lock();
  // Adds to the number of threads that were abandoned inside oneCCL with the lock held: 1, or -1 when such a thread
  // returns. oneCCL is unusable meanwhile.
  void count_left_behind(int more) {
    left_behind_ += more;
  }

  void submit(const OperationPtr& operation);

  // Polls all operations in flight once. Returns false if another thread holds the lock. `waited` is the operation that
  // the calling thread waits for: this thread completes it.
  bool poll(const Operation* waited = nullptr);

  // When all operations in flight were last polled.
  Clock::time_point last_poll() const {
    return last_poll_.load(std::memory_order_relaxed);
  }

  // Returns when the operation has completed or failed, or at the limit. Does nothing in a forked child.
  void wait(Operation& operation, std::optional<Clock::time_point> limit);

  // With the lock held. Keeps an operation whose transfers may never complete until oneCCL has been reset.
  void keep(OperationPtr operation) {
    given_up_.push_back(std::move(operation));
  }
  // With the lock held, after oneCCL has been reset. Returns the kept operations, to be released in another thread.
  std::vector<OperationPtr> take_kept();

  // For an exit handler, without the GIL: prevents all further calls into oneCCL. Does nothing in a process that has
  // not used ccl.
  static void stop() noexcept;
  bool is_stopping() const {
    return stopping_.load(std::memory_order_acquire);
  }
  // In a forked child, the threads do not exist, and the locks may be held forever.
  bool is_forked() const;

 private:
  Engine();
  void end() noexcept;
  // Polls while no thread is in `wait`, until the process ends.
  void run();

  // What one look at all operations in flight has found.
  struct Found {
    std::vector<OperationPtr> complete;
    std::vector<std::pair<OperationPtr, std::string>> failed; // and the reason
    std::vector<OperationPtr> suspects; // that have not completed in time
    std::vector<OperationPtr> failed_before; // one for each group that failed earlier and still has transfers in oneCCL
    std::string error; // oneCCL's last error; it belongs to a suspect or to a call in `failed_before`
  };
  // With the lock held. Raises nothing that oneCCL raises.
  Found look();
  std::vector<OperationPtr> failed_before() const;
  // With the lock held. oneCCL has one queue of transfers for all operations, and does not say which transfer failed.
  // Correct transfers still complete. So all operations in flight become suspects, and a suspect that is not complete
  // after kSuspected fails.
  void suspect(const std::string& error);
  void fail(Found& found);

  const pid_t process_;
  std::timed_mutex mutex_;
  std::atomic<int> left_behind_{0};
  std::list<OperationPtr> in_flight_; // under mutex_
  std::vector<OperationPtr> given_up_; // under mutex_
  std::string oneccl_error_; // the last one; under mutex_
  Clock::time_point last_progress_; // when oneCCL was last polled; under mutex_
  std::atomic<size_t> count_{0}; // size of in_flight_, readable without the lock
  std::atomic<uint64_t> submissions_{0};
  std::atomic<int> waiting_{0}; // threads in `wait`
  std::atomic<Clock::time_point> last_poll_{Clock::time_point::min()};
  std::atomic<clockid_t> caller_clock_; // CPU-time clock of the last thread that submitted an operation
  std::mutex park_mutex_;
  std::condition_variable park_;
  bool parked_ = false;
  std::atomic<bool> stopping_{false};
};

} // namespace ccl_backend

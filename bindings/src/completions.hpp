// Runs tasks that may block or wait for the GIL: callbacks of futures, and the release of tensors.
#pragma once

#include "clock.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace ccl_backend {

// A pool of threads. A blocked task does not delay other tasks: if no thread is idle, a new thread starts. A thread
// ends after a second without work, except the last one. If the system starts no thread, tasks wait for a running one,
// for a thread that waits for an operation (`help`), and for the watchdog to try again (`retry`). ATen's parallel loops run on one thread here: a second team of OpenMP threads would
// compete with the team of the computing thread.
class Completions {
 public:
  // Never destroyed.
  static Completions& instance();

  // Starts the first thread, once. Raises DistBackendError if the system does not start it.
  void start();

  void post(std::function<void()> task);
  // Starts a thread if one could not be started before and tasks wait.
  void retry();
  // Runs a task that waits because no thread could be started.
  void help();
  // For an exit handler, without the GIL: starts no more tasks, and waits up to two seconds for the running ones.
  void stop();

  // The nesting depth of callbacks in the calling thread: zero outside of callbacks.
  static int depth();
  // Sets the depth of the calling thread during its lifetime.
  class AtDepth {
   public:
    explicit AtDepth(int depth);
    ~AtDepth();
    AtDepth(const AtDepth&) = delete;
    AtDepth& operator=(const AtDepth&) = delete;

   private:
    const int before_;
  };
  // Prints what the task raises.
  static void run_at_depth(int depth, const std::function<void()>& task);

 private:
  friend class OrderedCallbacks;

  void work();
  // With the mutex held, like add_thread().
  void start_worker();
  void add_thread();

  std::atomic<bool> is_short_{false}; // a thread could not be started, and tasks wait
  bool has_printed_ = false; // since the last thread that could be started
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable quiet_;
  std::deque<std::function<void()>> tasks_;
  int threads_ = 0;
  int idle_ = 0;
  bool stopping_ = false;
};

// Completes the futures of one lane of a group one after another, in the order of the calls. Callbacks may call
// collectives, and every rank has to call them in the same order, however long a callback takes on one of them. So only
// a callback that waits for a later call gives way, at the same point on every rank.
class OrderedCallbacks : public std::enable_shared_from_this<OrderedCallbacks> {
 public:
  // `depth`: what Completions::depth() returns inside the callbacks.
  explicit OrderedCallbacks(int depth) : depth_(depth) {}

  // Whether no call has a future that is to be completed.
  bool is_idle();
  // Reserves the place of the call with this number, which has a future.
  void expect(uint64_t sequence);
  // After `expect`: the call has ended. `complete` completes the future and runs its callbacks.
  void ready(uint64_t sequence, std::function<void()> complete);

  // Before the calling thread waits for the future of this call. In a callback of the lane, completes the futures up to
  // this one here, in order, and returns once their callbacks have ended, or at the limit. Else does nothing.
  void give_way(uint64_t sequence, std::optional<Clock::time_point> limit = std::nullopt);

 private:
  void run();
  // With the mutex held, except while the callbacks run. The next future has to be ready.
  void complete_next(std::unique_lock<std::mutex>& guard);
  bool is_next_ready() const {
    return !waiting_.empty() && waiting_.begin()->second;
  }

  const int depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::function<void()>> waiting_; // empty: not ready
  bool running_ = false; // a thread completes futures, or waits in a callback
};

// The call that a future belongs to.
struct Place {
  std::shared_ptr<OrderedCallbacks> lane;
  uint64_t sequence;
};

} // namespace ccl_backend

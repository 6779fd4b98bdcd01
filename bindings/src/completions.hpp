// Runs tasks that may block or wait for the GIL: callbacks of futures, and the release of tensors.
#pragma once

#include <sys/types.h>
#include <time.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace ccl_backend {

// A pool of threads. A blocked task does not delay other tasks: if no thread is idle, a new thread starts. A thread
// ends after a second without work. ATen's parallel loops run on one thread here: a second team of OpenMP threads would
// compete with the team of the computing thread.
class Completions {
 public:
  // Never destroyed.
  static Completions& instance();

  void post(std::function<void()> task);
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

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable quiet_;
  std::deque<std::function<void()>> tasks_;
  int threads_ = 0;
  int idle_ = 0;
  bool stopping_ = false;
};

// Completes the futures of one lane of a group one after another, in the order of the calls. Callbacks may call
// collectives, and every rank has to call them in the same order. A callback that has been blocked for about a tenth of
// a second is overtaken, since it may be waiting for a later future.
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

  // Completes the next future of each lane whose callback is blocked. To be called every few milliseconds while
  // is_any_running(). `may_overtake` is false while a callback waits for a collective that it called: such a callback
  // resumes at a different time on every rank, so overtaking it would change the order of the calls.
  static void overtake_blocked(bool may_overtake);
  static bool is_any_running();

 private:
  void run(uint64_t turn);
  // With the mutex held: starts a runner if the next future is ready.
  void start();
  void overtake_if_blocked(bool may_overtake);

  const int depth_;
  std::mutex mutex_;
  std::map<uint64_t, std::function<void()>> waiting_; // empty: not ready
  bool running_ = false;
  uint64_t turn_ = 0; // number of the current runner; overtaken runners have lower ones
  clockid_t clock_ = 0; // CPU-time clock of the running thread
  timespec used_{};
  int idle_polls_ = 0; // polls since the callback last used CPU time
};

} // namespace ccl_backend

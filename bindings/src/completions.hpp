// Runs what may block or wait for the GIL: what users attached to futures, and the last release of tensors.
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

// Threads that run tasks. A task that blocks holds up no other: where no thread is idle, another one starts, and ends
// after a second without work. ATen's own parallel loops run on one thread here: a second team of OpenMP threads
// would take the cores of the team that computes.
class Completions {
 public:
  // Never destroyed.
  static Completions& instance();

  void post(std::function<void()> task);
  // No task starts from now on. Waits a moment for those that run. For an exit handler, without the GIL.
  void stop();

  // How many callbacks the calling thread is inside of: zero in a thread of the user's.
  static int depth();
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

// Completes the futures of one lane of a group in the order of its calls, one after the other. Callbacks may call
// collectives, and every rank has to call them in the same order. A callback that has been blocked for a while is
// overtaken: it may wait for one of the futures behind it.
class OrderedCallbacks : public std::enable_shared_from_this<OrderedCallbacks> {
 public:
  // `depth` is what Completions::depth() gives inside of the callbacks.
  explicit OrderedCallbacks(int depth) : depth_(depth) {}

  // The call with this number has a future.
  void expect(uint64_t sequence);
  // Its call has ended: `complete` completes the future and runs its callbacks. After `expect`.
  void ready(uint64_t sequence, std::function<void()> complete);

  // Lets waiting futures overtake blocked callbacks. To be called every few milliseconds while is_any_running().
  // `may_overtake`: no callback waits for a collective that it called itself. Such a one goes on when its collective
  // does, on every rank at another time: overtaking it would change the order of the calls.
  static void relieve_all(bool may_overtake);
  static bool is_any_running();

 private:
  void run(uint64_t turn);
  // With the mutex held: starts a runner if there is something to run and nobody runs.
  void start();
  void relieve(bool may_overtake);

  const int depth_;
  std::mutex mutex_;
  std::map<uint64_t, std::function<void()>> waiting_; // empty: not ready
  bool running_ = false;
  uint64_t turn_ = 0; // of the runner whose turn it is
  clockid_t clock_ = 0; // of the running thread
  timespec used_{};
  int idle_looks_ = 0;
};

} // namespace ccl_backend

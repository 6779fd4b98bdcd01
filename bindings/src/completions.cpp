#include "completions.hpp"

#include "errors.hpp"
#include "patience.hpp"

#include <ATen/Parallel.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

// From the OpenMP runtime that torch uses.
extern "C" void omp_set_num_threads(int count) __attribute__((weak));

namespace ccl_backend {
namespace {

constexpr std::chrono::seconds kIdle{1};
// A callback that used no CPU time during this many polls of the watchdog, about a tenth of a second, is blocked.
constexpr int kBlockedPolls = 5;
// How long the exit of the process waits for callbacks.
constexpr std::chrono::seconds kExitTimeout{2};

thread_local int current_depth = 0;
thread_local bool is_pool_thread = false;

std::atomic<int>& runners() {
  static auto* const count = new std::atomic<int>(0);
  return *count;
}

// The lanes that have a runner.
struct Running {
  std::mutex mutex;
  std::set<std::shared_ptr<OrderedCallbacks>> lanes;
};

Running& running() {
  static auto* const running = new Running();
  return *running;
}

// torch sets a thread's count of OpenMP threads at its first loop, which at::get_num_threads() triggers.
void limit_to_one_thread() {
  at::get_num_threads();
  if (omp_set_num_threads != nullptr) {
    omp_set_num_threads(1);
  }
}

} // namespace

Completions& Completions::instance() {
  static auto* const completions = new Completions();
  return *completions;
}

int Completions::depth() {
  return current_depth;
}

Completions::AtDepth::AtDepth(int depth) : before_(std::exchange(current_depth, depth)) {}

Completions::AtDepth::~AtDepth() {
  current_depth = before_;
}

void Completions::run_at_depth(int depth, const std::function<void()>& task) {
  const AtDepth guard(depth);
  try {
    task();
  } catch (const std::exception& error) { // torch catches the errors of Python callbacks and of `then`
    std::cerr << c10::str("ccl: a callback raised: ", message_of(error), "\n");
  }
}

void Completions::post(std::function<void()> task) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (stopping_) {
    new std::function<void()>(std::move(task)); // leaked: releasing its captures may need the GIL
    return;
  }
  tasks_.push_back(std::move(task));
  if (static_cast<size_t>(idle_) >= tasks_.size()) {
    wake_.notify_one();
    return;
  }
  try {
    std::thread([this] { work(); }).detach(); // starts with locking the mutex
    ++threads_;
  } catch (const std::system_error&) { // cannot start a thread: a running one, or the next post, runs the task
  }
}

void Completions::work() {
  pthread_setname_np(pthread_self(), "ccl-callbacks");
  is_pool_thread = true;
  limit_to_one_thread();
  std::unique_lock<std::mutex> guard(mutex_);
  while (true) {
    if (tasks_.empty() && !stopping_) {
      ++idle_;
      wake_.wait_for(guard, kIdle, [&] { return !tasks_.empty() || stopping_; });
      --idle_;
    }
    if (tasks_.empty() || stopping_) {
      break;
    }
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    guard.unlock();
    run_at_depth(0, task);
    task = nullptr;
    guard.lock();
  }
  --threads_;
  quiet_.notify_all();
}

void Completions::stop() {
  std::unique_lock<std::mutex> guard(mutex_);
  stopping_ = true;
  new std::deque<std::function<void()>>(std::move(tasks_));
  tasks_.clear();
  wake_.notify_all();
  const int own = is_pool_thread ? 1 : 0;
  quiet_.wait_for(guard, kExitTimeout, [&] { return threads_ <= own; });
}

bool OrderedCallbacks::is_idle() {
  std::lock_guard<std::mutex> guard(mutex_);
  return !running_ && waiting_.empty();
}

void OrderedCallbacks::expect(uint64_t sequence) {
  std::lock_guard<std::mutex> guard(mutex_);
  waiting_.emplace(sequence, nullptr);
}

void OrderedCallbacks::ready(uint64_t sequence, std::function<void()> complete) {
  std::lock_guard<std::mutex> guard(mutex_);
  waiting_[sequence] = std::move(complete);
  if (!running_) {
    start();
  }
}

void OrderedCallbacks::start() {
  if (waiting_.empty() || !waiting_.begin()->second) {
    return;
  }
  running_ = true;
  ++runners();
  clock_ = 0;
  idle_polls_ = 0;
  {
    std::lock_guard<std::mutex> guard(running().mutex);
    running().lanes.insert(shared_from_this());
  }
  Completions::instance().post([self = shared_from_this(), turn = ++turn_] { self->run(turn); });
}

void OrderedCallbacks::run(uint64_t turn) {
  std::unique_lock<std::mutex> guard(mutex_);
  if (turn == turn_) {
    clock_ = own_clock();
  }
  while (turn == turn_ && !waiting_.empty() && waiting_.begin()->second) {
    auto complete = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    idle_polls_ = 0;
    guard.unlock();
    Completions::run_at_depth(depth_, complete);
    complete = nullptr;
    guard.lock();
  }
  --runners();
  if (turn == turn_) {
    running_ = false;
    std::lock_guard<std::mutex> all(running().mutex);
    running().lanes.erase(shared_from_this());
  }
}

void OrderedCallbacks::overtake_if_blocked(bool may_overtake) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!running_ || clock_ == 0 || waiting_.empty() || !waiting_.begin()->second) {
    return;
  }
  timespec used{};
  clock_gettime(clock_, &used);
  const bool moved = used.tv_sec != used_.tv_sec || used.tv_nsec != used_.tv_nsec;
  used_ = used;
  idle_polls_ = moved || !may_overtake ? 0 : idle_polls_ + 1;
  if (idle_polls_ >= kBlockedPolls) {
    start();
  }
}

void OrderedCallbacks::overtake_blocked(bool may_overtake) {
  std::vector<std::shared_ptr<OrderedCallbacks>> lanes;
  {
    std::lock_guard<std::mutex> guard(running().mutex);
    lanes.assign(running().lanes.begin(), running().lanes.end());
  }
  int deepest = 0;
  for (const auto& lane : lanes) {
    deepest = std::max(deepest, lane->depth_);
  }
  for (const auto& lane : lanes) { // a callback may be waiting for a future of a deeper lane
    lane->overtake_if_blocked(may_overtake && lane->depth_ == deepest);
  }
}

bool OrderedCallbacks::is_any_running() {
  return runners().load() > 0;
}

} // namespace ccl_backend

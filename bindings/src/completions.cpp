#include "completions.hpp"

#include "errors.hpp"
#include "threads.hpp"
#include "watchdog.hpp"

#include <ATen/Parallel.h>

#include <cxxabi.h>

#include <iostream>
#include <utility>

// From the OpenMP runtime that torch uses.
extern "C" void omp_set_num_threads(int count) __attribute__((weak));

namespace ccl_backend {
namespace {

constexpr std::chrono::seconds kIdle{1};
// How long the exit of the process waits for callbacks.
constexpr std::chrono::seconds kExitTimeout{2};

thread_local int current_depth = 0;
thread_local bool is_pool_thread = false;
thread_local const OrderedCallbacks* current_lane = nullptr; // whose callback runs in this thread

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
  } catch (const abi::__forced_unwind&) { // Python ends the thread, during its shutdown
    throw;
  } catch (...) { // torch catches the errors of Python callbacks and of `then`
    std::cerr << c10::str("ccl: a callback raised: ", current_message(), "\n");
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
  add_thread();
}

void Completions::add_thread() {
  try {
    start_worker(); // which starts with locking the mutex
    is_short_ = has_printed_ = false;
  } catch (const std::exception& error) {
    is_short_ = true;
    if (!std::exchange(has_printed_, true)) {
      std::cerr << c10::str(message_of(error), "; callbacks wait for each other meanwhile\n");
    }
  }
}

void Completions::start_worker() {
  start_thread("ccl-callbacks", [this] { work(); }, [this](const std::string& reason) {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      --threads_;
    }
    Watchdog::instance().fail_all(c10::str("ccl: a thread of callbacks has failed: ", reason));
  });
  ++threads_;
}

void Completions::start() {
  [[maybe_unused]] static const bool is_started = [this] {
    std::lock_guard<std::mutex> guard(mutex_);
    start_worker();
    return true;
  }();
}

void Completions::retry() {
  if (!is_short_) {
    return;
  }
  std::lock_guard<std::mutex> guard(mutex_);
  if (!stopping_ && static_cast<size_t>(idle_) < tasks_.size()) {
    add_thread();
  } else {
    is_short_ = false;
  }
}

void Completions::help() {
  if (!is_short_.load(std::memory_order_relaxed)) {
    return;
  }
  std::function<void()> task;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (stopping_ || tasks_.empty()) {
      return;
    }
    task = std::move(tasks_.front());
    tasks_.pop_front();
  }
  run_at_depth(0, task);
}

void Completions::work() {
  is_pool_thread = true;
  limit_to_one_thread();
  std::unique_lock<std::mutex> guard(mutex_);
  while (true) {
    if (tasks_.empty() && !stopping_) {
      ++idle_;
      wake_.wait_for(guard, kIdle, [&] { return !tasks_.empty() || stopping_; });
      --idle_;
    }
    if (stopping_ || (tasks_.empty() && threads_ > 1)) {
      break;
    }
    if (tasks_.empty()) {
      continue;
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
  if (running_) {
    changed_.notify_one();
  } else if (is_next_ready()) {
    running_ = true;
    Completions::instance().post([self = shared_from_this()] { self->run(); });
  }
}

void OrderedCallbacks::run() {
  std::unique_lock<std::mutex> guard(mutex_);
  while (is_next_ready()) {
    complete_next(guard);
  }
  running_ = false;
}

void OrderedCallbacks::complete_next(std::unique_lock<std::mutex>& guard) {
  auto next = waiting_.extract(waiting_.begin());
  guard.unlock();
  const auto* const before = std::exchange(current_lane, this);
  Completions::run_at_depth(depth_, next.mapped());
  current_lane = before;
  next = {};
  guard.lock();
}

void OrderedCallbacks::give_way(uint64_t sequence, std::optional<Clock::time_point> limit) {
  if (current_lane != this) {
    return;
  }
  std::unique_lock<std::mutex> guard(mutex_);
  while (!waiting_.empty() && waiting_.begin()->first <= sequence) {
    if (is_next_ready()) {
      complete_next(guard);
    } else if (!limit) {
      changed_.wait(guard);
    } else if (changed_.wait_until(guard, *limit) == std::cv_status::timeout) {
      return;
    }
  }
}

} // namespace ccl_backend

#include "engine.hpp"

#include "completions.hpp"
#include "errors.hpp"
#include "oneccl_private.hpp"
#include "patience.hpp"
#include "threads.hpp"
#include "transport.hpp"
#include "watchdog.hpp"

#include <unistd.h>

#include <algorithm>
#include <iostream>

namespace ccl_backend {
namespace {

// How long the engine's thread sleeps between polls while the caller computes. The kernel's buffers keep the network
// busy meanwhile. Polling five times as often added 12 ms to a step of 400 ms of a caller with one core.
constexpr microseconds kPauseWhileComputing{1000};
// Without operations for this long, the thread blocks until `submit` wakes it.
constexpr microseconds kPark{50000};
// The thread waits for several operations: its Patience is that of a tensor of this size.
constexpr int64_t kUnknownBytes = 32 << 20;
// Between two calls of make_progress while no operation in flight enters oneCCL.
constexpr microseconds kProgressInterval{500};
// How long a suspect may take to complete. Longer after a failure: the transfers that are left of it raise more errors.
constexpr std::chrono::seconds kSuspected{1};
constexpr std::chrono::seconds kSuspectedAfterFailure{5};
// Between two polls, more time does not count: the process was stopped, for example.
constexpr std::chrono::milliseconds kMostBetweenPolls{100};
// How long the exit of the process waits for a thread inside oneCCL.
constexpr std::chrono::seconds kExitTimeout{5};

thread_local bool is_progress_thread = false;
thread_local bool is_ending_process = false;
std::atomic<Engine*> created{nullptr}; // the instance, once it exists

// Releasing the last reference to a tensor may need the GIL, so the engine's own thread leaves it to Completions.
void release(OperationPtr operation) {
  if (is_progress_thread && operation.use_count() == 1) {
    Completions::instance().post([operation = std::move(operation)] {});
  }
}

} // namespace

Engine& Engine::instance() {
  static Engine* const engine = created = new Engine();
  return *engine;
}

void Engine::stop() noexcept {
  if (auto* const engine = created.load()) {
    engine->end();
  }
}

Engine::Engine() : process_(getpid()), caller_clock_(own_clock()) {}

void Engine::start() {
  Completions::instance().start();
  Watchdog::instance().start();
  [[maybe_unused]] static const bool is_started = start_service("ccl-progress", [this] { run(); });
}

bool Engine::is_forked() const {
  return getpid() != process_;
}

void Engine::end() noexcept {
  if (is_forked() || stopping_.exchange(true)) {
    return;
  }
  is_ending_process = true;
  Watchdog::withdraw_all();
  Lifeline::leave_all();
  Completions::instance().stop();
  // Never unlocked: threads that are still running stay outside oneCCL, whose static objects are about to be destroyed.
  (void)mutex_.try_lock_until(std::chrono::system_clock::now() + kExitTimeout);
}

Engine::Lock Engine::lock() {
  Lock guard(mutex_, std::defer_lock);
  // ThreadSanitizer does not intercept a timed lock on the steady clock. A jump of the system clock only changes the
  // length of one iteration.
  while (!guard.try_lock_until(std::chrono::system_clock::now() + std::chrono::milliseconds(200))) {
    if (stopping_) {
      C10_THROW_ERROR(DistBackendError, "ccl: the process is ending");
    }
    if (left_behind_ > 0) {
      C10_THROW_ERROR(
          DistBackendError,
          "ccl: oneCCL is blocked by a group of this process that could not connect: restart the process");
    }
  }
  return guard;
}

void Engine::submit(const OperationPtr& operation) {
  thread_local const clockid_t clock = own_clock();
  caller_clock_.store(clock, std::memory_order_relaxed);
  Watchdog::instance().add(operation);
  try {
    const auto guard = lock();
    try {
      operation->start();
    } catch (...) { // a part of the transfers may have started
      keep(operation);
      throw;
    }
    in_flight_.push_back(operation);
    count_.store(in_flight_.size());
    submissions_.fetch_add(1, std::memory_order_relaxed);
  } catch (...) {
    Watchdog::instance().remove(operation);
    operation->group_->ended(operation->log_number_, false);
    throw;
  }
  std::lock_guard<std::mutex> guard(park_mutex_);
  if (parked_) {
    parked_ = false;
    park_.notify_one();
  }
}

bool Engine::poll(const Operation* waited) {
  Found found;
  {
    Lock guard(mutex_, std::try_to_lock);
    if (!guard.owns_lock()) {
      return false;
    }
    found = look();
  }
  fail(found);
  for (auto& operation : found.complete) {
    Watchdog::instance().remove(operation);
    if (operation.get() == waited || operation->is_light()) {
      operation->complete();
      release(std::move(operation));
    } else {
      Completions::instance().post([operation = std::move(operation)] { operation->complete(); });
    }
  }
  return true;
}

Engine::Found Engine::look() {
  Found found;
  const auto now = Clock::now();
  for (auto it = in_flight_.begin(); it != in_flight_.end();) {
    auto& operation = *it;
    bool is_done = true;
    if (operation->suspected_until_ && now - last_poll() > kMostBetweenPolls) {
      *operation->suspected_until_ += now - last_poll() - kMostBetweenPolls;
    }
    if (operation->is_claimed()) { // it failed
      keep(std::move(operation));
    } else {
      try {
        is_done = operation->advance();
        if (is_done && operation->claim()) {
          found.complete.push_back(std::move(operation));
        } else if (is_done) {
          keep(std::move(operation));
        }
      } catch (const c10::Error& own) { // of this operation, raised by this library
        found.failed.emplace_back(operation, message_of(own));
        keep(std::move(operation));
        is_done = true;
      } catch (...) {
        if (operation->is_in_oneccl()) {
          found.error = current_message();
          is_done = false;
        } else {
          found.failed.emplace_back(operation, current_message());
          keep(std::move(operation));
          is_done = true;
        }
      }
      if (!is_done && operation->suspected_until_ && now >= *operation->suspected_until_) {
        found.suspects.push_back(std::move(operation));
        is_done = true;
      }
    }
    it = is_done ? in_flight_.erase(it) : std::next(it);
  }
  if (!found.suspects.empty()) {
    found.failed_before = failed_before();
    given_up_.insert(given_up_.end(), found.suspects.begin(), found.suspects.end());
  }
  count_.store(in_flight_.size());
  last_poll_.store(now, std::memory_order_relaxed);
  const auto uses_oneccl = [](const auto& operation) { return operation->uses_oneccl(); };
  if (std::any_of(in_flight_.begin(), in_flight_.end(), uses_oneccl)) {
    last_progress_ = now;
  } else if (now - last_progress_ >= kProgressInterval) {
    last_progress_ = now;
    try {
      make_progress();
    } catch (...) {
      found.error = current_message();
    }
  }
  if (const auto error = take_transfer_error()) {
    found.error = *error;
  }
  if (!found.error.empty()) {
    suspect(found.error);
  }
  found.error = oneccl_error_;
  return found;
}

std::vector<OperationPtr> Engine::failed_before() const {
  std::vector<OperationPtr> failed;
  for (const auto& operation : given_up_) {
    const auto is_of_same_group = [&](const auto& other) { return other->group_ == operation->group_; };
    if (operation->is_in_oneccl() && std::none_of(failed.begin(), failed.end(), is_of_same_group)) {
      failed.push_back(operation);
    }
  }
  return failed;
}

void Engine::suspect(const std::string& error) {
  const auto until = Clock::now() + (given_up_.empty() ? kSuspected : kSuspectedAfterFailure);
  const auto is_in_oneccl = [](const auto& operation) { return operation->is_in_oneccl(); };
  const bool is_new = error != oneccl_error_;
  if (is_new && given_up_.empty() && std::none_of(in_flight_.begin(), in_flight_.end(), is_in_oneccl)) {
    std::cerr << c10::str("ccl: a transfer that no call waits for has failed: ", error, "\n") << std::flush;
  }
  oneccl_error_ = error;
  for (const auto& operation : in_flight_) {
    if (!operation->suspected_until_ && is_in_oneccl(operation)) {
      operation->suspected_until_ = until;
    }
  }
}

void Engine::fail(Found& found) {
  for (auto& [operation, reason] : found.failed) {
    Watchdog::instance().fail(operation, c10::str("failed on ", operation->group_->options.where(), ": ", reason));
    release(std::move(operation));
  }
  if (!found.suspects.empty()) {
    Watchdog::instance().fail_suspects(found.suspects, found.failed_before, found.error);
    for (auto* operations : {&found.suspects, &found.failed_before}) {
      for (auto& operation : *operations) {
        release(std::move(operation));
      }
    }
  }
}

std::vector<OperationPtr> Engine::take_kept() {
  for (auto it = in_flight_.begin(); it != in_flight_.end();) {
    if ((*it)->is_claimed()) {
      keep(std::move(*it));
      it = in_flight_.erase(it);
    } else {
      ++it;
    }
  }
  count_.store(in_flight_.size());
  oneccl_error_.clear();
  (void)take_transfer_error(); // of a transfer that the reset has ended
  return std::exchange(given_up_, {});
}

void Engine::wait(Operation& operation, std::optional<Clock::time_point> limit) {
  if (is_forked()) {
    return;
  }
  const auto finished = [&] { return operation.finished_.load(std::memory_order_acquire); };
  // Other threads stay in the loop below. Python ends a thread that asks for the GIL during its shutdown, by unwinding
  // the stack, and the destructor of pybind's gil_scoped_release would turn that into a crash.
  if (stopping_ && !finished() && (is_ending_process || Completions::depth() > 0)) {
    C10_THROW_ERROR(DistBackendError, "ccl: the process is ending");
  }
  struct Waiting {
    explicit Waiting(std::atomic<int>& count) : count(count) {
      ++count;
    }
    ~Waiting() {
      --count;
    }
    std::atomic<int>& count;
  };
  const Waiting waiting(waiting_);
  Patience patience(operation.bytes_);
  while (!finished()) {
    poll(&operation);
    Completions::instance().help();
    if (finished() || (limit && Clock::now() >= *limit)) {
      break;
    }
    patience.pause(SharedExchange::is_busy());
  }
}

void Engine::run() {
  is_progress_thread = true;
  Activity activity;
  Patience patience(kUnknownBytes);
  uint64_t submissions = 0;
  auto idle_since = Clock::now();
  while (!stopping_) {
    if (count_.load() == 0) {
      if (Clock::now() - idle_since < kPark) {
        std::this_thread::sleep_for(kPauseWhileComputing);
        continue;
      }
      std::unique_lock<std::mutex> guard(park_mutex_);
      if (count_.load() == 0 && !stopping_) {
        parked_ = true;
        park_.wait(guard, [&] { return !parked_; });
      }
      idle_since = Clock::now();
      continue;
    }
    idle_since = Clock::now();
    if (submissions_.load(std::memory_order_relaxed) != submissions) {
      submissions = submissions_.load(std::memory_order_relaxed);
      patience = Patience(kUnknownBytes);
    }
    if (waiting_.load() > 0) {
      std::this_thread::sleep_for(kPauseWhileComputing);
      continue;
    }
    poll();
    // Leaves the core to a caller that computes. Polls often for a caller that sleeps, for example on a future.
    if (SharedExchange::is_busy()) {
      __builtin_ia32_pause();
    } else if (activity.active(caller_clock_.load(std::memory_order_relaxed))) {
      std::this_thread::sleep_for(kPauseWhileComputing);
    } else {
      patience.pause();
    }
  }
}

} // namespace ccl_backend

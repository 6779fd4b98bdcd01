#include "engine.hpp"

#include "errors.hpp"
#include "patience.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <set>

namespace ccl_backend {
namespace {

// The engine's thread leaves the core to a computing caller for this long. The kernel's buffers keep a network busy
// meanwhile; asking five times as often took 12 ms more of a step of 400 from a caller with one core.
constexpr microseconds kPauseWhileComputing{1000};
// Without operations for this long, the thread stops looking for them and has to be woken.
constexpr microseconds kPark{50000};
// The engine's thread looks this often for operations that will not complete.
constexpr microseconds kLookAtClocks{20000};
// Its patience is that for a tensor of this size, since it waits for several.
constexpr int64_t kUnknownBytes = 32 << 20;
// How often a long wait asks the store whether a peer has given up.
constexpr std::chrono::seconds kAskStore{1};

} // namespace

Engine& Engine::instance() {
  static Engine* const engine = new Engine();
  return *engine;
}

Engine::Engine() : caller_clock_(own_clock()) {
  thread_ = std::thread([this] { run(); });
  std::thread([this] { watch(); }).detach();
  // oneCCL's own static objects are older, so they go later: nobody may ask it after that.
  std::atexit([] { instance().stop(); });
}

void Engine::stop() {
  stopping_ = true;
  Lifeline::leave_all();
  {
    std::lock_guard<std::mutex> guard(park_mutex_);
    parked_ = false;
    park_.notify_one();
  }
  if (thread_.get_id() != std::this_thread::get_id()) {
    thread_.join();
  }
}

Engine::Lock Engine::lock() {
  Lock guard(mutex_, std::defer_lock);
  while (!guard.try_lock_for(std::chrono::seconds(1))) {
    if (stuck_) {
      C10_THROW_ERROR(DistBackendError, "ccl: a group of this process could not connect, so oneCCL cannot go on");
    }
  }
  return guard;
}

void Engine::submit(const OperationPtr& operation) {
  thread_local const clockid_t clock = own_clock();
  caller_clock_.store(clock, std::memory_order_relaxed);
  {
    const auto guard = lock();
    operation->start();
    in_flight_.push_back(operation);
    count_.store(in_flight_.size());
    submissions_.fetch_add(1, std::memory_order_relaxed);
  }
  std::lock_guard<std::mutex> guard(park_mutex_);
  if (parked_) {
    parked_ = false;
    park_.notify_one();
  }
}

std::vector<OperationPtr> Engine::take(const std::function<bool(Operation&)>& wanted) {
  std::vector<OperationPtr> taken;
  for (auto it = in_flight_.begin(); it != in_flight_.end();) {
    if (wanted(**it)) {
      taken.push_back(*it);
      it = in_flight_.erase(it);
    } else {
      ++it;
    }
  }
  count_.store(in_flight_.size());
  return taken;
}

bool Engine::poll() {
  std::vector<OperationPtr> complete;
  std::vector<std::pair<OperationPtr, std::exception_ptr>> failed;
  {
    Lock guard(mutex_, std::try_to_lock);
    if (!guard.owns_lock()) {
      return false;
    }
    complete = take([&](Operation& operation) {
      try {
        return operation.advance();
      } catch (...) {
        failed.emplace_back(OperationPtr::reclaim_copy(&operation), std::current_exception());
        return false;
      }
    });
    for (const auto& [operation, error] : failed) {
      take([&](Operation& other) { return &other == operation.get(); });
    }
  }
  for (const auto& operation : complete) {
    operation->complete();
  }
  for (const auto& [operation, error] : failed) {
    std::string reason = "unknown error";
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& caught) {
      reason = message_of(caught);
    } catch (...) {
    }
    give_up(
        operation,
        c10::str("ccl: ", operation->what().describe(), " failed on ", operation->group_->where(), ": ", reason),
        true);
  }
  return true;
}

void Engine::give_up(const OperationPtr& operation, const std::string& message, bool compare) {
  // Calls from now on fail at once; to hear the peers may take some seconds.
  const auto& group = operation->group_;
  auto text = message;
  if (!group->mark_broken(message)) {
    text = c10::str(message, " (before: ", group->reason(), ")");
  } else if (compare) {
    text = c10::str(message, "; ", group->compare_with_peers(group));
  }
  new OperationPtr(operation); // for ever: oneCCL may still write to its tensors
  operation->fail(std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, text)));
}

void Engine::fail_hopeless() {
  const auto now = Clock::now();
  std::vector<std::pair<OperationPtr, std::string>> hopeless;
  std::vector<OperationPtr> broken;
  {
    const auto guard = lock();
    take([&](Operation& operation) {
      auto reason = operation.why_never(now);
      if (reason.empty()) {
        return false;
      }
      hopeless.emplace_back(OperationPtr::reclaim_copy(&operation), std::move(reason));
      return true;
    });
    broken = take([&](Operation& operation) {
      const auto same = [&](const auto& other) { return other.first->group_ == operation.group_; };
      return operation.group_->is_broken() || std::any_of(hopeless.begin(), hopeless.end(), same);
    });
  }
  for (const auto& [operation, reason] : hopeless) {
    const bool compare = now >= operation->started_ + operation->timeout_;
    const auto what = operation->what().describe();
    give_up(operation, c10::str("ccl: ", what, " ", reason, ", ", operation->group_->where()), compare);
  }
  for (const auto& operation : broken) {
    const auto what = operation->what().describe();
    give_up(operation, c10::str("ccl: ", what, " was given up on ", operation->group_->where()), true);
  }
}

void Engine::wait(Operation& operation, std::optional<Clock::time_point> limit) {
  const auto finished = [&] { return operation.finished_.load(std::memory_order_acquire); };
  ++waiting_;
  Patience patience(operation.bytes_);
  while (!finished()) {
    poll();
    if (finished()) {
      break;
    }
    const auto now = Clock::now();
    if (limit && now >= *limit) {
      break;
    }
    if (stuck_) {
      break;
    }
    patience.pause();
  }
  --waiting_;
}

bool Engine::drain(const Group& group, Clock::time_point limit) {
  const auto next = [&] {
    const auto guard = lock();
    const auto mine = [&](const OperationPtr& operation) { return operation->group_.get() == &group; };
    const auto found = std::find_if(in_flight_.begin(), in_flight_.end(), mine);
    return found == in_flight_.end() ? OperationPtr() : *found;
  };
  while (const auto operation = next()) {
    if (Clock::now() >= limit) {
      return false;
    }
    wait(*operation, limit);
  }
  return true;
}

void Engine::run() {
  pthread_setname_np(pthread_self(), "ccl-progress");
  Activity activity;
  Patience patience(kUnknownBytes);
  uint64_t submissions = 0;
  auto idle_since = Clock::now();
  auto look_at_clocks = Clock::now();
  while (!stopping_ && !stuck_) {
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
    if (idle_since >= look_at_clocks) {
      fail_hopeless();
      look_at_clocks = idle_since + kLookAtClocks;
    }
    if (submissions_.load(std::memory_order_relaxed) != submissions) {
      submissions = submissions_.load(std::memory_order_relaxed);
      patience = Patience(kUnknownBytes);
    }
    if (waiting_.load() > 0) {
      std::this_thread::sleep_for(kPauseWhileComputing);
      continue;
    }
    poll();
    // A caller that computes keeps its core; one that sleeps, on a future for example, gets its answer soon.
    if (activity.active(caller_clock_.load(std::memory_order_relaxed))) {
      std::this_thread::sleep_for(kPauseWhileComputing);
    } else {
      patience.pause();
    }
  }
}

void Engine::watch() {
  pthread_setname_np(pthread_self(), "ccl-watch");
  while (!stopping_ && !stuck_) {
    std::this_thread::sleep_for(kAskStore);
    std::set<std::shared_ptr<Group>> groups;
    if (count_.load() > 0) {
      const auto guard = lock();
      for (const auto& operation : in_flight_) {
        if (Clock::now() - operation->started_ >= kAskStore) {
          groups.insert(operation->group_);
        }
      }
    }
    for (const auto& group : groups) {
      group->ask_peers();
    }
  }
}

} // namespace ccl_backend

// How waiting threads leave the processor to computing ones.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace ccl_backend {

using std::chrono::microseconds;

// A wait polls without a pause for this long, which covers small messages between ranks that are in step.
inline constexpr microseconds kSpin{200};
// Then it yields to other threads between polls until this time, and longer for large tensors, which need the polling.
inline constexpr microseconds kYield{20000};
inline constexpr int64_t kYieldBytesPerMicrosecond = 100;
// Then it sleeps between polls, for increasingly long.
inline constexpr microseconds kFirstPause{20};
inline constexpr microseconds kLongestPause{1000};

// Pauses between the polls of a wait that begins with the construction.
class Patience {
 public:
  explicit Patience(int64_t bytes)
      : begin_(std::chrono::steady_clock::now()), yield_(kYield + microseconds(bytes / kYieldBytesPerMicrosecond)) {}

  // `is_busy`: the wait is about to end, so it does not sleep.
  void pause(bool is_busy = false) {
    const auto waited = std::chrono::steady_clock::now() - begin_;
    if (waited < kSpin) {
      __builtin_ia32_pause();
    } else if (waited < yield_ || is_busy) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(pause_);
      pause_ = std::min(pause_ * 5 / 4 + microseconds(1), kLongestPause);
    }
  }

 private:
  std::chrono::steady_clock::time_point begin_;
  microseconds yield_;
  microseconds pause_ = kFirstPause;
};

// The CPU-time clock of the calling thread.
inline clockid_t own_clock() {
  clockid_t clock = CLOCK_THREAD_CPUTIME_ID;
  pthread_getcpuclockid(pthread_self(), &clock);
  return clock;
}

class Activity {
 public:
  // Whether the thread of this clock has used CPU time since the last call.
  bool active(clockid_t clock) {
    timespec now{};
    if (clock_gettime(clock, &now) != 0) {
      return false; // the thread has ended
    }
    const bool moved = now.tv_sec != last_.tv_sec || now.tv_nsec != last_.tv_nsec;
    last_ = now;
    return moved;
  }

 private:
  timespec last_{};
};

} // namespace ccl_backend

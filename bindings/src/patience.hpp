// How a thread that waits shares the processor with those that compute.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace ccl_backend {

using std::chrono::microseconds;

// A wait asks without a pause for this long, which covers small messages between ranks that are in step.
inline constexpr microseconds kSpin{200};
// Then it lets other threads run in between: until here, and longer for large tensors, which need the asking.
inline constexpr microseconds kYield{20000};
inline constexpr int64_t kYieldBytesPerMicrosecond = 100;
// Then it sleeps, longer and longer.
inline constexpr microseconds kFirstPause{20};
inline constexpr microseconds kLongestPause{1000};

// The next pause of a wait that began at `begin`; zero: ask again at once.
class Patience {
 public:
  explicit Patience(int64_t bytes)
      : begin_(std::chrono::steady_clock::now()), yield_(kYield + microseconds(bytes / kYieldBytesPerMicrosecond)) {}

  void pause() {
    const auto waited = std::chrono::steady_clock::now() - begin_;
    if (waited < kSpin) {
      __builtin_ia32_pause();
    } else if (waited < yield_) {
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

// Of the calling thread: the processor time that it has used.
inline clockid_t own_clock() {
  clockid_t clock = CLOCK_THREAD_CPUTIME_ID;
  pthread_getcpuclockid(pthread_self(), &clock);
  return clock;
}

// Has the thread of this clock used the processor since the last call?
class Activity {
 public:
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

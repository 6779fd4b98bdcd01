// The Python thread that requested a future, and may be attaching a callback to it.
#pragma once

#include "patience.hpp"

#include <fstream>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

namespace ccl_backend {

// torch's `then` releases the GIL before it attaches the callback. A future that completes in between runs the callback
// in the Python thread, whose collectives would use another lane than on the other ranks.
class Requester {
 public:
  // The calling thread, with the GIL.
  Requester() : thread_(static_cast<pid_t>(syscall(SYS_gettid))), clock_(own_clock()) {}

  // With the GIL, in another thread: returns when the thread waits for something, which is the GIL after it has
  // attached a callback, or when it has computed for longer than attaching takes.
  void wait_until_attached() const {
    const auto limit = std::chrono::steady_clock::now() + kLimit;
    const auto begin = cpu_time();
    while (is_runnable() && cpu_time() - begin < kAttaching && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  static constexpr microseconds kAttaching{500};
  static constexpr microseconds kPause{50};
  static constexpr std::chrono::seconds kLimit{1};

  microseconds cpu_time() const {
    timespec used{};
    if (clock_gettime(clock_, &used) != 0) {
      return kAttaching; // the thread has ended
    }
    return std::chrono::seconds(used.tv_sec) + microseconds(used.tv_nsec / 1000);
  }

  // "123 (python) R ...": running, or waiting for a processor.
  bool is_runnable() const {
    std::ifstream file("/proc/self/task/" + std::to_string(thread_) + "/stat");
    std::string text;
    std::getline(file, text);
    const auto end = text.rfind(") ");
    return end != std::string::npos && text.compare(end + 2, 1, "R") == 0;
  }

  pid_t thread_;
  clockid_t clock_;
};

} // namespace ccl_backend

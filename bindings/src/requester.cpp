#include "requester.hpp"

#include <pybind11/pybind11.h>

#include <fstream>
#include <linux/futex.h>
#include <sstream>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

namespace ccl_backend {
namespace {

constexpr microseconds kPause{50};
// A thread that has used the CPU for longer than this is not about to attach a callback.
constexpr microseconds kAttaching{2000};
// The same if it has not used the CPU for this long. A thread that waits for the GIL wakes up every 5 ms.
constexpr microseconds kAsleep{20000};

// Gives access to private members of torch's future, which has no function for this: an explicit instantiation may name
// them.
template <auto kMutex, auto kCallbacks>
struct Private {
  friend bool has_callback(c10::ivalue::Future& future) {
    const std::lock_guard<std::mutex> guard(future.*kMutex);
    return !(future.*kCallbacks).empty();
  }
};
template struct Private<&c10::ivalue::Future::mutex_, &c10::ivalue::Future::callbacks_>;
bool has_callback(c10::ivalue::Future& future);

} // namespace

Requester::Requester() : thread_(static_cast<pid_t>(syscall(SYS_gettid))), clock_(own_clock()) {}

void Requester::wait_until_attached(c10::ivalue::Future& future) const {
  const auto begin = cpu_time();
  auto used = begin;
  auto last_seen = std::chrono::steady_clock::now();
  // A thread that Python interrupts waits without a limit until another one has taken the GIL.
  const auto waits_for_other_event = [&] {
    if (!waits_for_event()) {
      return false;
    }
    const pybind11::gil_scoped_acquire taken;
    return waits_for_event();
  };
  while (!has_callback(future) && !waits_for_other_event() && used - begin < kAttaching) {
    const auto now = std::chrono::steady_clock::now();
    const auto before = std::exchange(used, cpu_time());
    if (used != before || is_runnable()) {
      last_seen = now;
    } else if (now - last_seen > kAsleep) {
      return;
    }
    std::this_thread::sleep_for(kPause);
  }
}

microseconds Requester::cpu_time() const {
  timespec used{};
  if (clock_gettime(clock_, &used) != 0) {
    return microseconds::max(); // the thread has ended
  }
  return std::chrono::seconds(used.tv_sec) + microseconds(used.tv_nsec / 1000);
}

std::string Requester::status(const char* file) const {
  std::ifstream stream("/proc/self/task/" + std::to_string(thread_) + "/" + file);
  std::string text;
  std::getline(stream, text);
  return text;
}

// "123 (python) R ...": running, or waiting for a processor. "D": waiting for memory.
bool Requester::is_runnable() const {
  const auto text = status("stat");
  const auto end = text.rfind(") ");
  return end != std::string::npos && text.find_first_of("RD", end) == end + 2;
}

// Whether the thread waits for a condition variable, without a limit. Locks wait with another operation, and the GIL
// with a limit. "202 ADDRESS OPERATION VALUE LIMIT ...": the system call and its arguments.
bool Requester::waits_for_event() const {
  std::istringstream text(status("syscall"));
  long number = -1;
  unsigned long address = 0, operation = 0, value = 0, limit = 1;
  text >> number >> std::hex >> address >> operation >> value >> limit;
  return number == SYS_futex && (operation & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && limit == 0;
}

} // namespace ccl_backend

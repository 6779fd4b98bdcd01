#include "threads.hpp"

#include "errors.hpp"
#include "watchdog.hpp"

#include <cxxabi.h>
#include <pthread.h>

#include <chrono>
#include <iostream>
#include <system_error>
#include <thread>

namespace ccl_backend {
namespace {

// Between two calls of a service that raises.
constexpr std::chrono::milliseconds kPause{100};

// Returns the message of what `body` raises, else nothing.
std::string error_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const abi::__forced_unwind&) { // Python ends threads this way during its shutdown
    throw;
  } catch (...) {
    return current_message();
  }
}

void print(const std::string& text) noexcept {
  std::cerr << text << std::flush;
}

} // namespace

void start_thread(const char* name, std::function<void()> body, std::function<void(const std::string&)> failed) {
  try {
    std::thread([name, body = std::move(body), failed = std::move(failed)]() mutable {
      pthread_setname_np(pthread_self(), name);
      const auto reason = error_of(body);
      body = nullptr;
      if (!reason.empty()) {
        print(c10::str("ccl: thread ", name, " has failed: ", reason, "\n"));
        if (failed) {
          (void)error_of([&] { failed(reason); });
        }
      }
    }).detach();
  } catch (const std::system_error& error) {
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("ccl: cannot start a thread: ", error.what(),
                 ": raise the limit of processes and threads (docker run --pids-limit, ulimit -u)"));
  }
}

bool start_service(const char* name, std::function<void()> body) {
  start_thread(name, [name, body = std::move(body)] {
    for (auto reason = error_of(body); !reason.empty(); reason = error_of(body)) {
      const auto text = c10::str("ccl: thread ", name, " has failed: ", reason);
      print(text + "\n");
      (void)error_of([&] { Watchdog::instance().fail_all(text); });
      std::this_thread::sleep_for(kPause);
    }
  });
  return true;
}

} // namespace ccl_backend

// Runs a call that may block for longer than its caller can wait.
#pragma once

#include "clock.hpp"
#include "threads.hpp"

#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>

namespace ccl_backend {

// Calls `body` in a new thread and returns its result, or raises what it raised. Returns std::nullopt if `body` is
// still running when the limit is over; its thread then continues on its own. The same happens when `check`, which is
// called every 50 ms, raises.
template <typename Result>
std::optional<Result> run_bounded(
    std::function<Result()> body, const TimeLimit& limit, const std::function<void()>& check = [] {}) {
  auto promise = std::make_shared<std::promise<Result>>();
  auto future = promise->get_future();
  start_thread("ccl-bounded", [promise, body = std::move(body)] {
    try {
      promise->set_value(body());
    } catch (const std::exception&) {
      promise->set_exception(std::current_exception());
    }
  });
  while (future.wait_for(std::min(Milliseconds(50), limit.left())) != std::future_status::ready) {
    if (limit.is_over()) {
      return std::nullopt;
    }
    check();
  }
  return future.get();
}

} // namespace ccl_backend

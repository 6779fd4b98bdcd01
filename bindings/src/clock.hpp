// Time limits.
#pragma once

#include <algorithm>
#include <chrono>

namespace ccl_backend {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// A deadline after a longer limit could be later than the clock can represent.
constexpr Milliseconds kLongestLimit = std::chrono::hours(100 * 365 * 24);

inline Milliseconds bounded(Milliseconds limit) {
  return std::min(limit, kLongestLimit);
}

// A time limit that starts when it is constructed.
class TimeLimit {
 public:
  explicit TimeLimit(Milliseconds limit)
      : began(Clock::now()), deadline(began + bounded(limit)), seconds(limit.count() / 1000.0) {}

  // At least 1 ms: the store takes zero for "no limit".
  Milliseconds left() const {
    return std::max(Milliseconds(1), std::chrono::duration_cast<Milliseconds>(deadline - Clock::now()));
  }
  bool is_over() const {
    return Clock::now() >= deadline;
  }

  const Clock::time_point began;
  const Clock::time_point deadline;
  const double seconds; // from begin to deadline, for messages
};

} // namespace ccl_backend

// The last calls of a group, for whoever asks why one of them did not complete.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace ccl_backend {

// What a rank tells others about an operation.
struct Started {
  uint64_t sequence = 0; // zero: none yet
  const char* name = "";
  int lane = 0; // other than zero: called by a future's callback
  int64_t elements = -1; // negative: no tensor
  c10::ScalarType type = c10::ScalarType::Byte;

  // "#12 all_reduce(float32, 100)"
  std::string describe() const;
};

// Any thread may call.
class CallLog {
 public:
  // The number to give to `ended`.
  uint64_t started(const Started& what);
  void ended(uint64_t number, bool is_success);

  // The last call that was started.
  Started last() const;
  // A line for each of the last calls, the oldest first: what, when, and whether and how it ended.
  std::string text() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    Started what;
    Clock::time_point begin;
    Clock::time_point end;
    enum { kRunning, kComplete, kFailed } state = kRunning;
  };

  mutable std::mutex mutex_;
  uint64_t count_ = 0;
  std::array<Entry, 64> entries_;
};

} // namespace ccl_backend

// The last calls of a group, for error reports.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace ccl_backend {

// A started operation, as reported to the other ranks.
struct Started {
  uint64_t sequence = 0; // zero: no operation has started
  const char* name = "";
  int lane = 0; // not zero: called by a future's callback
  int64_t elements = -1; // negative: no tensor
  c10::ScalarType type = c10::ScalarType::Byte;
  static constexpr uint8_t kNoOp = UINT8_MAX;
  uint8_t op = kNoOp; // an OpKind
  int root = -1; // in the job; negative: none

  // "#12 all_reduce(float32, 100, SUM)"
  std::string describe() const;
};

// Thread-safe.
class CallLog {
 public:
  // Returns the number to pass to `ended`.
  uint64_t started(const Started& what);
  void ended(uint64_t number, bool is_success);

  // The last started call.
  Started last() const;
  // One line per call, the oldest first: when it started, what it is, and its state.
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

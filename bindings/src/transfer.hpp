// One of oneCCL's transfers in flight.
#pragma once

#include <oneapi/ccl.hpp>

#include <utility>

namespace ccl_backend {

// oneCCL's own event waits in its destructor for the transfer, which may never complete. This one is left behind
// instead: its few bytes stay until the process ends.
class Transfer {
 public:
  Transfer() = default; // complete
  Transfer(ccl::event event) : event_(std::move(event)), complete_(false) {} // NOLINT: an event is a transfer
  Transfer(Transfer&& other) noexcept
      : event_(std::move(other.event_)), complete_(std::exchange(other.complete_, true)) {}
  Transfer& operator=(Transfer&& other) noexcept {
    if (this != &other) {
      leave_behind();
      event_ = std::move(other.event_);
      complete_ = std::exchange(other.complete_, true);
    }
    return *this;
  }
  ~Transfer() {
    leave_behind();
  }

  // Makes progress. With the engine locked.
  bool test() {
    complete_ = complete_ || event_.test();
    return complete_;
  }

  bool is_complete() const {
    return complete_;
  }

 private:
  void leave_behind() {
    if (!complete_) {
      new ccl::event(std::move(event_));
    }
  }

  ccl::event event_;
  bool complete_ = true;
};

} // namespace ccl_backend

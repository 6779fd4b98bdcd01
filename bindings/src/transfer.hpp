// A transfer: of oneCCL, or through shared memory.
#pragma once

#include <oneapi/ccl.hpp>

#include <memory>
#include <utility>

namespace ccl_backend {

// A transfer that is not oneCCL's. May be destroyed while it is incomplete.
class Progress {
 public:
  virtual ~Progress() = default;
  // Makes progress, and returns whether the transfer is complete. With the engine locked.
  virtual bool test() = 0;
  // Whether `test` enters oneCCL.
  virtual bool is_oneccl() const {
    return false;
  }
};

// The destructor of ccl::event waits for the transfer, which may never complete. The destructor of Transfer leaks the
// event of an incomplete transfer instead: a few bytes.
class Transfer {
 public:
  Transfer() = default; // complete
  Transfer(ccl::event event) : event_(std::move(event)), complete_(false) {} // NOLINT: implicit on purpose
  Transfer(std::unique_ptr<Progress> own) : own_(std::move(own)), complete_(false) {} // NOLINT: implicit on purpose
  Transfer(Transfer&& other) noexcept
      : event_(std::move(other.event_)),
        own_(std::move(other.own_)),
        complete_(std::exchange(other.complete_, true)) {}
  Transfer& operator=(Transfer&& other) noexcept {
    if (this != &other) {
      leak_incomplete();
      event_ = std::move(other.event_);
      own_ = std::move(other.own_);
      complete_ = std::exchange(other.complete_, true);
    }
    return *this;
  }
  ~Transfer() {
    leak_incomplete();
  }

  // Makes progress, and returns whether the transfer is complete. With the engine locked.
  bool test() {
    complete_ = complete_ || (own_ ? own_->test() : event_.test());
    return complete_;
  }

  bool is_complete() const {
    return complete_;
  }
  // Whether `test` enters oneCCL.
  bool is_oneccl() const {
    return own_ ? own_->is_oneccl() : !complete_;
  }

 private:
  void leak_incomplete() {
    if (!complete_ && !own_) {
      new ccl::event(std::move(event_));
    }
  }

  ccl::event event_;
  std::unique_ptr<Progress> own_;
  bool complete_ = true;
};

} // namespace ccl_backend

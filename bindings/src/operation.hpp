// One call of a rank, from its start to its end.
#pragma once

#include "completions.hpp"
#include "group.hpp"
#include "releases.hpp"
#include "transfer.hpp"

#include <ATen/core/ivalue.h>

#include <functional>
#include <list>
#include <vector>

namespace ccl_backend {

// The transfers of an operation, and the paths of its lane: see Paths.
struct Events : std::vector<Transfer> {
  SharedExchange* shared = nullptr;
  Hierarchy* hierarchy = nullptr;
  bool oneccl_rounds = false;
};

// A part of an operation. Its captures live until the operation is complete.
struct Step {
  // Starts the transfers. Runs in the caller's thread, with the engine locked.
  std::function<void(const ccl::communicator&, Events&)> start;
  // Runs once after all transfers of all steps, without the lock: in the thread that waits for the operation, or in a
  // thread of Completions. Empty if nothing remains to be done.
  std::function<void()> finish;
};

// In elements, for each rank.
struct Exchange {
  std::vector<int64_t> sent;
  std::vector<int64_t> received;
};

// What an operation is, before it runs.
struct Call {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* name = ""; // as in torch.distributed: "all_reduce"
  Milliseconds timeout = c10d::kUnsetTimeout; // the group's own where unset
  std::vector<at::Tensor> inputs; // kept alive, and reported to the profiler
  std::vector<at::Tensor> outputs; // kept alive, the value of the future
  std::vector<Step> steps;
  // For messages: makes progress, and returns whether the message is complete. With the engine locked. May be empty.
  std::function<bool()> advance = nullptr;
  int peer = Needs::kAnyRank; // of a message
  std::shared_ptr<const int> source = nullptr; // of a recv; valid once it is complete
  uint8_t op = Started::kNoOp; // of a reduction
  int root = -1; // in the group
  // The ranks agree on the sizes of the inputs, or else of the outputs, or else on what they send each other.
  bool agrees_on_outputs = false;
  std::optional<Exchange> exchange = std::nullopt;
};

class Operation;
using OperationPtr = c10::intrusive_ptr<Operation>;

class Operation final : public Work {
 public:
  // `lane`: see Group.
  Operation(std::shared_ptr<Group> group, Call call, uint64_t sequence, int lane);

  bool isCompleted() override;
  bool isSuccess() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  // Raises the operation's error. The timeout, if given, limits this wait only: the operation continues after it. When
  // this returns, the future is complete. torch's binding releases the GIL.
  bool wait(Milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const OVERRIDE_SINCE_2_2;

  const Started& what() const {
    return what_;
  }
  // Of a collective's future among those of its lane. Futures of messages have no order.
  std::optional<Place> place() const;

 private:
  friend class Engine;
  friend class Watchdog;

  // With the engine locked.
  void start();
  bool advance();
  // Whether `advance` enters oneCCL.
  bool uses_oneccl() const {
    return done_events_ == events_.size() || events_[done_events_].is_oneccl();
  }
  // Whether oneCCL has a transfer of it that is not complete.
  bool is_in_oneccl() const;

  // Returns true once: that caller ends the operation, with `complete` or `fail`.
  bool claim() {
    return !claimed_.exchange(true, std::memory_order_acq_rel);
  }
  bool is_claimed() const {
    return claimed_.load(std::memory_order_acquire);
  }
  // Whether `complete` neither blocks nor takes long: no step has to finish, and no future was requested.
  bool is_light() const;
  void complete();
  void fail(const std::exception_ptr& error);
  void end(const std::exception_ptr& error);
  // Complete the future: after the callbacks of earlier calls, or immediately.
  void complete_future_in_order();
  void complete_future();
  bool is_overdue() const {
    return Clock::now() >= started_ + timeout_;
  }
  // Why the operation cannot complete: its timeout, or the departure of a rank. Empty if it may complete.
  std::string why_never(Clock::time_point now) const;
  // For the other ranks: see Group.
  void announce() const;
  void withdraw() const noexcept;

  const std::shared_ptr<Group> group_;
  Call call_;
  const bool is_message_;
  const Started what_;
  const int lane_;
  const Clock::time_point started_;
  const Milliseconds timeout_;
  const int64_t bytes_;
  const uint64_t log_number_;
  Events events_;
  size_t done_events_ = 0;
  std::optional<Clock::time_point> suspected_until_; // see Engine::suspect; with the engine locked
  std::atomic<bool> claimed_{false};
  std::atomic<bool> finished_{false};
  mutable std::mutex future_mutex_; // guards the members below, and setting `finished_`
  c10::intrusive_ptr<c10::ivalue::Future> future_; // created on request

  // Guarded by the watchdog's mutex.
  std::list<OperationPtr>::iterator place_;
  bool is_placed_ = false;
};

} // namespace ccl_backend

// One call that a rank made, from its start to its end.
#pragma once

#include "group.hpp"

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <vector>

namespace ccl_backend {

using Events = std::vector<ccl::event>;

// A part of an operation. What it captures lives until the operation is complete.
struct Step {
  // Starts the transfers. Runs in the caller's thread with the engine locked.
  std::function<void(const ccl::communicator&, Events&)> start;
  // Runs once after all transfers of all steps, in any thread, without the lock. May be empty.
  std::function<void()> finish;
};

// What an operation is, before it runs.
struct Call {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* name = ""; // as in torch.distributed: "all_reduce"
  Milliseconds timeout = c10d::kUnsetTimeout; // the group's own where unset
  std::vector<at::Tensor> inputs; // kept alive, and shown by the profiler
  std::vector<at::Tensor> outputs; // kept alive, the value of the future
  std::vector<Step> steps;
  // Of messages: is it complete? Asked like events, with the engine locked. May be empty.
  std::function<bool()> advance = nullptr;
  std::shared_ptr<const int> source = nullptr; // of a recv; valid once it is complete
};

class Operation final : public c10d::Work {
 public:
  Operation(std::shared_ptr<Group> group, Call call, uint64_t sequence);

  bool isCompleted() override;
  bool isSuccess() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  // Raises what the operation failed with. A timeout of its own is a limit from now on; the operation goes on after
  // it. The binding has released the GIL.
  bool wait(Milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;

  const Started& what() const {
    return what_;
  }

 private:
  friend class Engine;

  // With the engine locked.
  void start();
  bool advance();
  // Without it; exactly one of the two, once.
  void complete();
  void fail(std::exception_ptr error);
  // Why it will not complete: its time is over, or a rank is gone. Empty: it may.
  std::string why_never(Clock::time_point now) const;

  const std::shared_ptr<Group> group_;
  Call call_;
  const Started what_;
  const Clock::time_point started_;
  const Milliseconds timeout_;
  const int64_t bytes_;
  Events events_;
  size_t done_events_ = 0;
  std::atomic<bool> finished_{false};
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

using OperationPtr = c10::intrusive_ptr<Operation>;

} // namespace ccl_backend

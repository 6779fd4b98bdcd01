// torch.distributed's backend "ccl".
#pragma once

#include "operation.hpp"

#include <memory>

namespace ccl_backend {

using WorkPtr = c10::intrusive_ptr<Work>;
using Tensors = std::vector<at::Tensor>;

// Collectives and messages of one group of ranks, on tensors in host memory.
//
// Threads: any thread may call. The ranks of a group have to start the same collectives in the same order, so threads
// that share a group have to coordinate their calls. Groups are independent: their operations may start in different
// orders on different ranks. A call returns once the operation has started; the tensors must not be used until the
// operation is complete. No member needs the GIL or waits with the GIL held. engine.hpp describes what completes an
// operation, completions.hpp where the callbacks of its future run.
//
// Time: an operation that is not complete within the group's timeout (or the call's own) fails, and so does its group:
// every later call on the group raises immediately. The tensors of such an operation stay allocated, since oneCCL may
// still write to them.
class ProcessGroupCCL final : public Backend {
 public:
  explicit ProcessGroupCCL(GroupOptions options);

  const std::string getBackendName() const override {
    return "ccl";
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) OVERRIDE_SINCE_2_1;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) OVERRIDE_SINCE_2_1;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) OVERRIDE_SINCE_2_1;
  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  void setSequenceNumberForGroup() override;
  uint64_t getSequenceNumberForGroup() override;
  // SUCCESS, or COMM_ERROR once the group has failed, was aborted or lost a rank.
  ErrorType getError() OVERRIDE_SINCE_2_7;
  // The timeout of later calls. After torch 2.8, this function and the next are virtual in Backend, and override.
  void setTimeout(Milliseconds timeout);
  c10::intrusive_ptr<Options> getBackendOptions();
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override;

  // Waits a few seconds for operations in flight, then leaves the group. Never hangs.
  void shutdown() OVERRIDE_SINCE_2_7;
  // Immediately ends operations in flight, informs the other ranks and leaves the group. A new group can be created
  // afterwards.
  void abort() OVERRIDE_SINCE_2_7;

 private:
  WorkPtr receive(Tensors& tensors, int source, int tag, c10d::OpType type);
  // Raises DistBackendError if the group was shut down.
  std::shared_ptr<Group> open_group(const char* operation) const;
  // Also raises DistBackendError if the group has failed, after a wait for the reason.
  std::shared_ptr<Group> require_group(const char* operation) const;
  WorkPtr launch(Call&& call, bool is_collective = true);
  void check_root(int64_t root, const char* name) const;

  std::shared_ptr<Group> group() const;
  static bool drain(const Group& group);
  void leave(const char* reason, bool is_orderly);

  mutable std::mutex mutex_; // guards the member below
  std::shared_ptr<Group> group_;
  std::atomic<bool> is_aborted_{false};
  std::atomic<uint64_t> messages_{0};
};

} // namespace ccl_backend

// The collectives of torch.distributed, each a call that consists of steps.
#include "process_group.hpp"
#include "steps.hpp"

namespace ccl_backend {
namespace {

using c10d::OpType;

Tensors flatten(const std::vector<Tensors>& lists) {
  Tensors flat;
  for (const auto& list : lists) {
    flat.insert(flat.end(), list.begin(), list.end());
  }
  return flat;
}

// One empty tensor for each rank.
Tensors nothing_for(const at::Tensor& like, int size) {
  return Tensors(size, at::empty({0}, like.options()));
}

// The rows that each rank sends or receives.
Tensors split_rows(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size) {
  Tensors parts;
  const auto at_least_1d = tensor.dim() == 0 ? tensor.view(-1) : tensor;
  const int64_t rows = at_least_1d.size(0);
  int64_t begin = 0;
  for (int rank = 0; rank < size; ++rank) {
    const int64_t count = splits.empty() ? rows / size : splits[rank];
    parts.push_back(at_least_1d.narrow(0, begin, count));
    begin += count;
  }
  return parts;
}

std::vector<int64_t> counts_of(const Tensors& tensors) {
  std::vector<int64_t> counts;
  for (const auto& tensor : tensors) {
    counts.push_back(tensor.numel());
  }
  return counts;
}

Call&& rooted(Call&& call, int64_t root) {
  call.root = static_cast<int>(root);
  return std::move(call);
}

Call&& reducing(Call&& call, const Op& op) {
  call.op = static_cast<uint8_t>(kind_of(op));
  return std::move(call);
}

// The ranks agree on the sizes of the outputs: each input is one of them.
Call&& gathering(Call&& call) {
  call.agrees_on_outputs = true;
  return std::move(call);
}

// The sizes that the ranks send each other may differ.
Call&& exchanging(Call&& call, const Tensors& sent, const Tensors& received) {
  call.exchange = Exchange{counts_of(sent), counts_of(received)};
  return std::move(call);
}

} // namespace

WorkPtr ProcessGroupCCL::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  constexpr auto name = "broadcast";
  auto& tensor = single(tensors, name);
  check_root(options.rootRank, name);
  return launch(rooted(
      {OpType::BROADCAST, name, options.timeout, tensors, tensors,
       {broadcast_step(tensor, static_cast<int>(options.rootRank), name)}},
      options.rootRank));
}

WorkPtr ProcessGroupCCL::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  constexpr auto name = "all_reduce";
  auto& tensor = single(tensors, name);
  return launch(reducing(
      {OpType::ALLREDUCE, name, options.timeout, tensors, tensors,
       {reduce_all_step(tensor, options.reduceOp, {rank_, size_}, name)}},
      options.reduceOp));
}

WorkPtr ProcessGroupCCL::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return allreduce(tensors, options); // raises: the layout is not supported
}

WorkPtr ProcessGroupCCL::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  constexpr auto name = "all_reduce_coalesced";
  CCL_CHECK(!tensors.empty(), name, ": expected at least one tensor, found none");
  Call call{OpType::ALLREDUCE_COALESCED, name, options.timeout, tensors, tensors, {}};
  for (const auto& tensor : tensors) {
    call.steps.push_back(reduce_all_step(tensor, options.reduceOp, {rank_, size_}, name));
  }
  return launch(reducing(std::move(call), options.reduceOp));
}

WorkPtr ProcessGroupCCL::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  constexpr auto name = "reduce";
  auto& tensor = single(tensors, name);
  check_root(options.rootRank, name);
  Call call{
      OpType::REDUCE, name, options.timeout, tensors, tensors,
      {reduce_step(tensor, options.reduceOp, static_cast<int>(options.rootRank), {rank_, size_}, name)}};
  return launch(rooted(reducing(std::move(call), options.reduceOp), options.rootRank));
}

WorkPtr ProcessGroupCCL::allgather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  constexpr auto name = "all_gather";
  const auto& input = single(inputs, name);
  CCL_CHECK(outputs.size() == 1, name, ": expected one list of outputs, found ", outputs.size());
  return launch(gathering(
      {OpType::ALLGATHER, name, options.timeout, inputs, outputs.front(),
       {gather_all_step(outputs.front(), input, {rank_, size_}, name)}}));
}

WorkPtr ProcessGroupCCL::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  constexpr auto name = "all_gather_into_tensor";
  return launch(
      {OpType::_ALLGATHER_BASE, name, options.timeout, {input}, {output},
       {gather_into_step(output, input, {rank_, size_}, name)}});
}

WorkPtr ProcessGroupCCL::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  constexpr auto name = "all_gather_coalesced";
  CCL_CHECK(!inputs.empty(), name, ": expected at least one tensor, found none");
  CCL_CHECK(
      static_cast<int>(outputs.size()) == size_,
      name, ": expected a list of ", size_, " lists, one for each rank, found ", outputs.size());
  Call call{OpType::ALLGATHER_COALESCED, name, options.timeout, inputs, flatten(outputs), {}};
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors results;
    for (const auto& list : outputs) {
      CCL_CHECK(
          list.size() == inputs.size(), name, ": expected lists of ", inputs.size(), " tensors, found ", list.size());
      results.push_back(list[i]);
    }
    call.steps.push_back(gather_all_step(results, inputs[i], {rank_, size_}, name));
  }
  return launch(gathering(std::move(call)));
}

WorkPtr ProcessGroupCCL::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  constexpr auto name = "all_gather_into_tensor_coalesced";
  CCL_CHECK(
      outputs.size() == inputs.size(), name, ": expected ", inputs.size(), " outputs, found ", outputs.size());
  Call call{kCoalesced, name, options.timeout, inputs, outputs, {}};
  for (size_t i = 0; i < inputs.size(); ++i) {
    call.steps.push_back(gather_into_step(outputs[i], inputs[i], {rank_, size_}, name));
  }
  return launch(std::move(call));
}

WorkPtr ProcessGroupCCL::gather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  constexpr auto name = "gather";
  const auto& input = single(inputs, name);
  check_root(options.rootRank, name);
  const bool is_root = options.rootRank == rank_;
  CCL_CHECK(
      outputs.size() == (is_root ? 1 : 0),
      name, ": expected ", is_root ? "one list" : "no list", " of outputs on this rank, found ", outputs.size());
  auto sent = nothing_for(input, size_);
  sent[options.rootRank] = input;
  const auto received = is_root ? outputs.front() : nothing_for(input, size_);
  Call call{
      OpType::GATHER, name, options.timeout, inputs, is_root ? received : Tensors{},
      {exchange_step(received, sent, {rank_, size_}, name)}};
  return launch(rooted(exchanging(std::move(call), sent, received), options.rootRank));
}

WorkPtr ProcessGroupCCL::scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  constexpr auto name = "scatter";
  const auto& output = single(outputs, name);
  check_root(options.rootRank, name);
  const bool is_root = options.rootRank == rank_;
  CCL_CHECK(
      inputs.size() == (is_root ? 1 : 0),
      name, ": expected ", is_root ? "one list" : "no list", " of inputs on this rank, found ", inputs.size());
  auto received = nothing_for(output, size_);
  received[options.rootRank] = output;
  const auto sent = is_root ? inputs.front() : nothing_for(output, size_);
  Call call{
      OpType::SCATTER, name, options.timeout, is_root ? inputs.front() : Tensors{}, outputs,
      {exchange_step(received, sent, {rank_, size_}, name)}};
  return launch(rooted(exchanging(std::move(call), sent, received), options.rootRank));
}

WorkPtr ProcessGroupCCL::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  constexpr auto name = "reduce_scatter";
  const auto& output = single(outputs, name);
  CCL_CHECK(inputs.size() == 1, name, ": expected one list of inputs, found ", inputs.size());
  return launch(reducing(
      {OpType::REDUCE_SCATTER, name, options.timeout, inputs.front(), outputs,
       {reduce_scatter_step(output, inputs.front(), options.reduceOp, {rank_, size_}, name)}},
      options.reduceOp));
}

WorkPtr ProcessGroupCCL::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  constexpr auto name = "reduce_scatter_tensor";
  return launch(reducing(
      {OpType::_REDUCE_SCATTER_BASE, name, options.timeout, {input}, {output},
       {reduce_scatter_from_step(output, input, options.reduceOp, {rank_, size_}, name)}},
      options.reduceOp));
}

WorkPtr ProcessGroupCCL::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  constexpr auto name = "reduce_scatter_tensor_coalesced";
  CCL_CHECK(
      outputs.size() == inputs.size(), name, ": expected ", inputs.size(), " outputs, found ", outputs.size());
  // torch 2.8 has no OpType for this call.
  Call call{OpType::_REDUCE_SCATTER_BASE, name, options.timeout, inputs, outputs, {}};
  for (size_t i = 0; i < inputs.size(); ++i) {
    call.steps.push_back(reduce_scatter_from_step(outputs[i], inputs[i], options.reduceOp, {rank_, size_}, name));
  }
  return launch(reducing(std::move(call), options.reduceOp));
}

WorkPtr ProcessGroupCCL::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& options) {
  constexpr auto name = "all_to_all_single";
  check_tensor(input, name);
  check_like(output, input, -1, name);
  c10d::checkSplitSizes(input_splits, input, size_);
  c10d::checkSplitSizes(output_splits, output, size_);
  // One copy of a tensor that is not contiguous, rather than a copy of each part.
  auto result = writable(output);
  const auto received = split_rows(result, output_splits, size_);
  const auto sent = split_rows(readable(input), input_splits, size_);
  auto step = exchange_step(received, sent, {rank_, size_}, name);
  step.finish = [exchanged = step.finish, output, result] {
    exchanged();
    write_back(output, result);
  };
  return launch(
      exchanging({OpType::ALLTOALL_BASE, name, options.timeout, {input}, {output}, {step}}, sent, received));
}

WorkPtr ProcessGroupCCL::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  constexpr auto name = "all_to_all";
  return launch(exchanging(
      {OpType::ALLTOALL, name, options.timeout, inputs, outputs,
       {exchange_step(outputs, inputs, {rank_, size_}, name)}},
      inputs, outputs));
}

WorkPtr ProcessGroupCCL::barrier(const c10d::BarrierOptions& options) {
  // oneCCL's barrier blocks until all ranks have called it, so a timeout could not end it.
  auto step = reduce_all_step(at::zeros({1}, at::kByte), c10d::ReduceOp::MAX, {rank_, size_}, "barrier");
  return launch({OpType::BARRIER, "barrier", options.timeout, {}, {}, {step}});
}

} // namespace ccl_backend

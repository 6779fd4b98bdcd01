#include "shared_steps.hpp"

#include "hierarchy.hpp"

#include <algorithm>

namespace ccl_backend {
namespace {

using Kind = SharedCall::Kind;

// A smaller tensor takes less time in the single step of oneCCL: between 2 x 2 ranks, 1 MiB took 1.3 ms instead of 1.9.
constexpr size_t kHierarchyBytes = 2 << 20;

char* data(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.data_ptr());
}

// Of one rank's tensor. `sum` is null for reductions other than sums.
SharedCall describe(Kind kind, const at::Tensor& tensor, const Reduction& how) {
  const auto sum = how.operation == ccl::reduction::sum ? sum_function(how.datatype) : nullptr;
  return {kind, {}, {}, tensor.nbytes(), sum, static_cast<uint64_t>(how.datatype)};
}

} // namespace

size_t shared_reduce_all(
    Events& events, const at::Tensor& buffer, const Reduction& how,
    const std::function<ccl::event(char*, size_t, const ccl::communicator&)>& over_network) {
  const auto count = static_cast<size_t>(buffer.numel() * how.width);
  auto call = describe(Kind::kReduceAll, buffer, how);
  if (count == 0 || call.sum == nullptr) {
    return count;
  }
  if (events.shared != nullptr) {
    call.inputs = {data(buffer)};
    call.outputs = {data(buffer)};
    events.push_back(events.shared->start(std::move(call)));
    return 0;
  }
  if (events.hierarchy != nullptr && call.bytes >= kHierarchyBytes) {
    const auto rest = count % events.hierarchy->node_size();
    events.push_back(events.hierarchy->start(
        {data(buffer), count - rest, call.bytes / count, call.sum, call.type, over_network}));
    return rest;
  }
  return count;
}

bool shared_reduce_scatter(
    Events& events, const at::Tensor& output, const std::vector<at::Tensor>& inputs, const Reduction& how) {
  auto call = describe(Kind::kReduceScatter, output, how);
  if (events.shared == nullptr || call.sum == nullptr) {
    return false;
  }
  for (const auto& input : inputs) {
    call.inputs.push_back(data(input));
  }
  call.outputs = {data(output)};
  events.push_back(events.shared->start(std::move(call)));
  return true;
}

bool shared_gather(Events& events, const std::vector<at::Tensor>& outputs, const at::Tensor& input) {
  const auto is_even = std::all_of(
      outputs.begin(), outputs.end(), [&](const at::Tensor& output) { return output.nbytes() == input.nbytes(); });
  if (events.shared == nullptr || !is_even || input.nbytes() == 0) {
    return false;
  }
  SharedCall call{Kind::kGather, {data(input)}, {}, input.nbytes(), nullptr, static_cast<uint64_t>(input.scalar_type())};
  for (const auto& output : outputs) {
    call.outputs.push_back(data(output));
  }
  events.push_back(events.shared->start(std::move(call)));
  return true;
}

} // namespace ccl_backend

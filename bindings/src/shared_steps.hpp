// Collectives that use shared memory where all ranks have it, and where that is faster than oneCCL.
#pragma once

#include "operation.hpp"
#include "types.hpp"

namespace ccl_backend {

// Each function starts transfers between contiguous tensors, if that is possible. The result is the same on all ranks.

// Returns how many elements of oneCCL's type, at the end of the tensor, the caller has to sum with oneCCL: none, a few,
// or all. `over_network` starts a sum with oneCCL.
size_t shared_reduce_all(
    Events& events, const at::Tensor& buffer, const Reduction& how,
    const std::function<ccl::event(char*, size_t, const ccl::communicator&)>& over_network);
// Return false if the caller has to use oneCCL instead.
bool shared_reduce_scatter(
    Events& events, const at::Tensor& output, const std::vector<at::Tensor>& inputs, const Reduction& how);
bool shared_gather(Events& events, const std::vector<at::Tensor>& outputs, const at::Tensor& input);

} // namespace ccl_backend

// Collectives that use shared memory where all ranks have it, and where that is faster than oneCCL.
#pragma once

#include "operation.hpp"
#include "types.hpp"

namespace ccl_backend {

// Each function starts a transfer between contiguous tensors. It returns false, on every rank, if the caller has to use
// oneCCL instead.

bool shared_reduce_all(Events& events, const at::Tensor& buffer, const Reduction& how);
bool shared_reduce_scatter(
    Events& events, const at::Tensor& output, const std::vector<at::Tensor>& inputs, const Reduction& how);
bool shared_gather(Events& events, const std::vector<at::Tensor>& outputs, const at::Tensor& input);

} // namespace ccl_backend

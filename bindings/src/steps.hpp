// The steps of collectives. Each function checks its tensors, and raises ValueError, before a transfer starts.
#pragma once

#include "buffers.hpp"
#include "operation.hpp"

namespace ccl_backend {

using Tensors = std::vector<at::Tensor>;

struct Ranks {
  int rank;
  int size;
};

// `tensor` receives the root's tensor.
Step broadcast_step(const at::Tensor& tensor, int root, const char* name);
// `tensor` receives the reduction of all ranks' tensors.
Step reduce_all_step(const at::Tensor& tensor, const Op& op, Ranks ranks, const char* name);
// The same on the root only; the tensors of other ranks are unchanged.
Step reduce_step(const at::Tensor& tensor, const Op& op, int root, Ranks ranks, const char* name);
// outputs[i] receives the input of rank i. The inputs of the ranks may differ in size.
Step gather_all_step(const Tensors& outputs, const at::Tensor& input, Ranks ranks, const char* name);
// `output` receives the inputs of all ranks, concatenated.
Step gather_into_step(const at::Tensor& output, const at::Tensor& input, Ranks ranks, const char* name);
// `output` receives the reduction of all ranks' inputs[own rank].
Step reduce_scatter_step(
    const at::Tensor& output, const Tensors& inputs, const Op& op, Ranks ranks, const char* name);
// The same, where `input` is the concatenation of the inputs.
Step reduce_scatter_from_step(
    const at::Tensor& output, const at::Tensor& input, const Op& op, Ranks ranks, const char* name);
// outputs[i] receives inputs[own rank] of rank i. Empty tensors are not sent.
Step exchange_step(const Tensors& outputs, const Tensors& inputs, Ranks ranks, const char* name);

} // namespace ccl_backend

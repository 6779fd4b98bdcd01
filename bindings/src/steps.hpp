// The transfers that collectives are made of. Each function checks its tensors (ValueError) before anything starts.
#pragma once

#include "buffers.hpp"
#include "operation.hpp"

namespace ccl_backend {

using Tensors = std::vector<at::Tensor>;

struct Ranks {
  int rank;
  int size;
};

// `tensor` becomes the root's.
Step broadcast_step(const at::Tensor& tensor, int root, const char* name);
// `tensor` becomes the reduction of all ranks' tensors.
Step reduce_all_step(const at::Tensor& tensor, const Op& op, Ranks ranks, const char* name);
// The same on the root only; the others keep what they have.
Step reduce_step(const at::Tensor& tensor, const Op& op, int root, Ranks ranks, const char* name);
// outputs[i] becomes the input of rank i; the ranks' inputs may differ in size.
Step gather_all_step(const Tensors& outputs, const at::Tensor& input, Ranks ranks, const char* name);
// `output`, seen as `size` equal parts one after the other, becomes the inputs of all ranks.
Step gather_into_step(const at::Tensor& output, const at::Tensor& input, Ranks ranks, const char* name);
// `output` becomes the reduction of all ranks' inputs[own rank].
Step reduce_scatter_step(
    const at::Tensor& output, const Tensors& inputs, const Op& op, Ranks ranks, const char* name);
// The same, where `input` is the `size` parts one after the other.
Step reduce_scatter_from_step(
    const at::Tensor& output, const at::Tensor& input, const Op& op, Ranks ranks, const char* name);
// outputs[i] becomes rank i's inputs[own rank]. Tensors without elements are not sent.
Step exchange_step(const Tensors& outputs, const Tensors& inputs, Ranks ranks, const char* name);

} // namespace ccl_backend

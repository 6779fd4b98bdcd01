// Tensors of any layout as the plain memory that oneCCL needs, and back.
#pragma once

#include "types.hpp"

#include <ATen/ATen.h>

#include <vector>

namespace ccl_backend {

// Raises ValueError unless the tensor is dense and in host memory.
void check_tensor(const at::Tensor& tensor, const char* operation);
// The one tensor of a list that must have one.
at::Tensor& single(std::vector<at::Tensor>& tensors, const char* operation);
// Same type as `like`, and as many elements where `elements` is not negative.
void check_like(const at::Tensor& tensor, const at::Tensor& like, int64_t elements, const char* operation);

// The tensor itself if its memory can be used as it is, else a copy.
at::Tensor readable(const at::Tensor& tensor);
// The tensor itself if its memory can be used as it is, else memory that `write_back` copies to it.
at::Tensor writable(const at::Tensor& tensor);
void write_back(const at::Tensor& tensor, const at::Tensor& buffer);

// Bytes as oneCCL counts them.
struct Bytes {
  explicit Bytes(const std::vector<at::Tensor>& buffers);
  std::vector<void*> pointers;
  std::vector<size_t> counts;
};

// Buffers that lie one after the other in memory as one, or else memory for all of them.
struct Block {
  explicit Block(std::vector<at::Tensor> parts);
  void gather() const; // from the parts
  void scatter() const; // to the parts
  void* data() const;

  std::vector<at::Tensor> parts;
  at::Tensor copy; // undefined where the parts are one block
};

// Reduces `gathered`, whose first dimension is the ranks, for operations that oneCCL does not have.
at::Tensor reduce_locally(const at::Tensor& gathered, const Op& op);
// What PREMUL_SUM does before the sum: multiplies by its factor, in the tensor's type. In place; `tensor` itself or its
// product, which is the tensor itself for other operations.
void premultiply(at::Tensor& tensor, const Op& op);
at::Tensor premultiplied(const at::Tensor& tensor, const Op& op);
// What is left to do to a sum: AVG divides.
void finish_reduction(at::Tensor& buffer, const Op& op, int size);

} // namespace ccl_backend

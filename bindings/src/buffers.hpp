// Converts tensors of any layout to the contiguous memory that oneCCL needs, and back.
#pragma once

#include "types.hpp"

#include <ATen/ATen.h>

#include <vector>

namespace ccl_backend {

// Raises ValueError unless the tensor is dense and in host memory.
void check_tensor(const at::Tensor& tensor, const char* operation);
// The tensor of a list that must contain exactly one.
at::Tensor& single(std::vector<at::Tensor>& tensors, const char* operation);
// Checks that the type is that of `like`, and the number of elements is `elements` unless that is negative.
void check_like(const at::Tensor& tensor, const at::Tensor& like, int64_t elements, const char* operation);

// The tensor itself if it is contiguous and not lazily conjugated or negated, else a contiguous copy.
at::Tensor readable(const at::Tensor& tensor);
// The same, but with an uninitialized buffer for `write_back` instead of a copy.
at::Tensor writable(const at::Tensor& tensor);
void write_back(const at::Tensor& tensor, const at::Tensor& buffer);

// The address and size in bytes of each buffer, for oneCCL.
struct Bytes {
  explicit Bytes(const std::vector<at::Tensor>& buffers);
  std::vector<void*> pointers;
  std::vector<size_t> counts;
};

// One contiguous block for all parts: the parts themselves if they are adjacent in memory, else a copy.
struct Block {
  explicit Block(std::vector<at::Tensor> parts);
  void gather() const; // from the parts
  void scatter() const; // to the parts
  void* data() const;

  std::vector<at::Tensor> parts;
  at::Tensor copy; // undefined if the parts are adjacent in memory
};

// Reduces `gathered`, whose first dimension is the ranks, where oneCCL cannot: sums (also for AVG) and products of
// bfloat16, minima and maxima of floating point, and bitwise operations. May overwrite `gathered`.
at::Tensor reduce_locally(const at::Tensor& gathered, const Op& op);
// Multiplies in place by the factor of PREMUL_SUM, in the tensor's type.
void premultiply(at::Tensor& tensor, const Op& op);
// The product of a copy with the factor of PREMUL_SUM; for other operations, the tensor itself.
at::Tensor premultiplied(const at::Tensor& tensor, const Op& op);
// For AVG, divides the sum by `size`.
void finish_reduction(at::Tensor& buffer, const Op& op, int size);

} // namespace ccl_backend

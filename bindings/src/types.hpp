// What the two libraries call the same things, and the one way to fail.
#pragma once

#include <oneapi/ccl.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>
#include <string>

// A wrong argument: one line that names the group's backend, then what was found and expected.
#define CCL_CHECK(condition, ...) TORCH_CHECK_VALUE(condition, "ccl: ", ##__VA_ARGS__)

namespace ccl_backend {

using Op = c10d::ReduceOp;

// How oneCCL is asked to reduce: on these elements, with this operation.
struct Reduction {
  ccl::datatype datatype;
  ccl::reduction operation;
  // Elements of `datatype` in one element of the tensor: two for complex numbers.
  int64_t width;
};

// "SUM", as in torch.distributed.ReduceOp.
std::string op_name(const Op& op);

// std::nullopt where oneCCL cannot do it and the ranks have to gather and reduce by themselves (bitwise operations).
// Raises ValueError where the operation has no meaning for the type.
std::optional<Reduction> find_reduction(const Op& op, at::ScalarType type);

} // namespace ccl_backend

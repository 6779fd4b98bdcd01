// Maps types and operations of torch to those of oneCCL. The macro for invalid arguments.
#pragma once

#include "releases.hpp"

#include <oneapi/ccl.hpp>

#include <optional>
#include <string>

// Raises ValueError with one line: "ccl: ", then what was found and expected.
#define CCL_CHECK(condition, ...) TORCH_CHECK_VALUE(condition, "ccl: ", ##__VA_ARGS__)

namespace ccl_backend {

using Op = c10d::ReduceOp;

// A reduction by oneCCL.
struct Reduction {
  ccl::datatype datatype;
  ccl::reduction operation;
  // Elements of `datatype` in one element of the tensor: two for complex numbers.
  int64_t width;
};

// "SUM", as in torch.distributed.ReduceOp.
std::string op_name(const Op& op);

// std::nullopt if oneCCL does not support the operation, so each rank has to gather and reduce (bitwise operations).
// Raises ValueError if the operation is not defined for the type.
std::optional<Reduction> find_reduction(const Op& op, at::ScalarType type);

} // namespace ccl_backend

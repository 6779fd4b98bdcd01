// Sums of several arrays.
#pragma once

#include <oneapi/ccl.hpp>

#include <cstddef>

namespace ccl_backend {

// to[i] = the sum of sources[0][i], ..., sources[ranks - 1][i], in this order. Each array has `bytes`, and `to` may
// be one of the sources. bfloat16 and float16 are added in float32 and rounded once, to nearest even.
using SumFunction = void (*)(const void* const* sources, int ranks, void* to, size_t bytes);

// nullptr for types that this file does not add.
SumFunction sum_function(ccl::datatype type);

} // namespace ccl_backend

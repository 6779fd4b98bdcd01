// Sums and products of bfloat16.
#pragma once

#include <oneapi/ccl.hpp>

namespace ccl_backend {

// For ccl::reduction::custom: combines two arrays of bfloat16. Each result is computed in float32 and rounded to
// nearest even, as in torch. oneCCL's own functions are slower on a processor with AVX512-BF16 (an all_reduce of 25 MiB
// within a node took 4.8 ms, and 2.9 ms with this file's first version). On other processors they truncate instead of
// rounding: two sums in seven of normal numbers were too small. nullptr for reductions that need no rounding.
ccl::reduction_fn bfloat16_function(ccl::reduction operation);

// Whether oneCCL's own functions round to nearest even on this rank. The ranks of a group may have different processors:
// see NodeLayout.
bool oneccl_rounds_bfloat16();

} // namespace ccl_backend

// Reductions that oneCCL would not do right: sums and products of bfloat16, minima and maxima of floating point.
#pragma once

#include <oneapi/ccl.hpp>

namespace ccl_backend {

// For ccl::reduction::custom: combines two arrays. nullptr for reductions that need none.
//
// Minima and maxima of floating point: NaN if one of the numbers is, as in torch; -0 is less than 0. The bits of the
// result do not depend on the order of the ranks. oneCCL's own functions compare with <, so that a NaN is kept or
// dropped depending on the order, which differs between ranks.
//
// Sums and products of bfloat16: each result is computed in float32 and rounded to
// nearest even, as in torch. oneCCL's own functions are slower on a processor with AVX512-BF16 (an all_reduce of 25 MiB
// within a node took 4.8 ms, and 2.9 ms with this file's first version). On other processors they truncate instead of
// rounding: two sums in seven of normal numbers were too small.
ccl::reduction_fn custom_function(ccl::datatype type, ccl::reduction operation);

// Whether oneCCL's own functions round to nearest even on this rank. The ranks of a group may have different processors:
// see NodeLayout.
bool oneccl_rounds_bfloat16();

} // namespace ccl_backend

// Sums and products of bfloat16.
#pragma once

#include <oneapi/ccl.hpp>

namespace ccl_backend {

// For ccl::reduction::custom: combines two rows of bfloat16, each result made in float32 and rounded to nearest even,
// as torch does. oneCCL's own are slower on a processor with AVX512-BF16 (an all_reduce of 25 MiB within a node took
// 4.8 ms, 2.9 ms with this file's first version) and cut off instead of rounding on one without: two sums in seven of
// normal numbers were too small. nullptr where nothing has to be rounded.
ccl::reduction_fn bfloat16_function(ccl::reduction operation);

// Whether oneCCL's own rounds to nearest even.
bool oneccl_rounds_bfloat16();

} // namespace ccl_backend

// Sums of several arrays.
#pragma once

#include <oneapi/ccl.hpp>

#include <cstddef>
#include <xmmintrin.h>

namespace ccl_backend {

// to[i] = the sum of sources[0][i], ..., sources[ranks - 1][i], in this order. Each array has `bytes`, and `to` may
// be one of the sources. bfloat16 and float16 are added in float32 and rounded once, to nearest even.
using SumFunction = void (*)(const void* const* sources, int ranks, void* to, size_t bytes);

// During its lifetime, the calling thread does not replace subnormal numbers by zero. The setting belongs to a thread,
// and any thread may add: the ranks would get different bits.
class KeepSubnormals {
 public:
  KeepSubnormals() : before_(_mm_getcsr()) {
    _mm_setcsr(before_ & ~kToZero);
  }
  ~KeepSubnormals() {
    _mm_setcsr(before_);
  }
  KeepSubnormals(const KeepSubnormals&) = delete;
  KeepSubnormals& operator=(const KeepSubnormals&) = delete;

 private:
  static constexpr unsigned kToZero = 0x8040; // of results and of operands
  const unsigned before_;
};

// nullptr for types that this file does not add.
SumFunction sum_function(ccl::datatype type);

} // namespace ccl_backend

// Tensors of float32 or bfloat16 numbers, which the kernels of layers read and write sixteen at a time.
#pragma once

#include <algorithm>

#include "vectors.hpp"

namespace {

constexpr size_t LANES = 16;
// Below this number of elements, waking a thread takes longer than they do.
constexpr size_t FEW = 32 * 1024;

// float32 or bfloat16 numbers. Null if there are none.
struct Numbers {
  void* values;
  uint32_t is_narrow;
};

AVX512 inline __m512 load(const Numbers& from, size_t i, __mmask16 lanes) {
  return from.is_narrow ? widened(static_cast<const uint16_t*>(from.values) + i, lanes)
                        : _mm512_maskz_loadu_ps(lanes, static_cast<const float*>(from.values) + i);
}

AVX512 inline void store(const Numbers& to, size_t i, __mmask16 lanes, __m512 value) {
  if (to.is_narrow) {
    _mm512_mask_cvtepi32_storeu_epi16(static_cast<uint16_t*>(to.values) + i, lanes, narrow(value));
  } else {
    _mm512_mask_storeu_ps(static_cast<float*>(to.values) + i, lanes, value);
  }
}

// A pass over the elements from `first` to `end` - 1.
struct Range {
  size_t first, end;
};

template <typename Pass>
void in_ranges(size_t count, Pass pass) {
  constexpr size_t SHARE = 8 * 1024;
#pragma omp parallel for schedule(static) if (count > FEW)
  for (size_t first = 0; first < count; first += SHARE) {
    pass(Range{first, std::min(first + SHARE, count)});
  }
}

} // namespace

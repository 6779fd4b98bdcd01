// Masks of attention, read in the type and the layout that the caller has them in.
#pragma once

#include <limits>

#include "exponential.hpp"

namespace masks {

// BOOLEAN: bytes; where one is 0, -infinity is added.
enum Type : uint32_t { NONE, FLOAT32, BFLOAT16, BOOLEAN };
constexpr size_t TYPES = 4, BYTES[TYPES] = {0, sizeof(float), sizeof(uint16_t), 1};

// What is added to the scores: [batch, head, query, key], keys are contiguous. Steps are in bytes, 0 broadcasts.
struct Mask {
  const char* values;
  size_t batch_step, head_step, query_step;
  Type type;

  // A row from `key` on.
  const char* row(size_t batch, size_t head, size_t query, size_t key = 0) const {
    return values + batch * batch_step + head * head_step + query * query_step + key * BYTES[type];
  }
};

// Sixteen scores with what `row` has for them, from key `i` on. Reads only the keys of `lanes`.
template <Type TYPE>
AVX512 inline __m512 add(__m512 scores, const char* row, size_t i, __mmask16 lanes) {
  if constexpr (TYPE == FLOAT32) {
    return _mm512_add_ps(scores, _mm512_maskz_loadu_ps(lanes, reinterpret_cast<const float*>(row) + i));
  } else if constexpr (TYPE == BFLOAT16) {
    return _mm512_add_ps(scores, widened(reinterpret_cast<const uint16_t*>(row) + i, lanes));
  } else if constexpr (TYPE == BOOLEAN) {
    const __m128i visible = _mm_maskz_loadu_epi8(lanes, row + i);
    const __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    return _mm512_mask_add_ps(scores, _mm_testn_epi8_mask(visible, visible), scores, lowest); // a NaN stays one
  } else {
    return scores;
  }
}

} // namespace masks

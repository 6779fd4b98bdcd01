// Attention masks, read in the caller's type and layout.
#pragma once

#include <limits>

#include "vectors.hpp"

namespace masks {

// The score of a hidden key.
constexpr float HIDDEN = -std::numeric_limits<float>::infinity();

// BOOLEAN: one byte for each key; 0 hides the key.
enum Type : uint32_t { NONE, FLOAT32, BFLOAT16, BOOLEAN };
constexpr size_t TYPES = 4, BYTES[TYPES] = {0, sizeof(float), sizeof(uint16_t), 1};

// The numbers to add to the scores: [batch, head, query, key]. Keys are contiguous. Steps are in bytes; a step of 0
// broadcasts.
struct Mask {
  const char* values;
  size_t batch_step, head_step, query_step;
  Type type;

  // The row of a query, from `key` on.
  const char* row(size_t batch, size_t head, size_t query, size_t key = 0) const {
    return values + batch * batch_step + head * head_step + query * query_step + key * BYTES[type];
  }
};

// Adds the mask of sixteen keys, from key `i` of `row` on. Reads only the keys of `lanes`.
template <Type TYPE>
AVX512 inline __m512 add(__m512 scores, const char* row, size_t i, __mmask16 lanes) {
  if constexpr (TYPE == FLOAT32) {
    return _mm512_add_ps(scores, _mm512_maskz_loadu_ps(lanes, reinterpret_cast<const float*>(row) + i));
  } else if constexpr (TYPE == BFLOAT16) {
    return _mm512_add_ps(scores, widened(reinterpret_cast<const uint16_t*>(row) + i, lanes));
  } else if constexpr (TYPE == BOOLEAN) {
    const __m128i visible = _mm_maskz_loadu_epi8(lanes, row + i);
    const __m512 hidden = _mm512_set1_ps(HIDDEN);
    return _mm512_mask_add_ps(scores, _mm_testn_epi8_mask(visible, visible), scores, hidden); // keeps a NaN
  } else {
    return scores;
  }
}

} // namespace masks

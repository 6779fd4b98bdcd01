// Which elements dropout keeps, in attention and elsewhere.
#pragma once

#include "philox.hpp"

namespace dropout {

// An element is dropped if its random number is less than `threshold`, and multiplied by `scale` otherwise.
struct Rule {
  uint64_t seed;
  uint32_t threshold;
  float scale;
};

// The elements of a block that are kept: one bit for each.
AVX512 inline uint64_t kept(uint64_t block, const Rule& rule) {
  if (rule.threshold == 0) {
    return ~uint64_t{0};
  }
  const __m512i threshold = _mm512_set1_epi16(static_cast<short>(rule.threshold));
  __m512i front, back;
  philox::numbers_of(block, rule.seed, front, back);
  return _mm512_cmpge_epu16_mask(front, threshold) |
      static_cast<uint64_t>(_mm512_cmpge_epu16_mask(back, threshold)) << 32;
}

} // namespace dropout

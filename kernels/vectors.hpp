// Functions on vectors of sixteen float32 numbers.
#pragma once

#include "philox.hpp"

namespace {

// The mask of the first `count` lanes.
AVX512 inline __mmask16 first_lanes(size_t count) {
  return count >= 16 ? 0xFFFF : static_cast<__mmask16>((1u << count) - 1);
}

// Loads bfloat16 numbers; the other lanes are zero.
AVX512 inline __m512 widened(const uint16_t* values, __mmask16 lanes) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, values)), 16));
}

// Rounds to bfloat16, in the lower half of each lane.
AVX512 inline __m512i narrow(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(_mm512_srli_epi32(sum, 16), is_nan, _mm512_set1_epi32(0x7fc0));
}

AVX512 inline bool has_nan(const float* values, size_t count) {
  __mmask16 found = 0;
  for (size_t i = 0; i < count; i += 16) {
    const __m512 value = _mm512_maskz_loadu_ps(first_lanes(count - i), values + i);
    found |= _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  }
  return found != 0;
}

// exp of arguments <= 0: 2^n e^r with an integer n and |r| <= ln 2 / 2, e^r by its series up to r^6 / 720. Below -87
// the result is 0: float32 has only denormal results there, each of which costs some CPUs more than 100 cycles.
AVX512 inline __m512 exp_of(__m512 x) {
  const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ); // or NaN
  const __m512 n = _mm512_roundscale_ps(
      _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x); // ln 2 in two parts
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.0f / 720);
  for (float coefficient : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(coefficient));
  }
  return _mm512_maskz_scalef_ps(normal, p, n);
}

} // namespace

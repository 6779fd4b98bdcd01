#include "sums.hpp"

#include <immintrin.h>

#define BFLOAT16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

// GCC 12 warns of the vectors that its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace ccl_backend {
namespace {

// 16 values as float32: a bfloat16 is the upper half of one.
BFLOAT16_TARGET inline __m512 widen(__m256i values) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

BFLOAT16_TARGET void add_bfloat16(
    const void* in, size_t count, void* in_out, size_t* out_count, ccl::datatype, const ccl::fn_context*) {
  const auto* from = static_cast<const uint16_t*>(in);
  auto* to = static_cast<uint16_t*>(in_out);
  size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m512 low = _mm512_add_ps(
        widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))),
        widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(to + i))));
    const __m512 high = _mm512_add_ps(
        widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 16))),
        widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(to + i + 16))));
    _mm512_storeu_si512(to + i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
  for (; i < count; i += 16) {
    const auto mask = static_cast<__mmask16>(count - i >= 16 ? 0xffff : (1u << (count - i)) - 1);
    const __m512 sum = _mm512_add_ps(
        widen(_mm256_maskz_loadu_epi16(mask, from + i)), widen(_mm256_maskz_loadu_epi16(mask, to + i)));
    _mm256_mask_storeu_epi16(to + i, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sum)));
  }
  if (out_count != nullptr) {
    *out_count = count;
  }
}

} // namespace

ccl::reduction_fn bfloat16_sum() {
  static const bool can = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
  return can ? add_bfloat16 : nullptr;
}

} // namespace ccl_backend

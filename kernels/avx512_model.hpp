// The AVX-512 instructions that the kernels use, as a model with AVX2: tests compile it in front of each file
// (-include) and so run the kernels on CPUs without AVX-512. It gives the same bits as the instructions, except that
// the approximate reciprocal is exact, and that bfloat16 products keep denormal numbers.
#pragma once

#define _IMMINTRIN_H_INCLUDED // the compiler's header would define the same names
#include <smmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#include <fmaintrin.h>

#include <cstdint>
#include <cstring>

#define AVX512
#define AVX512_BF16
#define __builtin_cpu_supports(feature) 1
#pragma GCC diagnostic ignored "-Wignored-attributes"
#define MODEL static inline __attribute__((always_inline))

using __mmask16 = uint16_t;
using __mmask32 = uint32_t;
typedef float __m512 __attribute__((vector_size(64), may_alias));
typedef long long __m512i __attribute__((vector_size(64), may_alias));
typedef short __m512bh __attribute__((vector_size(64), may_alias));

namespace model {

template <typename Number, size_t BYTES>
struct Vector {
  typedef Number type __attribute__((vector_size(BYTES), may_alias));
};
using Words = Vector<uint32_t, 64>::type;
using Signed = Vector<int32_t, 64>::type;
using Longs = Vector<uint64_t, 64>::type;
using Shorts = Vector<uint16_t, 64>::type;
using HalfShorts = Vector<uint16_t, 32>::type;

// A vector's halves, for the instructions of AVX2.
union Floats {
  __m512 whole;
  __m256 half[2];
};

union Integers {
  __m512i whole;
  __m256i half[2];
};

template <typename Function>
MODEL __m512 by_half(Function function, __m512 a, __m512 b = __m512{}, __m512 c = __m512{}) {
  const Floats first{a}, second{b}, third{c};
  Floats result;
  for (int i = 0; i < 2; ++i) {
    result.half[i] = function(first.half[i], second.half[i], third.half[i]);
  }
  return result.whole;
}

template <typename Function>
MODEL __m512i by_half(Function function, __m512i a, __m512i b) {
  const Integers first{a}, second{b};
  Integers result;
  for (int i = 0; i < 2; ++i) {
    result.half[i] = function(first.half[i], second.half[i]);
  }
  return result.whole;
}

MODEL Signed chosen(__mmask16 lanes) {
  const Signed bits = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  return ((Signed{} + static_cast<int>(lanes)) & bits) != 0;
}

// The numbers of the lanes, read one by one: the others may lie outside of the process's memory.
template <typename Vector, typename Number, typename Mask>
MODEL Vector loaded(Mask lanes, const void* from) {
  Number numbers[sizeof(Vector) / sizeof(Number)] = {};
  for (size_t i = 0; i < sizeof(Vector) / sizeof(Number); ++i) {
    if (lanes >> i & 1) {
      std::memcpy(numbers + i, static_cast<const Number*>(from) + i, sizeof(Number));
    }
  }
  Vector result;
  std::memcpy(&result, numbers, sizeof result);
  return result;
}

template <typename Number, typename Vector, typename Mask>
MODEL void stored(void* to, Mask lanes, Vector vector) {
  Number numbers[sizeof(Vector) / sizeof(Number)];
  std::memcpy(numbers, &vector, sizeof vector);
  for (size_t i = 0; i < sizeof(Vector) / sizeof(Number); ++i) {
    if (lanes >> i & 1) {
      std::memcpy(static_cast<Number*>(to) + i, numbers + i, sizeof(Number));
    }
  }
}

template <int PREDICATE>
MODEL __mmask16 compared(__m512 a, __m512 b) {
  const Floats first{a}, second{b};
  const auto bits = [&](int i) { return _mm256_movemask_ps(_mm256_cmp_ps(first.half[i], second.half[i], PREDICATE)); };
  return static_cast<__mmask16>(bits(0) | bits(1) << 8);
}

template <typename Function>
MODEL float reduced(__m512 a, Function function) {
  for (int width = 8; width > 0; width /= 2) { // the compiler's order
    for (int i = 0; i < width; ++i) {
      a[i] = function(a[i], a[i + width]);
    }
  }
  return a[0];
}

template <int CHOICE>
MODEL __m512i quarters(__m512i a, __m512i b) {
  const auto of = [](__m512i from, int quarter, int half) { return from[quarter * 2 + half]; };
  constexpr int FIRST = CHOICE & 3, SECOND = CHOICE >> 2 & 3, THIRD = CHOICE >> 4 & 3, FOURTH = CHOICE >> 6 & 3;
  return __m512i{of(a, FIRST, 0), of(a, FIRST, 1), of(a, SECOND, 0), of(a, SECOND, 1),
                 of(b, THIRD, 0), of(b, THIRD, 1), of(b, FOURTH, 0), of(b, FOURTH, 1)};
}

} // namespace model

MODEL __m512 _mm512_set1_ps(float a) { return a - __m512{}; } // keeps the sign of zero
MODEL __m512 _mm512_setzero_ps() { return __m512{}; }
MODEL __m512i _mm512_setzero_si512() { return __m512i{}; }
MODEL __m512i _mm512_set1_epi16(short a) { return (__m512i)(model::Shorts{} + static_cast<uint16_t>(a)); }
MODEL __m512i _mm512_set1_epi32(int a) { return (__m512i)(model::Signed{} + a); }
MODEL __m512i _mm512_set1_epi64(long long a) { return __m512i{} + a; }
MODEL __m512i _mm512_setr_epi64(long long a, long long b, long long c, long long d, long long e, long long f,
                                long long g, long long h) {
  return __m512i{a, b, c, d, e, f, g, h};
}
MODEL __m512 _mm512_castsi512_ps(__m512i a) { return (__m512)a; }
MODEL __m512i _mm512_castps_si512(__m512 a) { return (__m512i)a; }
MODEL __m512i _mm512_castsi256_si512(__m256i a) { return model::Integers{.half = {a, a}}.whole; }
MODEL __m512i _mm512_inserti64x4(__m512i a, __m256i b, int) {
  model::Integers result{a};
  result.half[1] = b;
  return result.whole;
}

MODEL __m512 _mm512_mask_mov_ps(__m512 source, __mmask16 lanes, __m512 a) { return model::chosen(lanes) ? a : source; }
MODEL __m512 _mm512_maskz_mov_ps(__mmask16 lanes, __m512 a) { return _mm512_mask_mov_ps(__m512{}, lanes, a); }
MODEL __m512i _mm512_mask_mov_epi32(__m512i source, __mmask16 lanes, __m512i a) {
  return (__m512i)(model::chosen(lanes) ? (model::Signed)a : (model::Signed)source);
}
MODEL __m512i _mm512_maskz_mov_epi16(__mmask32 lanes, __m512i a) {
  return model::loaded<__m512i, uint16_t>(lanes, &a);
}

MODEL __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
MODEL __m512 _mm512_sub_ps(__m512 a, __m512 b) { return a - b; }
MODEL __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
MODEL __m512 _mm512_div_ps(__m512 a, __m512 b) { return a / b; }
MODEL __m512 _mm512_rcp14_ps(__m512 a) { return 1.0f / a; }
MODEL __m512 _mm512_abs_ps(__m512 a) { return (__m512)((model::Signed)a & 0x7fffffff); }
MODEL __m512 _mm512_max_ps(__m512 a, __m512 b) { return a > b ? a : b; }
MODEL __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) { return model::by_half(_mm256_fmadd_ps, a, b, c); }
MODEL __m512 _mm512_fmsub_ps(__m512 a, __m512 b, __m512 c) { return model::by_half(_mm256_fmsub_ps, a, b, c); }
MODEL __m512 _mm512_fnmadd_ps(__m512 a, __m512 b, __m512 c) { return model::by_half(_mm256_fnmadd_ps, a, b, c); }
MODEL __m512 _mm512_mask_add_ps(__m512 source, __mmask16 lanes, __m512 a, __m512 b) {
  return _mm512_mask_mov_ps(source, lanes, a + b);
}
MODEL __m512 _mm512_mask_sub_ps(__m512 source, __mmask16 lanes, __m512 a, __m512 b) {
  return _mm512_mask_mov_ps(source, lanes, a - b);
}
MODEL __m512 _mm512_maskz_sub_ps(__mmask16 lanes, __m512 a, __m512 b) { return _mm512_maskz_mov_ps(lanes, a - b); }
MODEL __m512 _mm512_maskz_mul_ps(__mmask16 lanes, __m512 a, __m512 b) { return _mm512_maskz_mov_ps(lanes, a * b); }
MODEL __m512 _mm512_mask_max_ps(__m512 source, __mmask16 lanes, __m512 a, __m512 b) {
  return _mm512_mask_mov_ps(source, lanes, _mm512_max_ps(a, b));
}
MODEL __m512 _mm512_mask_or_ps(__m512 source, __mmask16 lanes, __m512 a, __m512 b) {
  return _mm512_mask_mov_ps(source, lanes, (__m512)((model::Signed)a | (model::Signed)b));
}
MODEL __m512 _mm512_roundscale_ps(__m512 a, int) {
  return model::by_half([](__m256 half, __m256, __m256) { return _mm256_round_ps(half, _MM_FROUND_TO_NEAREST_INT); },
                        a);
}
// a 2^floor(b), in two factors that are normal numbers.
MODEL __m512 _mm512_maskz_scalef_ps(__mmask16 lanes, __m512 a, __m512 b) {
  const __m512 low = _mm512_set1_ps(-252.0f), high = _mm512_set1_ps(254.0f);
  const __m512 whole = model::by_half([](__m256 half, __m256, __m256) { return _mm256_floor_ps(half); }, b);
  const __m512 bounded = whole < low ? low : whole > high ? high : whole == whole ? whole : __m512{};
  const model::Signed power = __builtin_convertvector(bounded, model::Signed), half = power >> 1;
  const __m512 first = (__m512)((half + 127) << 23), second = (__m512)((power - half + 127) << 23);
  return _mm512_maskz_mov_ps(lanes, whole == whole ? a * first * second : whole);
}
MODEL float _mm512_reduce_add_ps(__m512 a) {
  return model::reduced(a, [](float one, float other) { return one + other; });
}
MODEL float _mm512_reduce_max_ps(__m512 a) {
  return model::reduced(a, [](float one, float other) { return one > other ? one : other; });
}
#define _mm512_cmp_ps_mask(a, b, PREDICATE) model::compared<PREDICATE>(a, b)
MODEL __mmask16 _mm512_movepi32_mask(__m512i a) { return model::compared<_CMP_NEQ_UQ>((__m512)((model::Signed)a < 0), __m512{}); }

MODEL __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
MODEL __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
MODEL __m512i _mm512_add_epi32(__m512i a, __m512i b) { return (__m512i)((model::Words)a + (model::Words)b); }
MODEL __m512i _mm512_add_epi64(__m512i a, __m512i b) { return (__m512i)((model::Longs)a + (model::Longs)b); }
MODEL __m512i _mm512_slli_epi32(__m512i a, int count) { return (__m512i)((model::Words)a << count); }
MODEL __m512i _mm512_srli_epi32(__m512i a, int count) { return (__m512i)((model::Words)a >> count); }
MODEL __m512i _mm512_slli_epi64(__m512i a, int count) { return (__m512i)((model::Longs)a << count); }
MODEL __m512i _mm512_srli_epi64(__m512i a, int count) { return (__m512i)((model::Longs)a >> count); }
MODEL __m512i _mm512_mul_epu32(__m512i a, __m512i b) { return model::by_half(_mm256_mul_epu32, a, b); }
MODEL __m512i _mm512_ternarylogic_epi64(__m512i a, __m512i b, __m512i c, int) { return a ^ b ^ c; } // 0x96
MODEL __m512i _mm512_unpacklo_epi32(__m512i a, __m512i b) { return model::by_half(_mm256_unpacklo_epi32, a, b); }
MODEL __m512i _mm512_unpackhi_epi32(__m512i a, __m512i b) { return model::by_half(_mm256_unpackhi_epi32, a, b); }
MODEL __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) { return model::by_half(_mm256_unpacklo_epi64, a, b); }
MODEL __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) { return model::by_half(_mm256_unpackhi_epi64, a, b); }
#define _mm512_shuffle_i32x4(a, b, CHOICE) model::quarters<CHOICE>(a, b)
MODEL __mmask32 _mm512_cmpge_epu16_mask(__m512i a, __m512i b) {
  const auto is_greater = (model::Shorts)a >= (model::Shorts)b;
  __mmask32 result = 0;
  for (int i = 0; i < 32; ++i) {
    result |= (is_greater[i] & 1u) << i;
  }
  return result;
}
MODEL __mmask16 _mm_testn_epi8_mask(__m128i a, __m128i b) {
  return static_cast<__mmask16>(_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_and_si128(a, b), _mm_setzero_si128())));
}
MODEL __m512i _mm512_cvtepu16_epi32(__m256i a) {
  return (__m512i)__builtin_convertvector((model::HalfShorts)a, model::Words);
}
MODEL __m256i _mm512_cvtepi32_epi16(__m512i a) {
  return (__m256i)__builtin_convertvector((model::Words)a, model::HalfShorts);
}

MODEL __m512i _mm512_loadu_si512(const void* from) {
  __m512i result;
  std::memcpy(&result, from, sizeof result);
  return result;
}
MODEL __m512 _mm512_loadu_ps(const void* from) { return (__m512)_mm512_loadu_si512(from); }
MODEL void _mm512_storeu_si512(void* to, __m512i a) { std::memcpy(to, &a, sizeof a); }
MODEL void _mm512_storeu_ps(void* to, __m512 a) { std::memcpy(to, &a, sizeof a); }
MODEL __m512 _mm512_maskz_loadu_ps(__mmask16 lanes, const void* from) {
  const model::Integers read{(__m512i)model::chosen(lanes)};
  const auto numbers = static_cast<const float*>(from);
  return model::Floats{
      .half = {_mm256_maskload_ps(numbers, read.half[0]), _mm256_maskload_ps(numbers + 8, read.half[1])}}.whole;
}
MODEL __m512 _mm512_mask_loadu_ps(__m512 source, __mmask16 lanes, const void* from) {
  return _mm512_mask_mov_ps(source, lanes, _mm512_maskz_loadu_ps(lanes, from));
}
MODEL void _mm512_mask_storeu_ps(void* to, __mmask16 lanes, __m512 a) {
  const model::Integers written{(__m512i)model::chosen(lanes)};
  const model::Floats halves{a};
  for (int i = 0; i < 2; ++i) {
    _mm256_maskstore_ps(static_cast<float*>(to) + 8 * i, written.half[i], halves.half[i]);
  }
}
MODEL __m512i _mm512_maskz_loadu_epi16(__mmask32 lanes, const void* from) {
  return lanes == ~__mmask32{0} ? _mm512_loadu_si512(from) : model::loaded<__m512i, uint16_t>(lanes, from);
}
MODEL __m256i _mm256_maskz_loadu_epi16(__mmask16 lanes, const void* from) {
  return lanes == 0xffff ? _mm256_loadu_si256(static_cast<const __m256i_u*>(from))
                         : model::loaded<__m256i, uint16_t>(lanes, from);
}
MODEL __m128i _mm_maskz_loadu_epi8(__mmask16 lanes, const void* from) {
  return model::loaded<__m128i, uint8_t>(lanes, from);
}
MODEL void _mm512_mask_storeu_epi16(void* to, __mmask32 lanes, __m512i a) { model::stored<uint16_t>(to, lanes, a); }
MODEL void _mm256_mask_storeu_epi16(void* to, __mmask16 lanes, __m256i a) { model::stored<uint16_t>(to, lanes, a); }
MODEL void _mm512_mask_cvtepi32_storeu_epi16(void* to, __mmask16 lanes, __m512i a) {
  model::stored<uint16_t>(to, lanes, _mm512_cvtepi32_epi16(a));
}

// Rounds to nearest even. A denormal number becomes zero, and NaN quiet.
MODEL __m256i _mm512_cvtneps_pbh(__m512 a) {
  const model::Words bits = (model::Words)a, exponent = bits & 0x7f800000u;
  const model::Words even = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, sign = bits >> 16 & 0x8000u;
  const model::Words finite = exponent == 0u ? sign : even;
  return _mm512_cvtepi32_epi16((__m512i)((model::Signed)(a == a) != 0 ? finite : bits >> 16 | 0x40u));
}
// Adds the product of the second numbers of each pair, then that of the first.
MODEL __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
  const auto second = [](__m512bh from) { return (__m512)((model::Words)from & 0xffff0000u); };
  const auto first = [](__m512bh from) { return (__m512)((model::Words)from << 16); };
  return _mm512_fmadd_ps(first(a), first(b), _mm512_fmadd_ps(second(a), second(b), sum));
}

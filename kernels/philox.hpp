// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011), which turns a
// counter and a seed into 128 random bits: a number depends only on its position and the seed.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))
#ifndef AVX512 // avx512_model.hpp defines it
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#endif

namespace philox {

constexpr int ROUNDS = 10;
constexpr uint32_t MULTIPLIER_0 = 0xD2511F53u, MULTIPLIER_1 = 0xCD9E8D57u;
constexpr uint32_t WEYL_0 = 0x9E3779B9u, WEYL_1 = 0xBB67AE85u;
// A block is 64 numbers of 16 bits: the output of eight calls. The counters of block b are 8 b .. 8 b + 7. In memory,
// the first two words of every call come first, then the last two words of every call.
constexpr size_t CALLS = 8, BLOCK = 8 * CALLS;

inline bool vectors() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl");
}

inline void numbers_of(uint64_t block, uint64_t seed, uint16_t* out) {
  for (size_t call = 0; call < CALLS; ++call) {
    const uint64_t counter = block * CALLS + call;
    uint32_t a = static_cast<uint32_t>(counter), b = static_cast<uint32_t>(counter >> 32), c = 0, d = 0;
    uint32_t key_0 = static_cast<uint32_t>(seed), key_1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < ROUNDS; ++round, key_0 += WEYL_0, key_1 += WEYL_1) {
      const uint64_t first = static_cast<uint64_t>(MULTIPLIER_0) * a;
      const uint64_t second = static_cast<uint64_t>(MULTIPLIER_1) * c;
      a = static_cast<uint32_t>(second >> 32) ^ b ^ key_0;
      b = static_cast<uint32_t>(second);
      c = static_cast<uint32_t>(first >> 32) ^ d ^ key_1;
      d = static_cast<uint32_t>(first);
    }
    const uint32_t front[] = {a, b}, back[] = {c, d};
    std::memcpy(out + 4 * call, front, sizeof front);
    std::memcpy(out + BLOCK / 2 + 4 * call, back, sizeof back);
  }
}

// Eight calls at once, one in each 64 bits, of which only the lower 32 are used.
AVX512 inline void numbers_of(uint64_t block, uint64_t seed, __m512i& front, __m512i& back) {
  const __m512i counters = _mm512_add_epi64(
      _mm512_set1_epi64(static_cast<long long>(block * CALLS)), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
  const __m512i multiplier_0 = _mm512_set1_epi64(MULTIPLIER_0), multiplier_1 = _mm512_set1_epi64(MULTIPLIER_1);
  __m512i a = counters, b = _mm512_srli_epi64(counters, 32), c = _mm512_setzero_si512(), d = c;
  uint32_t key_0 = static_cast<uint32_t>(seed), key_1 = static_cast<uint32_t>(seed >> 32);
  constexpr int XOR_OF_THREE = 0x96;
  for (int round = 0; round < ROUNDS; ++round, key_0 += WEYL_0, key_1 += WEYL_1) {
    const __m512i first = _mm512_mul_epu32(multiplier_0, a), second = _mm512_mul_epu32(multiplier_1, c);
    a = _mm512_ternarylogic_epi64(_mm512_srli_epi64(second, 32), b, _mm512_set1_epi64(key_0), XOR_OF_THREE);
    c = _mm512_ternarylogic_epi64(_mm512_srli_epi64(first, 32), d, _mm512_set1_epi64(key_1), XOR_OF_THREE);
    b = second;
    d = first;
  }
  constexpr __mmask16 UPPER_HALVES = 0xAAAA;
  front = _mm512_mask_mov_epi32(a, UPPER_HALVES, _mm512_slli_epi64(b, 32));
  back = _mm512_mask_mov_epi32(c, UPPER_HALVES, _mm512_slli_epi64(d, 32));
}

} // namespace philox

// Dropout that computes its random numbers in place: the backward pass needs only the seed, and the result depends
// neither on the number of threads nor on the CPU.

#include <algorithm>

#include "dropout_rule.hpp"
#include "vectors.hpp"

namespace {

using dropout::Rule;
using philox::BLOCK;
using philox::numbers_of;


float widen(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

uint16_t narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float scaled(float value, float scale) {
  return value * scale;
}

uint16_t scaled(uint16_t value, float scale) {
  return narrow(widen(value) * scale);
}

// Blocks first .. last - 1 of a tensor of `count` elements, on any CPU.
template <typename Element>
void drop(const Element* in, Element* out, size_t first, size_t last, size_t count, Rule rule) {
  for (size_t block = first; block < last; ++block) {
    uint16_t numbers[BLOCK];
    numbers_of(block, rule.seed, numbers);
    const size_t start = block * BLOCK, size = std::min(BLOCK, count - start);
    for (size_t i = 0; i < size; ++i) {
      out[start + i] = numbers[i] < rule.threshold ? Element{0} : scaled(in[start + i], rule.scale);
    }
  }
}

AVX512 inline void half_block(const float* in, float* out, __mmask32 kept, __m512 scale) {
  const auto lower = static_cast<__mmask16>(kept), upper = static_cast<__mmask16>(kept >> 16);
  _mm512_storeu_ps(out, _mm512_maskz_mul_ps(lower, _mm512_loadu_ps(in), scale));
  _mm512_storeu_ps(out + 16, _mm512_maskz_mul_ps(upper, _mm512_loadu_ps(in + 16), scale));
}

AVX512 inline void half_block(const uint16_t* in, uint16_t* out, __mmask32 kept, __m512 scale) {
  __m256i halves[2];
  for (int half = 0; half < 2; ++half) {
    const __m256i narrow_in = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 16 * half));
    const __m512 wide = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow_in), 16));
    halves[half] = _mm512_cvtepi32_epi16(narrow(_mm512_mul_ps(wide, scale)));
  }
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(halves[0]), halves[1], 1);
  _mm512_storeu_si512(out, _mm512_maskz_mov_epi16(kept, both));
}

template <typename Element>
AVX512 void drop_avx512(const Element* in, Element* out, size_t first, size_t last, size_t count, Rule rule) {
  const __m512i threshold = _mm512_set1_epi16(static_cast<short>(rule.threshold));
  const __m512 scale = _mm512_set1_ps(rule.scale);
  const size_t whole = std::min(last, count / BLOCK);
  for (size_t block = first; block < whole; ++block) {
    __m512i front, back;
    numbers_of(block, rule.seed, front, back);
    const size_t start = block * BLOCK;
    half_block(in + start, out + start, _mm512_cmpge_epu16_mask(front, threshold), scale);
    const size_t middle = start + BLOCK / 2;
    half_block(in + middle, out + middle, _mm512_cmpge_epu16_mask(back, threshold), scale);
  }
  drop(in, out, std::max(first, whole), last, count, rule);
}

// Runs on torch's own threads: the library is linked without OpenMP, and uses the one that torch has loaded.
template <typename Element>
void drop_all(const Element* in, Element* out, size_t count, Rule rule) {
  const bool fast = philox::vectors();
  const size_t blocks = (count + BLOCK - 1) / BLOCK;
  const size_t share = 512; // 32 Ki elements: waking a thread costs less than they do
#pragma omp parallel for schedule(static) if (blocks > share)
  for (size_t first = 0; first < blocks; first += share) {
    const size_t last = std::min(first + share, blocks);
    if (fast) {
      drop_avx512(in, out, first, last, count, rule);
    } else {
      drop(in, out, first, last, count, rule);
    }
  }
}

} // namespace

// Writes `count` elements of `in` to `out`, which may be the same memory. `threshold` is at most 65535.
EXPORT void dropout_float32(
    const float* in, float* out, size_t count, uint64_t seed, uint32_t threshold, float scale) {
  drop_all(in, out, count, {seed, threshold, scale});
}

EXPORT void dropout_bfloat16(
    const uint16_t* in, uint16_t* out, size_t count, uint64_t seed, uint32_t threshold, float scale) {
  drop_all(in, out, count, {seed, threshold, scale});
}

// The 64 random numbers of a block, for the comparison with published numbers.
EXPORT void random_numbers(uint64_t block, uint64_t seed, uint16_t* out) {
  numbers_of(block, seed, out);
}

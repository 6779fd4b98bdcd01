// Before and after a product in bfloat16: operands are packed as words, and results are rounded.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "amx.hpp"
#include "tiles.hpp"
#include "vectors.hpp"

namespace {

using tiles::LANES;

size_t padded(size_t count, size_t step) {
  return (count + step - 1) / step * step;
}

// Hands out the parts of a thread's memory, one after the other, aligned for vectors.
class Workspace {
 public:
  explicit Workspace(char* start) : next_(start) {}

  template <typename Value>
  Value* take(size_t count) {
    Value* taken = reinterpret_cast<Value*>(next_);
    next_ += padded(count * sizeof(Value), 64);
    return taken;
  }

 private:
  char* next_;
};

// A thread's memory; false if the allocation has failed.
class Memory {
 public:
  explicit Memory(size_t bytes) : start_(static_cast<char*>(std::aligned_alloc(64, padded(bytes, 64)))) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    std::free(start_);
  }

  explicit operator bool() const {
    return start_ != nullptr;
  }

  Workspace start() const {
    return Workspace(start_);
  }

 private:
  char* start_;
};

// Calls `work` for 0 .. count - 1, divided among the threads, each of which has `bytes` of memory, and returns 0. If a
// thread gets no memory, returns `bytes` without calling `work`: an exception cannot leave OpenMP's threads.
// `amx`: `work` uses AMX.
template <typename Work>
size_t for_each(size_t count, size_t bytes, bool amx, Work work) {
  std::atomic<bool> failed{false};
#pragma omp parallel
  {
    const Memory memory(bytes);
    if (!memory) {
      failed = true;
    }
#pragma omp barrier
    if (!failed) {
      const amx::Configured configured(amx);
#pragma omp for schedule(dynamic) // rows have different lengths
      for (size_t number = 0; number < count; ++number) {
        work(number, memory.start());
      }
    }
  }
  return failed ? bytes : 0;
}

// Copies the rows of one head as words of two features, [rows][features / 2]. Rows from `count` to `rows` are zero.
[[maybe_unused]] AVX512_BF16 void pack(const uint16_t* from, size_t step, size_t count, size_t rows, size_t features,
                                       size_t wide, uint16_t* to) {
  for (size_t row = 0; row < rows; ++row, to += wide) {
    for (size_t first = 0; first < wide; first += 32) {
      const auto of = [](size_t have) -> __mmask32 { return have >= 32 ? ~0u : (1u << have) - 1; };
      const __mmask32 present = row < count && first < features ? of(features - first) : 0;
      const __m512i part = _mm512_maskz_loadu_epi16(present, from + row * step + first);
      _mm512_mask_storeu_epi16(to + first, of(wide - first), part);
    }
  }
}

// Transposes sixteen rows of sixteen words, which are `from_step` words apart.
AVX512 inline void transpose_square(const uint32_t* from, size_t from_step, uint32_t* to, size_t to_step) {
  __m512i rows[LANES], pairs[LANES];
#pragma GCC unroll 16
  for (size_t row = 0; row < LANES; ++row) {
    rows[row] = _mm512_loadu_si512(from + row * from_step);
  }
#pragma GCC unroll 8
  for (size_t row = 0; row < LANES; row += 2) { // words of two rows
    pairs[row] = _mm512_unpacklo_epi32(rows[row], rows[row + 1]);
    pairs[row + 1] = _mm512_unpackhi_epi32(rows[row], rows[row + 1]);
  }
#pragma GCC unroll 4
  for (size_t row = 0; row < LANES; row += 4) { // a word of four rows in each quarter
    rows[row] = _mm512_unpacklo_epi64(pairs[row], pairs[row + 2]);
    rows[row + 1] = _mm512_unpackhi_epi64(pairs[row], pairs[row + 2]);
    rows[row + 2] = _mm512_unpacklo_epi64(pairs[row + 1], pairs[row + 3]);
    rows[row + 3] = _mm512_unpackhi_epi64(pairs[row + 1], pairs[row + 3]);
  }
#pragma GCC unroll 4
  for (size_t word = 0; word < 4; ++word) { // the quarters of four times four rows
    const __m512i first = _mm512_shuffle_i32x4(rows[word], rows[word + 4], 0x88);
    const __m512i second = _mm512_shuffle_i32x4(rows[word], rows[word + 4], 0xdd);
    const __m512i third = _mm512_shuffle_i32x4(rows[word + 8], rows[word + 12], 0x88);
    const __m512i fourth = _mm512_shuffle_i32x4(rows[word + 8], rows[word + 12], 0xdd);
    _mm512_storeu_si512(to + word * to_step, _mm512_shuffle_i32x4(first, third, 0x88));
    _mm512_storeu_si512(to + (word + 4) * to_step, _mm512_shuffle_i32x4(second, fourth, 0x88));
    _mm512_storeu_si512(to + (word + 8) * to_step, _mm512_shuffle_i32x4(first, third, 0xdd));
    _mm512_storeu_si512(to + (word + 12) * to_step, _mm512_shuffle_i32x4(second, fourth, 0xdd));
  }
}

// Transposes [rows][words] to [words][rows]. Steps are in words, from row to row. `rows` is a multiple of 16, `words`
// of 8.
AVX512 void transpose(const uint32_t* from, size_t from_step, size_t rows, size_t words, uint32_t* to,
                           size_t step) {
  for (size_t row = 0; row < rows; row += LANES) {
    size_t word = 0;
    for (; word + LANES <= words; word += LANES) {
      transpose_square(from + row * from_step + word, from_step, to + word * step + row, step);
    }
    for (; word < words; ++word) {
      for (size_t each = row; each < row + LANES; ++each) {
        to[word * step + each] = from[each * from_step + word];
      }
    }
  }
}

// Turns [rows][features] into words of two rows, [rows / 2][features]. `features` is a multiple of 16.
[[maybe_unused]] AVX512_BF16 void interleave(const uint16_t* from, size_t rows, size_t features, uint32_t* to) {
  for (size_t row = 0; row < rows; row += 2, from += 2 * features, to += features) {
    for (size_t i = 0; i < features; i += LANES) {
      const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
      const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + features + i));
      const __m512i upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16);
      _mm512_storeu_si512(to + i, _mm512_or_si512(_mm512_cvtepu16_epi32(first), upper));
    }
  }
}

AVX512_BF16 inline __m256i rounded(__m512 value) {
  return (__m256i)_mm512_cvtneps_pbh(value);
}

// Words of one number of each vector.
AVX512_BF16 inline __m512i paired(__m512 first, __m512 second) {
  return _mm512_or_si512(
      _mm512_cvtepu16_epi32(rounded(first)), _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded(second)), 16));
}

// Multiplies float32 [features] by `scale` and rounds to bfloat16.
[[maybe_unused]] AVX512_BF16 void store_row(const float* from, size_t features, float scale, uint16_t* to) {
  for (size_t i = 0; i < features; i += LANES) {
    const __m512 value = _mm512_mul_ps(_mm512_loadu_ps(from + i), _mm512_set1_ps(scale));
    _mm256_mask_storeu_epi16(to + i, first_lanes(features - i), rounded(value));
  }
}

} // namespace

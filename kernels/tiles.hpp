// Products of small bfloat16 matrices in the cache, with AVX512-BF16, which multiplies bfloat16 numbers and sums the
// products in float32. Both operands are words: pairs of numbers that are adjacent in the summed dimension.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#ifndef AVX512_BF16 // avx512_model.hpp defines it
#define AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#endif

namespace tiles {

constexpr size_t LANES = 16;
// The sums of a tile stay in registers: 24 of 32.
constexpr size_t ROWS = 6, VECTORS = 4;

struct Left { // word (row, pair)
  const uint32_t* words;
  size_t row_step, pair_step;
};

struct Right { // word (pair, column); columns are contiguous
  const uint32_t* words;
  size_t pair_step;
};

struct Sums { // number (row, column); columns are contiguous
  float* values;
  size_t row_step;
};

template <size_t M, size_t N, bool ADDS>
AVX512_BF16 inline void tile(Left left, Right right, Sums sums, size_t pairs) {
  __m512 found[M][N];
#pragma GCC unroll 6
  for (size_t m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (size_t n = 0; n < N; ++n) {
      found[m][n] = ADDS ? _mm512_loadu_ps(sums.values + m * sums.row_step + n * LANES) : _mm512_setzero_ps();
    }
  }
  for (size_t pair = 0; pair < pairs; ++pair) {
    __m512bh columns[N];
#pragma GCC unroll 4
    for (size_t n = 0; n < N; ++n) {
      columns[n] = (__m512bh)_mm512_loadu_si512(right.words + pair * right.pair_step + n * LANES);
    }
#pragma GCC unroll 6
    for (size_t m = 0; m < M; ++m) {
      const uint32_t word = left.words[m * left.row_step + pair * left.pair_step];
      const __m512bh row = (__m512bh)_mm512_set1_epi32(static_cast<int>(word));
#pragma GCC unroll 4
      for (size_t n = 0; n < N; ++n) {
        found[m][n] = _mm512_dpbf16_ps(found[m][n], row, columns[n]);
      }
    }
  }
#pragma GCC unroll 6
  for (size_t m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (size_t n = 0; n < N; ++n) {
      _mm512_storeu_ps(sums.values + m * sums.row_step + n * LANES, found[m][n]);
    }
  }
}

template <size_t M, bool ADDS>
AVX512_BF16 inline void row_of_tiles(Left left, Right right, Sums sums, size_t pairs, size_t vectors) {
  switch (vectors) {
    case 4:
      return tile<M, 4, ADDS>(left, right, sums, pairs);
    case 3:
      return tile<M, 3, ADDS>(left, right, sums, pairs);
    case 2:
      return tile<M, 2, ADDS>(left, right, sums, pairs);
    default:
      return tile<M, 1, ADDS>(left, right, sums, pairs);
  }
}

// sums (rows x columns) = left right, or with ADDS sums += left right. `columns` is a multiple of LANES.
template <bool ADDS>
AVX512_BF16 inline void product(Left left, Right right, Sums sums, size_t rows, size_t columns, size_t pairs) {
  for (size_t column = 0; column < columns; column += VECTORS * LANES) {
    const size_t vectors = columns - column < VECTORS * LANES ? (columns - column) / LANES : VECTORS;
    const Right panel{right.words + column, right.pair_step};
    size_t row = 0;
    for (; row + ROWS <= rows; row += ROWS) {
      row_of_tiles<ROWS, ADDS>(
          {left.words + row * left.row_step, left.row_step, left.pair_step}, panel,
          {sums.values + row * sums.row_step + column, sums.row_step}, pairs, vectors);
    }
    for (; row < rows; ++row) {
      row_of_tiles<1, ADDS>(
          {left.words + row * left.row_step, left.row_step, left.pair_step}, panel,
          {sums.values + row * sums.row_step + column, sums.row_step}, pairs, vectors);
    }
  }
}

} // namespace tiles

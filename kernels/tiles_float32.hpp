// Products of small float32 matrices in the cache, with AVX-512.
#pragma once

#include "tiles.hpp"
#include "vectors.hpp"

namespace tiles32 {

using tiles::LANES, tiles::ROWS, tiles::Sums, tiles::VECTORS;

struct Left { // number (row, depth)
  const float* values;
  size_t row_step, depth_step;
};

struct Right { // number (depth, column); columns are contiguous
  const float* values;
  size_t depth_step;
};

template <size_t M, size_t N, bool ADDS>
AVX512 void tile(Left left, Right right, Sums sums, size_t depth) {
  __m512 found[M][N];
#pragma GCC unroll 6
  for (size_t m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (size_t n = 0; n < N; ++n) {
      found[m][n] = ADDS ? _mm512_loadu_ps(sums.values + m * sums.row_step + n * LANES) : _mm512_setzero_ps();
    }
  }
  for (size_t each = 0; each < depth; ++each) {
    __m512 columns[N];
#pragma GCC unroll 4
    for (size_t n = 0; n < N; ++n) {
      columns[n] = _mm512_loadu_ps(right.values + each * right.depth_step + n * LANES);
    }
#pragma GCC unroll 6
    for (size_t m = 0; m < M; ++m) {
      const __m512 row = _mm512_set1_ps(left.values[m * left.row_step + each * left.depth_step]);
#pragma GCC unroll 4
      for (size_t n = 0; n < N; ++n) {
        found[m][n] = _mm512_fmadd_ps(row, columns[n], found[m][n]);
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

template <bool ADDS>
using Tile = void (*)(Left, Right, Sums, size_t);

// By the number of rows and of vectors, minus 1.
template <bool ADDS>
constexpr Tile<ADDS> TILES[ROWS][VECTORS] = {
    {tile<1, 1, ADDS>, tile<1, 2, ADDS>, tile<1, 3, ADDS>, tile<1, 4, ADDS>},
    {tile<2, 1, ADDS>, tile<2, 2, ADDS>, tile<2, 3, ADDS>, tile<2, 4, ADDS>},
    {tile<3, 1, ADDS>, tile<3, 2, ADDS>, tile<3, 3, ADDS>, tile<3, 4, ADDS>},
    {tile<4, 1, ADDS>, tile<4, 2, ADDS>, tile<4, 3, ADDS>, tile<4, 4, ADDS>},
    {tile<5, 1, ADDS>, tile<5, 2, ADDS>, tile<5, 3, ADDS>, tile<5, 4, ADDS>},
    {tile<6, 1, ADDS>, tile<6, 2, ADDS>, tile<6, 3, ADDS>, tile<6, 4, ADDS>}};

// sums (rows x columns) = left right, or with ADDS sums += left right. `columns` is a multiple of LANES.
template <bool ADDS>
void product(Left left, Right right, Sums sums, size_t rows, size_t columns, size_t depth) {
  for (size_t column = 0; column < columns; column += VECTORS * LANES) {
    const size_t vectors = std::min((columns - column) / LANES, VECTORS);
    for (size_t row = 0; row < rows; row += ROWS) {
      const size_t count = std::min(ROWS, rows - row);
      TILES<ADDS>[count - 1][vectors - 1](
          {left.values + row * left.row_step, left.row_step, left.depth_step},
          {right.values + column, right.depth_step},
          {sums.values + row * sums.row_step + column, sums.row_step}, depth);
    }
  }
}

} // namespace tiles32

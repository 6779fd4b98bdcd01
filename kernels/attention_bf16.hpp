// Attention in bfloat16, with or without dropout, for CPUs with AVX512-BF16: the code that both passes share.
//
// The kernels process one block of queries at a time, whose scores never leave the cache. The forward pass keeps one
// number for each query, the logarithm of the sum of its exponentials, from which the backward pass recomputes the
// probabilities (Dao, Fu, Ermon, Rudra, Re: "FlashAttention", NeurIPS 2022, algorithms 1 and 4).
// Scores, softmax, dropout and sums are float32; operands of the second product are rounded to bfloat16.

#pragma once

#include <algorithm>

#include "dropout_rule.hpp"
#include "masks.hpp"
#include "packing.hpp"
#include "tiles.hpp"
#include "vectors.hpp"

namespace attention {

// The most queries of a block: a multiple of a tile's rows and of a pair.
constexpr size_t QUERIES = 48;
// The most keys that are packed at a time: a multiple of the blocks of random numbers. The backward pass also sums
// the gradients of this many keys at a time, so that its memory does not grow with the number of keys.
constexpr size_t KEYS = 1024;
static_assert(KEYS % philox::BLOCK == 0 && KEYS % LANES == 0);

// bfloat16 [batch, head, row, feature]; features are contiguous, steps are in elements.
struct Tensor {
  uint16_t* values;
  size_t batch_step, head_step, row_step;
};

// `sharing`: the number of consecutive query heads that share one head of keys and values.
struct Sizes {
  size_t batches, heads, sharing, queries, keys, features;
};

// Sizes of the workspaces, which are padded with zeros.
// `queries`: queries of a block, whose scores fit in the cache. `tile`: keys that are packed at a time.
// `rows`: the most rows that are packed at a time. `blocks`: blocks of random numbers for one row of scores.
struct Padded {
  explicit Padded(const Sizes& sizes)
      : keys(padded(sizes.keys, LANES)),
        features(padded(sizes.features, LANES)),
        queries(keys <= 1024 ? QUERIES : keys <= 2048 ? QUERIES / 2 : QUERIES / 4),
        tile(std::min(keys, KEYS)),
        rows(std::max(tile, QUERIES)),
        blocks(padded(sizes.keys, philox::BLOCK) / philox::BLOCK) {}

  size_t keys, features, queries, tile, rows, blocks;
};

// The lanes of the vector at `i` that are before `end`.
AVX512_BF16 inline __mmask16 lanes_before(size_t end, size_t i) {
  return i < end ? first_lanes(end - i) : 0;
}

template <masks::Type MASK>
AVX512_BF16 inline __m512 score_of(const float* product, const char* mask, size_t i, __mmask16 lanes, __m512 factor) {
  return masks::add<MASK>(_mm512_mul_ps(_mm512_loadu_ps(product + i), factor), mask, i, lanes);
}

struct Attention {
  Sizes sizes;
  Tensor query, key, value, out;
  masks::Mask mask;
  float scale;
  uint32_t causal; // 1: a query attends to no key after its own position
  dropout::Rule rule;
  float* logarithms; // log-sum-exp of the scores, [batch, head, query]

  // Head `number` of all batches, from `row` on.
  uint16_t* head(const Tensor& tensor, size_t number, size_t row) const {
    return tensor.values + number / sizes.heads * tensor.batch_step + number % sizes.heads * tensor.head_step +
        row * tensor.row_step;
  }

  // For keys and values.
  const uint16_t* shared_head(const Tensor& tensor, size_t number, size_t row) const {
    return tensor.values + number / sizes.heads * tensor.batch_step +
        number % sizes.heads / sizes.sharing * tensor.head_step + row * tensor.row_step;
  }

  size_t visible(size_t query_row) const {
    return causal ? std::min(sizes.keys, query_row + 1) : sizes.keys;
  }

  const char* mask_row(size_t number, size_t query_row, size_t key = 0) const {
    return mask.row(number / sizes.heads, number % sizes.heads, query_row, key);
  }

  uint64_t first_block(size_t number, size_t query_row, const Padded& wide) const {
    return (number * sizes.queries + query_row) * wide.blocks;
  }
};

} // namespace attention

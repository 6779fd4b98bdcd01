// Attention with dropout in bfloat16, for CPUs with instructions for it: a block of queries at a time, its scores
// never leave the cache. Kept for the backward pass is one number of each query, the logarithm of the sum of its
// exponentials (Dao, Fu, Ermon, Rudra, Re: "FlashAttention", NeurIPS 2022, algorithms 1 and 4).
// Scores, softmax, dropout and sums are float32; what enters the second product is rounded to bfloat16.
// Here is what the forward and the backward pass share.

#pragma once

#include <algorithm>

#include "exponential.hpp"
#include "masks.hpp"
#include "packing.hpp"
#include "philox.hpp"
#include "tiles.hpp"

namespace attention {

// Queries of a block, at most: whole tiles, whole pairs.
constexpr size_t QUERIES = 48;
// Keys that are packed at a time, whole blocks of random numbers. In the backward pass also those whose gradients are
// summed at a time, so that its memory does not grow with the keys.
constexpr size_t KEYS = 1024;
static_assert(KEYS % philox::BLOCK == 0 && KEYS % LANES == 0);

// bfloat16 [batch, head, row, feature], whose features are contiguous.
struct Tensor {
  uint16_t* values;
  size_t batch_step, head_step, row_step;
};

// `sharing`: so many heads in a row have one head of keys and values between them.
struct Sizes {
  size_t batches, heads, sharing, queries, keys, features;
};

struct Rule {
  uint64_t seed;
  uint32_t threshold;
  float scale; // of what is kept
};

// Sizes as the workspaces have them: what is missing is zero. `queries`: of a block, whose scores stay in the cache.
// `tile`: keys that are packed at a time. `rows`: the most that are packed at a time. `blocks`: of a row's numbers.
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

// The elements of a block of 64 that are kept.
AVX512_BF16 inline uint64_t kept_of(uint64_t block, const Rule& rule) {
  if (rule.threshold == 0) {
    return ~uint64_t{0};
  }
  const __m512i threshold = _mm512_set1_epi16(static_cast<short>(rule.threshold));
  __m512i front, back;
  philox::numbers_of(block, rule.seed, front, back);
  return _mm512_cmpge_epu16_mask(front, threshold) |
      static_cast<uint64_t>(_mm512_cmpge_epu16_mask(back, threshold)) << 32;
}

// Of the vector at `i`, what lies before `end`.
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
  uint32_t causal; // 1: a query sees no key behind its own place
  Rule rule;
  float* logarithms; // [batch, head, query]

  const uint16_t* head(const Tensor& tensor, size_t number) const {
    return tensor.values + number / sizes.heads * tensor.batch_step + number % sizes.heads * tensor.head_step;
  }

  // Of keys or values.
  const uint16_t* shared_head(const Tensor& tensor, size_t number) const {
    return tensor.values + number / sizes.heads * tensor.batch_step +
        number % sizes.heads / sizes.sharing * tensor.head_step;
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

// Attention in float32 between its two products: turns scores into probabilities with dropout, in one pass over each
// row while the row is in the cache, and computes the gradients in the same way. The backward pass needs one tensor:
// the probabilities, with the sign set on dropped ones.

#include <algorithm>
#include <cmath>
#include <limits>

#include "dropout_rule.hpp"
#include "masks.hpp"
#include "vectors.hpp"

namespace {

constexpr size_t LANES = 16;

struct Shape {
  size_t batches, heads, queries, keys;
};

void fill(float* scores, float* weights, size_t keys, float value) {
  std::fill(scores, scores + keys, value);
  std::fill(weights, weights + keys, value);
}

// Turns one row of `scores` into signed probabilities; `weights` gets the factors of the values.
template <masks::Type MASK>
AVX512 void forward_row(
    float* scores, float* weights, const char* mask, size_t keys, float scale, uint64_t first_block,
    dropout::Rule rule) {
  const __m512 factor = _mm512_set1_ps(scale), lowest = _mm512_set1_ps(masks::HIDDEN);
  __m512 highest = lowest;
  for (size_t i = 0; i < keys; i += LANES) {
    const __mmask16 lanes = first_lanes(keys - i);
    const __m512 product = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, scores + i), factor);
    const __m512 score = masks::add<MASK>(product, mask, i, lanes);
    highest = _mm512_mask_max_ps(highest, lanes, highest, score);
    _mm512_mask_storeu_ps(scores + i, lanes, score);
  }
  const float top = _mm512_reduce_max_ps(highest);
  if (top == masks::HIDDEN && !has_nan(scores, keys)) { // every key is hidden
    fill(scores, weights, keys, 0.0f);
    return;
  }
  const __m512 shift = _mm512_set1_ps(top);
  __m512 sums = _mm512_setzero_ps();
  for (size_t i = 0; i < keys; i += LANES) {
    const __mmask16 lanes = first_lanes(keys - i);
    const __m512 value = exp_of(_mm512_sub_ps(_mm512_mask_loadu_ps(lowest, lanes, scores + i), shift));
    sums = _mm512_mask_add_ps(sums, lanes, sums, value);
    _mm512_mask_storeu_ps(scores + i, lanes, value);
  }
  const float sum = _mm512_reduce_add_ps(sums);
  if (std::isnan(sum)) { // the probabilities are NaN, also those of dropped keys, and none has its sign set
    fill(scores, weights, keys, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const __m512 inverse_sum = _mm512_set1_ps(1.0f / sum);
  const __m512 kept_scale = _mm512_set1_ps(rule.scale), sign = _mm512_set1_ps(-0.0f);
  for (size_t start = 0, block = first_block; start < keys; start += philox::BLOCK, ++block) {
    const uint64_t kept = dropout::kept(block, rule);
    for (size_t part = 0; part < philox::BLOCK && start + part < keys; part += LANES) {
      const size_t i = start + part;
      const __mmask16 lanes = first_lanes(keys - i), keeps = static_cast<__mmask16>(kept >> part);
      const __m512 value = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, scores + i), inverse_sum);
      _mm512_mask_storeu_ps(weights + i, lanes, _mm512_maskz_mul_ps(keeps, value, kept_scale));
      const __m512 marked = _mm512_mask_or_ps(value, static_cast<__mmask16>(~keeps), value, sign);
      _mm512_mask_storeu_ps(scores + i, lanes, marked);
    }
  }
}

// Replaces the gradient of one row's weights in `gradient` by the gradient of its scores, and recomputes `weights` from
// the signed probabilities. With probabilities p and weights w = p kept_scale where kept:
// d score = scale (p kept_scale d w - p sum(w d w)).
AVX512 void backward_row(
    const float* marked, float* gradient, float* weights, size_t keys, float scale, float kept_scale) {
  const __m512 kept_factor = _mm512_set1_ps(kept_scale);
  __m512 sums = _mm512_setzero_ps();
  for (size_t i = 0; i < keys; i += LANES) {
    const __mmask16 lanes = first_lanes(keys - i);
    const __m512 value = _mm512_maskz_loadu_ps(lanes, marked + i);
    const __mmask16 keeps = static_cast<__mmask16>(~_mm512_movepi32_mask(_mm512_castps_si512(value)));
    const __m512 weight = _mm512_maskz_mul_ps(keeps, value, kept_factor);
    sums = _mm512_fmadd_ps(weight, _mm512_maskz_loadu_ps(lanes, gradient + i), sums);
    _mm512_mask_storeu_ps(weights + i, lanes, weight);
  }
  const __m512 sum = _mm512_set1_ps(_mm512_reduce_add_ps(sums)), factor = _mm512_set1_ps(scale);
  for (size_t i = 0; i < keys; i += LANES) {
    const __mmask16 lanes = first_lanes(keys - i);
    const __m512 probability = _mm512_abs_ps(_mm512_maskz_loadu_ps(lanes, marked + i));
    const __m512 direct =
        _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, weights + i), _mm512_maskz_loadu_ps(lanes, gradient + i));
    const __m512 result = _mm512_mul_ps(_mm512_fnmadd_ps(probability, sum, direct), factor);
    _mm512_mask_storeu_ps(gradient + i, lanes, result);
  }
}

constexpr decltype(&forward_row<masks::NONE>) FORWARD_ROW[masks::TYPES] = {
    forward_row<masks::NONE>, forward_row<masks::FLOAT32>, forward_row<masks::BFLOAT16>, forward_row<masks::BOOLEAN>};

} // namespace

// Whether this CPU has the instructions of both passes.
EXPORT int attention_supported() {
  return philox::vectors() ? 1 : 0;
}

// Tensors are [batches, heads, queries, keys] of float32, contiguous.
EXPORT void attention_forward(
    float* scores, float* weights, const masks::Mask* mask, const size_t* sizes, float scale, uint64_t seed,
    uint32_t threshold, float kept_scale) {
  const Shape shape{sizes[0], sizes[1], sizes[2], sizes[3]};
  const dropout::Rule rule{seed, threshold, kept_scale};
  const size_t blocks = (shape.keys + philox::BLOCK - 1) / philox::BLOCK;
  const auto forward = FORWARD_ROW[mask->type];
#pragma omp parallel for schedule(static)
  for (size_t row = 0; row < shape.batches * shape.heads * shape.queries; ++row) {
    const size_t query = row % shape.queries, head = row / shape.queries % shape.heads;
    const size_t batch = row / shape.queries / shape.heads;
    float* own = scores + row * shape.keys;
    forward(own, weights + row * shape.keys, mask->row(batch, head, query), shape.keys, scale, row * blocks, rule);
  }
}

EXPORT void attention_backward(
    const float* marked, float* gradient, float* weights, size_t rows, size_t keys, float scale, float kept_scale) {
#pragma omp parallel for schedule(static)
  for (size_t row = 0; row < rows; ++row) {
    const size_t start = row * keys;
    backward_row(marked + start, gradient + start, weights + start, keys, scale, kept_scale);
  }
}

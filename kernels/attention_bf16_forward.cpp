// The forward pass of attention_bf16.hpp: a block's scores, their softmax and dropout, the output.

#include "attention_bf16.hpp"

#include <cmath>
#include <limits>

using namespace attention;

namespace {

constexpr float NONE = -std::numeric_limits<float>::infinity();
struct Row {
  float share;     // one over the sum of the exponentials, 0 where nothing may be looked at
  float logarithm; // of that sum
};

// One row's products with `columns` keys, of which it sees the first `visible`, to exponentials, those that are kept,
// in bfloat16.
template <masks::Type MASK>
AVX512_BF16 Row softmax(float* scores, const char* mask, size_t visible, size_t columns, float scale,
                        uint64_t first_block, const Rule& rule, uint16_t* weights) {
  const __m512 factor = _mm512_set1_ps(scale), lowest = _mm512_set1_ps(NONE);
  __m512 highest = lowest;
  for (size_t i = 0; i < columns; i += LANES) {
    const __mmask16 lanes = lanes_before(visible, i);
    const __m512 score = _mm512_mask_mov_ps(lowest, lanes, score_of<MASK>(scores, mask, i, lanes, factor));
    highest = _mm512_max_ps(highest, score);
    _mm512_storeu_ps(scores + i, score);
  }
  const float top = _mm512_reduce_max_ps(highest);
  if (top == NONE && !has_nan(scores, columns)) { // every key is hidden
    std::fill(weights, weights + columns, uint16_t{0});
    return {0.0f, std::numeric_limits<float>::infinity()};
  }
  const __m512 shift = _mm512_set1_ps(top);
  __m512 sums = _mm512_setzero_ps();
  for (size_t start = 0, block = first_block; start < columns; start += philox::BLOCK, ++block) {
    const uint64_t kept = kept_of(block, rule);
    for (size_t part = 0; part < philox::BLOCK && start + part < columns; part += LANES) {
      const size_t i = start + part;
      const __m512 value = exp_of(_mm512_sub_ps(_mm512_loadu_ps(scores + i), shift));
      sums = _mm512_add_ps(sums, value);
      const __m256i narrow = rounded(_mm512_maskz_mov_ps(static_cast<__mmask16>(kept >> part), value));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + i), narrow);
    }
  }
  const float sum = _mm512_reduce_add_ps(sums);
  return {1 / sum, top + std::log(sum)};
}

constexpr decltype(&softmax<masks::NONE>) SOFTMAX[masks::TYPES] = {
    softmax<masks::NONE>, softmax<masks::FLOAT32>, softmax<masks::BFLOAT16>, softmax<masks::BOOLEAN>};

size_t bytes_forward(const Padded& wide) {
  return wide.rows * wide.features * 2 + 2 * wide.keys * wide.features * 2 + wide.queries * wide.features * 4 +
      wide.queries * wide.keys * 6 + 64 * 8;
}

// Head `number` of all.
AVX512_BF16 void forward_head(const Attention& of, const Padded& wide, size_t number, Workspace space) {
  const size_t words = wide.features / 2;
  uint16_t* packed = space.take<uint16_t>(wide.rows * wide.features);
  uint32_t* keys = space.take<uint32_t>(wide.keys * words);
  uint32_t* values = space.take<uint32_t>(wide.keys * words);
  float* found = space.take<float>(wide.queries * wide.features);
  float* scores = space.take<float>(wide.queries * wide.keys);
  uint16_t* weights = space.take<uint16_t>(wide.queries * wide.keys);

  for (size_t first = 0; first < wide.keys; first += KEYS) {
    const size_t count = std::min(KEYS, wide.keys - first), filled = std::min(KEYS, of.sizes.keys - first);
    pack(of.shared_head(of.key, number) + first * of.key.row_step, of.key.row_step, filled, count, of.sizes.features,
         wide.features, packed);
    transpose(reinterpret_cast<uint32_t*>(packed), count, words, keys + first, wide.keys);
    pack(of.shared_head(of.value, number) + first * of.value.row_step, of.value.row_step, filled, count,
         of.sizes.features, wide.features, packed);
    interleave(packed, count, wide.features, values + first * words);
  }
  const auto softmax = SOFTMAX[of.mask.type];
  for (size_t first = 0; first < of.sizes.queries; first += wide.queries) {
    const size_t count = std::min(wide.queries, of.sizes.queries - first);
    const size_t columns = padded(of.visible(first + count - 1), LANES);
    pack(of.head(of.query, number) + first * of.query.row_step, of.query.row_step, count, count, of.sizes.features,
         wide.features, packed);
    tiles::product<false>({reinterpret_cast<uint32_t*>(packed), words, 1}, {keys, wide.keys}, {scores, wide.keys},
                          count, columns, words);
    Row rows[QUERIES];
    for (size_t row = 0; row < count; ++row) {
      rows[row] = softmax(scores + row * wide.keys, of.mask_row(number, first + row), of.visible(first + row), columns,
                          of.scale, of.first_block(number, first + row, wide), of.rule, weights + row * wide.keys);
      of.logarithms[number * of.sizes.queries + first + row] = rows[row].logarithm;
    }
    tiles::product<false>({reinterpret_cast<uint32_t*>(weights), wide.keys / 2, 1}, {values, wide.features},
                          {found, wide.features}, count, wide.features, columns / 2);
    uint16_t* out = const_cast<uint16_t*>(of.head(of.out, number)) + first * of.out.row_step;
    for (size_t row = 0; row < count; ++row) {
      store_row(found + row * wide.features, of.sizes.features, rows[row].share * of.rule.scale,
                out + row * of.out.row_step);
    }
  }
}

} // namespace

// Whether this CPU has what both passes are made of.
EXPORT int attention_bfloat16_supported() {
  return philox::vectors() && __builtin_cpu_supports("avx512bf16") ? 1 : 0;
}

// [batch, head, query or key, feature] of bfloat16, steps in elements. Returns 0, or the bytes that some thread could
// not get: then there is no result.
EXPORT size_t attention_bfloat16_forward(const Attention* of) {
  const Padded wide(of->sizes);
  return for_each(of->sizes.batches * of->sizes.heads, bytes_forward(wide),
                  [&](size_t number, Workspace space) { forward_head(*of, wide, number, space); });
}

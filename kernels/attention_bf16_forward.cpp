// The forward pass of attention_bf16.hpp: a block's scores, their softmax and dropout, and the output.

#include "attention_bf16.hpp"

#include <limits>

using namespace attention;

namespace {

// Turns one row of products with `columns` keys, of which the first `visible` are visible, into exponentials.
// `weights` gets the exponentials that dropout keeps, in bfloat16.
template <masks::Type MASK>
AVX512_BF16 Softmax softmax(float* scores, const char* mask, size_t visible, size_t columns, float scale,
                            uint64_t first_block, const dropout::Rule& rule, uint16_t* weights) {
  const __m512 factor = _mm512_set1_ps(scale), lowest = _mm512_set1_ps(masks::HIDDEN);
  __m512 highest = lowest;
  for (size_t i = 0; i < columns; i += LANES) {
    const __mmask16 lanes = lanes_before(visible, i);
    const __m512 score = _mm512_mask_mov_ps(lowest, lanes, score_of<MASK>(scores, mask, i, lanes, factor));
    highest = _mm512_max_ps(highest, score);
    _mm512_storeu_ps(scores + i, score);
  }
  const float top = _mm512_reduce_max_ps(highest);
  if (top == masks::HIDDEN && !has_nan(scores, columns)) { // every key is hidden
    std::fill(weights, weights + columns, uint16_t{0});
    return {std::numeric_limits<float>::infinity(), 0.0f};
  }
  const __m512 shift = _mm512_set1_ps(top);
  __m512 sums = _mm512_setzero_ps();
  for (size_t start = 0, block = first_block; start < columns; start += philox::BLOCK, ++block) {
    const uint64_t kept = dropout::kept(block, rule);
    for (size_t part = 0; part < philox::BLOCK && start + part < columns; part += LANES) {
      const size_t i = start + part;
      const __m512 value = exp_of(_mm512_sub_ps(_mm512_loadu_ps(scores + i), shift));
      sums = _mm512_add_ps(sums, value);
      const __m256i narrow = rounded(_mm512_maskz_mov_ps(static_cast<__mmask16>(kept >> part), value));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + i), narrow);
    }
  }
  return {top, 1 / _mm512_reduce_add_ps(sums)};
}

constexpr decltype(&softmax<masks::NONE>) SOFTMAX[masks::TYPES] = {
    softmax<masks::NONE>, softmax<masks::FLOAT32>, softmax<masks::BFLOAT16>, softmax<masks::BOOLEAN>};

size_t bytes_forward(const Sizes&, const Padded& wide) {
  return wide.rows * wide.features * 2 + 2 * wide.key_row * wide.features * 2 + wide.queries * wide.features * 4 +
      wide.queries * wide.key_row * 6 + 64 * 8;
}

AVX512_BF16 void forward_head(const Part& args, const Padded& wide, size_t number, Workspace space) {
  const size_t words = wide.features / 2;
  uint16_t* packed = space.take<uint16_t>(wide.rows * wide.features);
  uint32_t* keys = space.take<uint32_t>(wide.key_row * words);
  uint32_t* values = space.take<uint32_t>(wide.key_row * words);
  float* output = space.take<float>(wide.queries * wide.features);
  float* scores = space.take<float>(wide.queries * wide.key_row);
  uint16_t* weights = space.take<uint16_t>(wide.queries * wide.key_row);

  for (size_t first = 0; first < wide.keys; first += wide.tile) {
    const size_t key_count = std::min(wide.tile, args.sizes.keys - first);
    const size_t key_rows = std::min(wide.tile, wide.keys - first);
    pack(args.shared_head(args.key, number, first), args.key.row_step, key_count, key_rows, args.sizes.features,
         wide.features, packed);
    transpose(reinterpret_cast<uint32_t*>(packed), words, key_rows, words, keys + first, wide.key_row);
    pack(args.shared_head(args.value, number, first), args.value.row_step, key_count, key_rows, args.sizes.features,
         wide.features, packed);
    interleave(packed, key_rows, wide.features, values + first * words);
  }
  const auto softmax = SOFTMAX[args.mask.type];
  for (size_t first = 0; first < args.sizes.queries; first += wide.queries) {
    const size_t count = std::min(wide.queries, args.sizes.queries - first);
    const size_t columns = padded(args.visible(first + count - 1), wide.step);
    const size_t query_rows = wide.amx ? padded(count, amx::ROWS) : count;
    pack(args.head(args.query, number, first), args.query.row_step, count, query_rows, args.sizes.features,
         wide.features, packed);
    wide.product<false>({reinterpret_cast<uint32_t*>(packed), words, 1}, {keys, wide.key_row}, {scores, wide.key_row},
                        query_rows, columns, words);
    for (size_t row = 0; row < count; ++row) {
      args.softmax_of(number, first + row) =
          softmax(scores + row * wide.key_row, args.mask_row(number, first + row), args.visible(first + row), columns,
                  args.scale, args.first_block(number, first + row, wide), args.rule, weights + row * wide.key_row);
    }
    wide.product<false>({reinterpret_cast<uint32_t*>(weights), wide.key_row / 2, 1}, {values, wide.features},
                        {output, wide.features}, query_rows, wide.features, columns / 2);
    for (size_t row = 0; row < count; ++row) {
      const float* found = output + row * wide.features;
      const float factor = args.softmax_of(number, first + row).inverse_sum * args.rule.scale;
      store_row(found, args.sizes.features, factor, args.head(args.out, number, first + row));
      if (args.sizes.keys > wide.tile) {
        float* out = args.head<float>(args.wide_out, number, first + row);
        std::transform(found, found + args.sizes.features, out, [=](float value) { return value * factor; });
      }
    }
  }
}

} // namespace

// Whether this CPU has the instructions of both passes.
EXPORT int attention_bfloat16_supported() {
  return philox::vectors() && __builtin_cpu_supports("avx512bf16") ? 1 : 0;
}

// Whether this process may also use AMX.
EXPORT int attention_amx_permitted() {
  return amx::permitted() ? 1 : 0;
}

// Tensors are [batch, head, query or key, feature] of bfloat16, with `starts` [1, head, token, feature]. Returns 0, or the number of bytes that a thread could
// not allocate, in which case there is no result.
EXPORT size_t attention_bfloat16_forward(const Attention* args) {
  return for_each_head(*args, bytes_forward, forward_head);
}

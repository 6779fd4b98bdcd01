// The backward pass of attention_bf16.hpp: a block's scores again, and from them the three gradients.

#include "attention_bf16.hpp"

#include <limits>

using namespace attention;

namespace {

// A row of what the backward pass starts from.
struct Backward {
  const float* products;  // with the keys of a tile
  const float* gradients; // by the weights
  const char* mask;       // of its first key on
  float logarithm;
  float sum; // of output times its gradient
  size_t visible; // keys of the tile
  uint64_t first_block;
};

// Of 16 keys: the weights, and the gradient by the products with the keys.
template <masks::Type MASK>
AVX512_BF16 inline void differentiate(const Backward& row, size_t i, __mmask16 lanes, __mmask16 keeps, float scale,
                                      float kept_scale, __m512& weight, __m512& gradient) {
  const __m512 factor = _mm512_set1_ps(scale), kept_factor = _mm512_set1_ps(kept_scale);
  const __m512 score = score_of<MASK>(row.products, row.mask, i, lanes, factor);
  const __m512 share = _mm512_maskz_mov_ps(lanes, exp_of(_mm512_sub_ps(score, _mm512_set1_ps(row.logarithm))));
  const __m512 through = _mm512_maskz_mul_ps(keeps, _mm512_loadu_ps(row.gradients + i), kept_factor);
  weight = _mm512_maskz_mul_ps(keeps, share, kept_factor);
  gradient = _mm512_mul_ps(_mm512_mul_ps(share, _mm512_sub_ps(through, _mm512_set1_ps(row.sum))), factor);
}

// Two rows: weights and gradients as words of the two rows, gradients as rows as well.
template <masks::Type MASK>
AVX512_BF16 void differentiate_pair(const Backward* rows, size_t columns, size_t row_step, float scale,
                                    const Rule& rule, uint32_t* weights, uint32_t* gradients, uint16_t* by_rows) {
  for (size_t start = 0, block = 0; start < columns; start += philox::BLOCK, ++block) {
    const uint64_t kept[] = {kept_of(rows[0].first_block + block, rule), kept_of(rows[1].first_block + block, rule)};
    for (size_t part = 0; part < philox::BLOCK && start + part < columns; part += LANES) {
      const size_t i = start + part;
      __m512 weight[2], gradient[2];
      for (int row = 0; row < 2; ++row) {
        const __mmask16 lanes = lanes_before(rows[row].visible, i);
        const __mmask16 keeps = static_cast<__mmask16>(kept[row] >> part);
        differentiate<MASK>(rows[row], i, lanes, keeps, scale, rule.scale, weight[row], gradient[row]);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(by_rows + row * row_step + i), rounded(gradient[row]));
      }
      _mm512_storeu_si512(weights + i, paired(weight[0], weight[1]));
      _mm512_storeu_si512(gradients + i, paired(gradient[0], gradient[1]));
    }
  }
}

constexpr decltype(&differentiate_pair<masks::NONE>) DIFFERENTIATE_PAIR[masks::TYPES] = {
    differentiate_pair<masks::NONE>, differentiate_pair<masks::FLOAT32>, differentiate_pair<masks::BFLOAT16>,
    differentiate_pair<masks::BOOLEAN>};

struct Gradients {
  Tensor out; // given
  Tensor query, key, value;
};

// All queries' gradients are summed at once if several tiles of keys add to them.
size_t summed_queries(const Sizes& sizes, const Padded& wide) {
  return sizes.keys > wide.tile ? sizes.queries : QUERIES;
}

size_t bytes_backward(const Sizes& sizes, const Padded& wide) {
  return wide.rows * wide.features * 2 + 3 * wide.tile * wide.features * 2 + 2 * wide.tile * wide.features * 4 +
      summed_queries(sizes, wide) * wide.features * 4 + QUERIES * wide.features * 2 * 3 +
      QUERIES * wide.tile * (2 * 4 + 3 * 2) + 64 * 16;
}

AVX512_BF16 float dot(const uint16_t* first, const uint16_t* second, size_t count) {
  __m512 sums = _mm512_setzero_ps();
  for (size_t i = 0; i < count; i += LANES) {
    const __mmask16 lanes = first_lanes(count - i);
    sums = _mm512_fmadd_ps(widened(first + i, lanes), widened(second + i, lanes), sums);
  }
  return _mm512_reduce_add_ps(sums);
}

void store_rows(const float* from, size_t rows, size_t features, size_t step, uint16_t* to, size_t to_step) {
  for (size_t row = 0; row < rows; ++row) {
    store_row(from + row * step, features, 1.0f, to + row * to_step);
  }
}

AVX512_BF16 void backward_head(const Attention& of, const Gradients& gradients, const Padded& wide, size_t number,
                               Workspace space) {
  const size_t words = wide.features / 2, tile = wide.tile;
  const Sizes& sizes = of.sizes;
  uint16_t* packed = space.take<uint16_t>(wide.rows * wide.features);
  uint32_t* keys = space.take<uint32_t>(tile * words);       // words of features
  uint32_t* key_pairs = space.take<uint32_t>(tile * words);  // words of keys
  uint32_t* values = space.take<uint32_t>(tile * words);     // words of features
  float* by_keys = space.take<float>(tile * wide.features);
  float* by_values = space.take<float>(tile * wide.features);
  float* by_queries = space.take<float>(summed_queries(sizes, wide) * wide.features);
  uint16_t* outer = space.take<uint16_t>(QUERIES * wide.features);
  uint32_t* query_pairs = space.take<uint32_t>(QUERIES * words);
  uint32_t* outer_pairs = space.take<uint32_t>(QUERIES * words);
  float* products = space.take<float>(QUERIES * tile);
  float* by_weights = space.take<float>(QUERIES * tile);
  uint32_t* weights = space.take<uint32_t>(QUERIES * tile / 2);
  uint32_t* by_scores = space.take<uint32_t>(QUERIES * tile / 2);
  uint16_t* by_rows = space.take<uint16_t>(QUERIES * tile);
  const auto differentiate = DIFFERENTIATE_PAIR[of.mask.type];

  for (size_t key = 0; key < sizes.keys; key += tile) {
    const size_t there = std::min(tile, sizes.keys - key), filled = padded(there, LANES);
    pack(of.shared_head(of.key, number) + key * of.key.row_step, of.key.row_step, there, filled, sizes.features,
         wide.features, packed);
    transpose(reinterpret_cast<uint32_t*>(packed), filled, words, keys, tile);
    interleave(packed, filled, wide.features, key_pairs);
    pack(of.shared_head(of.value, number) + key * of.value.row_step, of.value.row_step, there, filled, sizes.features,
         wide.features, packed);
    transpose(reinterpret_cast<uint32_t*>(packed), filled, words, values, tile);
    std::fill(by_keys, by_keys + filled * wide.features, 0.0f);
    std::fill(by_values, by_values + filled * wide.features, 0.0f);

    // where causal, queries before the tile see nothing of it
    for (size_t first = of.causal ? key / QUERIES * QUERIES : 0; first < sizes.queries; first += QUERIES) {
      const size_t count = std::min(QUERIES, sizes.queries - first), even = padded(count, 2);
      const size_t seen = of.visible(first + count - 1); // of all keys
      if (seen <= key) {
        continue;
      }
      const size_t columns = padded(std::min(seen - key, there), LANES);
      pack(of.head(of.query, number) + first * of.query.row_step, of.query.row_step, count, even, sizes.features,
           wide.features, packed);
      pack(of.head(gradients.out, number) + first * gradients.out.row_step, gradients.out.row_step, count, even,
           sizes.features, wide.features, outer);
      interleave(packed, even, wide.features, query_pairs);
      interleave(outer, even, wide.features, outer_pairs);
      tiles::product<false>({reinterpret_cast<uint32_t*>(packed), words, 1}, {keys, tile}, {products, tile}, even,
                            columns, words);
      tiles::product<false>({reinterpret_cast<uint32_t*>(outer), words, 1}, {values, tile}, {by_weights, tile}, even,
                            columns, words);
      const uint16_t* out = of.head(of.out, number) + first * of.out.row_step;
      for (size_t row = 0; row < even; row += 2) {
        Backward rows[2];
        for (size_t each = row; each < row + 2; ++each) {
          const float *product = products + each * tile, *by_weight = by_weights + each * tile;
          if (each == count) { // fills up the last pair, with weights of zero
            rows[each - row] = {product, by_weight, nullptr, std::numeric_limits<float>::infinity(), 0.0f, 0, 0};
            continue;
          }
          const size_t visible = of.visible(first + each);
          rows[each - row] = {product, by_weight, of.mask_row(number, first + each, key),
                              of.logarithms[number * sizes.queries + first + each],
                              dot(out + each * of.out.row_step, outer + each * wide.features, sizes.features),
                              visible > key ? std::min(visible - key, there) : 0,
                              of.first_block(number, first + each, wide) + key / philox::BLOCK};
        }
        differentiate(rows, columns, tile, of.scale, of.rule, weights + row / 2 * tile, by_scores + row / 2 * tile,
                      by_rows + row * tile);
      }
      const tiles::Left left{reinterpret_cast<uint32_t*>(by_rows), tile / 2, 1};
      const tiles::Sums sums{by_queries + (sizes.keys > tile ? first * wide.features : 0), wide.features};
      const auto product = key == 0 ? tiles::product<false> : tiles::product<true>;
      product(left, {key_pairs, wide.features}, sums, count, wide.features, columns / 2);
      if (key + there >= seen) {
        store_rows(sums.values, count, sizes.features, wide.features,
                   const_cast<uint16_t*>(of.head(gradients.query, number)) + first * gradients.query.row_step,
                   gradients.query.row_step);
      }
      tiles::product<true>({weights, 1, tile}, {outer_pairs, wide.features}, {by_values, wide.features}, columns,
                           wide.features, even / 2);
      tiles::product<true>({by_scores, 1, tile}, {query_pairs, wide.features}, {by_keys, wide.features}, columns,
                           wide.features, even / 2);
    }
    store_rows(by_keys, there, sizes.features, wide.features,
               const_cast<uint16_t*>(of.head(gradients.key, number)) + key * gradients.key.row_step,
               gradients.key.row_step);
    store_rows(by_values, there, sizes.features, wide.features,
               const_cast<uint16_t*>(of.head(gradients.value, number)) + key * gradients.value.row_step,
               gradients.value.row_step);
  }
}

} // namespace

// Tensors, and what is returned, as in the forward pass.
EXPORT size_t attention_bfloat16_backward(const Attention* of, const Gradients* gradients) {
  const Padded wide(of->sizes);
  return for_each(of->sizes.batches * of->sizes.heads, bytes_backward(of->sizes, wide),
                  [&](size_t number, Workspace space) { backward_head(*of, *gradients, wide, number, space); });
}

// The backward pass of attention_bf16.hpp: recomputes a block's scores, and from them the three gradients.

#include "attention_bf16.hpp"

#include <limits>

using namespace attention;

namespace {

// The inputs of one query and one tile of keys.
struct BackwardRow {
  const float* products;  // the query times the keys
  const float* gradients; // of the weights
  const char* mask;       // from the tile's first key on
  float logarithm;        // log-sum-exp of the scores
  float sum;              // of the output times its gradient
  size_t visible;         // keys of the tile
  uint64_t first_block;   // of random numbers
};

// Computes the weights of 16 keys, and the gradients of the query's products with these keys.
template <masks::Type MASK>
AVX512_BF16 inline void differentiate(const BackwardRow& row, size_t i, __mmask16 lanes, __mmask16 keeps, float scale,
                                      float kept_scale, __m512& weight, __m512& gradient) {
  const __m512 factor = _mm512_set1_ps(scale), kept_factor = _mm512_set1_ps(kept_scale);
  const __m512 score = score_of<MASK>(row.products, row.mask, i, lanes, factor);
  const __m512 probability = _mm512_maskz_mov_ps(lanes, exp_of(_mm512_sub_ps(score, _mm512_set1_ps(row.logarithm))));
  const __m512 through = _mm512_maskz_mul_ps(keeps, _mm512_loadu_ps(row.gradients + i), kept_factor);
  weight = _mm512_maskz_mul_ps(keeps, probability, kept_factor);
  gradient = _mm512_mul_ps(_mm512_mul_ps(probability, _mm512_sub_ps(through, _mm512_set1_ps(row.sum))), factor);
}

// Does so for two rows. `weights` and `gradients` are words of both rows; `gradient_rows` has the gradients by row.
template <masks::Type MASK>
AVX512_BF16 void differentiate_pair(const BackwardRow* rows, size_t columns, size_t row_step, float scale,
                                    const dropout::Rule& rule, uint32_t* weights, uint32_t* gradients,
                                    uint16_t* gradient_rows) {
  for (size_t start = 0, block = 0; start < columns; start += philox::BLOCK, ++block) {
    const uint64_t kept[] = {dropout::kept(rows[0].first_block + block, rule),
                             dropout::kept(rows[1].first_block + block, rule)};
    for (size_t part = 0; part < philox::BLOCK && start + part < columns; part += LANES) {
      const size_t i = start + part;
      __m512 weight[2], gradient[2];
      for (int row = 0; row < 2; ++row) {
        const __mmask16 lanes = lanes_before(rows[row].visible, i);
        const __mmask16 keeps = static_cast<__mmask16>(kept[row] >> part);
        differentiate<MASK>(rows[row], i, lanes, keeps, scale, rule.scale, weight[row], gradient[row]);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(gradient_rows + row * row_step + i), rounded(gradient[row]));
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
  Tensor out; // an input
  Tensor query, key, value;
};

// If there are several tiles of keys, the gradients of all queries stay in memory until the last tile.
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

AVX512_BF16 void backward_head(const Attention& args, const Gradients& gradients, const Padded& wide, size_t number,
                               Workspace space) {
  const size_t words = wide.features / 2, tile = wide.tile;
  const Sizes& sizes = args.sizes;
  uint16_t* packed = space.take<uint16_t>(wide.rows * wide.features);
  uint32_t* keys = space.take<uint32_t>(tile * words);      // pairs of features
  uint32_t* key_pairs = space.take<uint32_t>(tile * words); // pairs of keys
  uint32_t* values = space.take<uint32_t>(tile * words);    // pairs of features
  float* key_gradients = space.take<float>(tile * wide.features);
  float* value_gradients = space.take<float>(tile * wide.features);
  float* query_gradients = space.take<float>(summed_queries(sizes, wide) * wide.features);
  uint16_t* out_gradients = space.take<uint16_t>(QUERIES * wide.features);
  uint32_t* query_pairs = space.take<uint32_t>(QUERIES * words);
  uint32_t* out_gradient_pairs = space.take<uint32_t>(QUERIES * words);
  float* products = space.take<float>(QUERIES * tile);
  float* weight_gradients = space.take<float>(QUERIES * tile);
  uint32_t* weights = space.take<uint32_t>(QUERIES * tile / 2);
  uint32_t* score_gradients = space.take<uint32_t>(QUERIES * tile / 2);
  uint16_t* score_gradient_rows = space.take<uint16_t>(QUERIES * tile);
  const auto differentiate = DIFFERENTIATE_PAIR[args.mask.type];

  for (size_t key = 0; key < sizes.keys; key += tile) {
    const size_t key_count = std::min(tile, sizes.keys - key), key_rows = padded(key_count, LANES);
    pack(args.shared_head(args.key, number, key), args.key.row_step, key_count, key_rows, sizes.features,
         wide.features, packed);
    transpose(reinterpret_cast<uint32_t*>(packed), key_rows, words, keys, tile);
    interleave(packed, key_rows, wide.features, key_pairs);
    pack(args.shared_head(args.value, number, key), args.value.row_step, key_count, key_rows, sizes.features,
         wide.features, packed);
    transpose(reinterpret_cast<uint32_t*>(packed), key_rows, words, values, tile);
    std::fill(key_gradients, key_gradients + key_rows * wide.features, 0.0f);
    std::fill(value_gradients, value_gradients + key_rows * wide.features, 0.0f);

    // Causal: queries before the tile attend to none of its keys.
    for (size_t first = args.causal ? key / QUERIES * QUERIES : 0; first < sizes.queries; first += QUERIES) {
      const size_t count = std::min(QUERIES, sizes.queries - first), even = padded(count, 2);
      const size_t seen = args.visible(first + count - 1); // of all keys
      if (seen <= key) {
        continue;
      }
      const size_t columns = padded(std::min(seen - key, key_count), LANES);
      pack(args.head(args.query, number, first), args.query.row_step, count, even, sizes.features, wide.features,
           packed);
      pack(args.head(gradients.out, number, first), gradients.out.row_step, count, even, sizes.features,
           wide.features, out_gradients);
      interleave(packed, even, wide.features, query_pairs);
      interleave(out_gradients, even, wide.features, out_gradient_pairs);
      tiles::product<false>({reinterpret_cast<uint32_t*>(packed), words, 1}, {keys, tile}, {products, tile}, even,
                            columns, words);
      tiles::product<false>({reinterpret_cast<uint32_t*>(out_gradients), words, 1}, {values, tile},
                            {weight_gradients, tile}, even, columns, words);
      const uint16_t* out = args.head(args.out, number, first);
      for (size_t row = 0; row < even; row += 2) {
        BackwardRow rows[2];
        for (size_t each = row; each < row + 2; ++each) {
          const float *product = products + each * tile, *weight_gradient = weight_gradients + each * tile;
          if (each == count) { // completes the last pair, with weights of zero
            rows[each - row] = {product, weight_gradient, nullptr, std::numeric_limits<float>::infinity(), 0.0f, 0, 0};
            continue;
          }
          const size_t visible = args.visible(first + each);
          rows[each - row] = {product, weight_gradient, args.mask_row(number, first + each, key),
                              args.logarithms[number * sizes.queries + first + each],
                              dot(out + each * args.out.row_step, out_gradients + each * wide.features, sizes.features),
                              visible > key ? std::min(visible - key, key_count) : 0,
                              args.first_block(number, first + each, wide) + key / philox::BLOCK};
        }
        differentiate(rows, columns, tile, args.scale, args.rule, weights + row / 2 * tile,
                      score_gradients + row / 2 * tile, score_gradient_rows + row * tile);
      }
      const tiles::Left left{reinterpret_cast<uint32_t*>(score_gradient_rows), tile / 2, 1};
      const tiles::Sums sums{query_gradients + (sizes.keys > tile ? first * wide.features : 0), wide.features};
      const auto product = key == 0 ? tiles::product<false> : tiles::product<true>;
      product(left, {key_pairs, wide.features}, sums, count, wide.features, columns / 2);
      if (key + key_count >= seen) { // the last tile that these queries attend to
        store_rows(sums.values, count, sizes.features, wide.features, args.head(gradients.query, number, first),
                   gradients.query.row_step);
      }
      tiles::product<true>({weights, 1, tile}, {out_gradient_pairs, wide.features}, {value_gradients, wide.features},
                           columns, wide.features, even / 2);
      tiles::product<true>({score_gradients, 1, tile}, {query_pairs, wide.features}, {key_gradients, wide.features},
                           columns, wide.features, even / 2);
    }
    store_rows(key_gradients, key_count, sizes.features, wide.features, args.head(gradients.key, number, key),
               gradients.key.row_step);
    store_rows(value_gradients, key_count, sizes.features, wide.features, args.head(gradients.value, number, key),
               gradients.value.row_step);
  }
}

} // namespace

// Tensors and the return value are as in the forward pass.
EXPORT size_t attention_bfloat16_backward(const Attention* args, const Gradients* gradients) {
  const Padded wide(args->sizes);
  return for_each(args->sizes.batches * args->sizes.heads, bytes_backward(args->sizes, wide),
                  [&](size_t number, Workspace space) { backward_head(*args, *gradients, wide, number, space); });
}

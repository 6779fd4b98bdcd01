// The backward pass of attention_bf16.hpp: recomputes a block's scores, and from them the three gradients.

#include "attention_bf16.hpp"

using namespace attention;

namespace {

// One query and one tile of keys.
struct BackwardRow {
  float* products;        // the query times the keys, then the probabilities
  const float* gradients; // of the weights
  const char* mask;       // from the tile's first key on
  Softmax softmax;
  size_t visible;         // keys of the tile
  uint64_t first_block;   // of random numbers
  float sum;              // of the probabilities that are kept, times the gradients
  uint64_t kept[KEYS / philox::BLOCK];
};

// Turns the products into probabilities, and finds which of them dropout keeps. Returns this tile's part of `sum`, which
// has to be exact: where a softmax is saturated, it cancels all but the last bits of a gradient.
template <masks::Type MASK>
AVX512_BF16 float recompute(BackwardRow& row, size_t columns, float scale, const dropout::Rule& rule) {
  const __m512 factor = _mm512_set1_ps(scale), shift = _mm512_set1_ps(row.softmax.highest);
  const __m512 inverse_sum = _mm512_set1_ps(row.softmax.inverse_sum);
  __m512 sums = _mm512_setzero_ps();
  for (size_t start = 0, block = 0; start < columns; start += philox::BLOCK, ++block) {
    const uint64_t kept = row.kept[block] = dropout::kept(row.first_block + block, rule);
    for (size_t part = 0; part < philox::BLOCK && start + part < columns; part += LANES) {
      const size_t i = start + part;
      const __mmask16 lanes = lanes_before(row.visible, i), keeps = static_cast<__mmask16>(kept >> part);
      const __m512 power = exp_of(_mm512_sub_ps(score_of<MASK>(row.products, row.mask, i, lanes, factor), shift));
      const __m512 probability = _mm512_maskz_mul_ps(lanes, power, inverse_sum);
      const __m512 gradient = _mm512_maskz_loadu_ps(lanes & keeps, row.gradients + i);
      sums = _mm512_fmadd_ps(probability, gradient, sums);
      _mm512_storeu_ps(row.products + i, probability);
    }
  }
  return _mm512_reduce_add_ps(sums);
}

constexpr decltype(&recompute<masks::NONE>) RECOMPUTE[masks::TYPES] = {
    recompute<masks::NONE>, recompute<masks::FLOAT32>, recompute<masks::BFLOAT16>, recompute<masks::BOOLEAN>};

// Computes the weights of two rows, and the gradients of the products. `weights` and `gradients` are words of both
// rows; `gradient_rows` has the gradients by row.
AVX512_BF16 void differentiate(const BackwardRow* rows, size_t columns, size_t row_step, float scale, float kept_scale,
                               uint32_t* weights, uint32_t* gradients, uint16_t* gradient_rows) {
  const __m512 factor = _mm512_set1_ps(scale * kept_scale), kept_factor = _mm512_set1_ps(kept_scale);
  for (size_t i = 0; i < columns; i += LANES) {
    __m512 weight[2], gradient[2];
    for (int row = 0; row < 2; ++row) {
      const __m512 probability = _mm512_loadu_ps(rows[row].products + i), sum = _mm512_set1_ps(rows[row].sum);
      const auto keeps = static_cast<__mmask16>(rows[row].kept[i / philox::BLOCK] >> i % philox::BLOCK);
      const __m512 through = _mm512_maskz_loadu_ps(keeps, rows[row].gradients + i);
      weight[row] = _mm512_maskz_mul_ps(keeps, probability, kept_factor);
      gradient[row] = _mm512_mul_ps(_mm512_mul_ps(probability, _mm512_sub_ps(through, sum)), factor);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(gradient_rows + row * row_step + i), rounded(gradient[row]));
    }
    _mm512_storeu_si512(weights + i, paired(weight[0], weight[1]));
    _mm512_storeu_si512(gradients + i, paired(gradient[0], gradient[1]));
  }
}

struct Gradients {
  Tensor out; // an input
  Tensor query, key, value;
};

// If there are several tiles of keys, the gradients of all queries stay in memory until the last tile.
size_t summed_queries(const Sizes& sizes, const Padded& wide) {
  return sizes.keys > wide.tile ? padded(sizes.queries, wide.query_step) : wide.most_queries;
}

size_t bytes_backward(const Sizes& sizes, const Padded& wide) {
  const size_t turned = wide.amx ? 1 : 0; // transposed copies
  return wide.rows * wide.features * 2 + 3 * wide.tile_row * wide.features * 2 +
      (2 + turned) * wide.tile_row * wide.features * 4 + summed_queries(sizes, wide) * wide.features * 4 +
      (3 + turned) * wide.most_queries * wide.features * 2 + wide.most_queries * wide.tile_row * (2 * 4 + 3 * 2) +
      64 * 16;
}

AVX512_BF16 float dot(const float* first, const uint16_t* second, size_t count) {
  __m512 sums = _mm512_setzero_ps();
  for (size_t i = 0; i < count; i += LANES) {
    const __mmask16 lanes = first_lanes(count - i);
    sums = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes, first + i), widened(second + i, lanes), sums);
  }
  return _mm512_reduce_add_ps(sums);
}

void store_rows(const float* from, size_t rows, size_t features, size_t step, uint16_t* to, size_t to_step) {
  for (size_t row = 0; row < rows; ++row) {
    store_row(from + row * step, features, 1.0f, to + row * to_step);
  }
}

// Adds a block's part of the gradients of keys or values: the products of `by_key`, words of two queries [pairs][keys],
// and `by_feature` [pairs][features], summed over `count` queries. `sums` are [keys][features], with AMX
// [features][keys]: pairs of its left operand are contiguous, and `by_feature` is the smaller one to transpose.
AVX512_BF16 void add_product(const Padded& wide, uint32_t* by_key, const uint32_t* by_feature, size_t count,
                             size_t columns, uint32_t* turned, float* sums) {
  const size_t row_step = wide.tile_row, pairs = padded(count, wide.query_step) / 2;
  if (!wide.amx) {
    tiles::product<true>({by_key, 1, row_step}, {by_feature, wide.features}, {sums, wide.features}, columns,
                         wide.features, pairs);
    return;
  }
  for (size_t pair = padded(count, 2) / 2; pair < pairs; ++pair) {
    std::fill(by_key + pair * row_step, by_key + pair * row_step + columns, 0);
  }
  transpose(by_feature, wide.features, pairs, wide.features, turned, pairs);
  amx::product<true>({turned, pairs, 1}, {by_key, row_step}, {sums, row_step}, wide.features, columns, pairs);
}

AVX512_BF16 void backward_head(const Part& args, const Gradients& gradients, const Padded& wide, size_t number,
                               Workspace space) {
  const size_t words = wide.features / 2, tile = wide.tile, row_step = wide.tile_row;
  const Sizes& sizes = args.sizes;
  uint16_t* packed = space.take<uint16_t>(wide.rows * wide.features);
  uint32_t* keys = space.take<uint32_t>(row_step * words);      // pairs of features
  uint32_t* key_pairs = space.take<uint32_t>(row_step * words); // pairs of keys
  uint32_t* values = space.take<uint32_t>(row_step * words);    // pairs of features
  float* key_gradients = space.take<float>(row_step * wide.features);
  float* value_gradients = space.take<float>(row_step * wide.features);
  // Only with AMX. On a Zen 4, unused memory in this place makes the pass 3 to 5% slower, from 1,024 keys on.
  float* turned_gradients = space.take<float>(wide.amx ? row_step * wide.features : 0);
  float* query_gradients = space.take<float>(summed_queries(sizes, wide) * wide.features);
  uint16_t* out_gradients = space.take<uint16_t>(wide.most_queries * wide.features);
  uint32_t* query_pairs = space.take<uint32_t>(wide.most_queries * words);
  uint32_t* out_gradient_pairs = space.take<uint32_t>(wide.most_queries * words);
  uint32_t* turned = space.take<uint32_t>(wide.amx ? wide.most_queries * words : 0);
  float* products = space.take<float>(wide.most_queries * row_step);
  float* weight_gradients = space.take<float>(wide.most_queries * row_step);
  uint32_t* weights = space.take<uint32_t>(wide.most_queries * row_step / 2);
  uint32_t* score_gradients = space.take<uint32_t>(wide.most_queries * row_step / 2);
  uint16_t* score_gradient_rows = space.take<uint16_t>(wide.most_queries * row_step);
  const auto recompute = RECOMPUTE[args.mask.type];

  for (size_t key = 0; key < sizes.keys; key += tile) {
    const size_t key_count = std::min(tile, sizes.keys - key), key_rows = padded(key_count, wide.step);
    pack(args.shared_head(args.key, number, key), args.key.row_step, key_count, key_rows, sizes.features,
         wide.features, packed);
    transpose(reinterpret_cast<uint32_t*>(packed), words, key_rows, words, keys, row_step);
    interleave(packed, key_rows, wide.features, key_pairs);
    pack(args.shared_head(args.value, number, key), args.value.row_step, key_count, key_rows, sizes.features,
         wide.features, packed);
    transpose(reinterpret_cast<uint32_t*>(packed), words, key_rows, words, values, row_step);
    std::fill(key_gradients, key_gradients + row_step * wide.features, 0.0f);
    std::fill(value_gradients, value_gradients + row_step * wide.features, 0.0f);

    // Causal: queries before the tile attend to none of its keys.
    const size_t start = args.causal ? key / wide.most_queries * wide.most_queries : 0;
    for (size_t first = start; first < sizes.queries; first += wide.most_queries) {
      const size_t count = std::min(wide.most_queries, sizes.queries - first);
      const size_t query_rows = padded(count, wide.query_step);
      const size_t seen = args.visible(first + count - 1); // of all keys
      if (seen <= key) {
        continue;
      }
      const size_t columns = padded(std::min(seen - key, key_count), wide.step);
      pack(args.head(args.query, number, first), args.query.row_step, count, query_rows, sizes.features, wide.features,
           packed);
      pack(args.head(gradients.out, number, first), gradients.out.row_step, count, query_rows, sizes.features,
           wide.features, out_gradients);
      interleave(packed, query_rows, wide.features, query_pairs);
      interleave(out_gradients, query_rows, wide.features, out_gradient_pairs);
      wide.product<false>({reinterpret_cast<uint32_t*>(packed), words, 1}, {keys, row_step}, {products, row_step},
                          query_rows, columns, words);
      wide.product<false>({reinterpret_cast<uint32_t*>(out_gradients), words, 1}, {values, row_step},
                          {weight_gradients, row_step}, query_rows, columns, words);
      for (size_t row = 0; row < count; row += 2) {
        BackwardRow rows[2];
        for (size_t each = row; each < row + 2; ++each) {
          BackwardRow& one = rows[each - row];
          one.products = products + each * row_step;
          one.gradients = weight_gradients + each * row_step;
          const bool is_query = each < count; // or completes the last pair, with weights of zero
          const size_t visible = is_query ? args.visible(first + each) : 0;
          one.visible = visible > key ? std::min(visible - key, key_count) : 0;
          one.mask = is_query ? args.mask_row(number, first + each, key) : nullptr;
          one.softmax = is_query ? args.softmax_of(number, first + each) : Softmax{};
          one.first_block = args.first_block(number, first + each, wide) + key / philox::BLOCK;
          one.sum = recompute(one, columns, args.scale, args.rule);
          if (is_query && sizes.keys > tile) { // of all tiles
            const float* out = args.head<float>(args.wide_out, number, first + each);
            one.sum = dot(out, out_gradients + each * wide.features, sizes.features) / args.rule.scale;
          }
        }
        differentiate(rows, columns, row_step, args.scale, args.rule.scale, weights + row / 2 * row_step,
                      score_gradients + row / 2 * row_step, score_gradient_rows + row * row_step);
      }
      const tiles::Left left{reinterpret_cast<uint32_t*>(score_gradient_rows), row_step / 2, 1};
      const tiles::Sums sums{query_gradients + (sizes.keys > tile ? first * wide.features : 0), wide.features};
      (wide.*(key == 0 ? &Padded::product<false> : &Padded::product<true>))(left, {key_pairs, wide.features}, sums,
                                                                            query_rows, wide.features, columns / 2);
      if (key + key_count >= seen) { // the last tile that these queries attend to
        store_rows(sums.values, count, sizes.features, wide.features, args.head(gradients.query, number, first),
                   gradients.query.row_step);
      }
      add_product(wide, weights, out_gradient_pairs, count, columns, turned, value_gradients);
      add_product(wide, score_gradients, query_pairs, count, columns, turned, key_gradients);
    }
    if (wide.amx) {
      for (float** gradients : {&key_gradients, &value_gradients}) {
        transpose(reinterpret_cast<uint32_t*>(*gradients), row_step, wide.features, key_rows,
                  reinterpret_cast<uint32_t*>(turned_gradients), wide.features);
        std::swap(*gradients, turned_gradients);
      }
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
  return for_each_head(*args, bytes_backward, [&](const Part& part, const Padded& wide, size_t number, Workspace space) {
    backward_head(part, *gradients, wide, number, space);
  });
}

// Attention in float32 of rows that are end to end, with or without dropout: the algorithm of attention_bf16.hpp
// without rounding. One block of queries at a time is multiplied with all keys of its row.

#include "attention_bf16.hpp"
#include "tiles_float32.hpp"

using namespace attention;
using tiles32::product;

namespace {

// How many numbers apart two rows of scores, or of transposed keys, are in memory: an odd number of vectors. Rows that
// are a multiple of 1,024 numbers apart would compete for one set of the cache.
size_t row_step(const Padded& wide) {
  return wide.keys | LANES;
}

// Copies the rows of one head. Rows from `count` to `rows` and features from `features` to `wide` are zero.
AVX512 void copy_rows(const float* from, size_t step, size_t count, size_t rows, size_t features, size_t wide,
                      float* to) {
  for (size_t row = 0; row < rows; ++row, to += wide) {
    for (size_t i = 0; i < wide; i += LANES) {
      const __mmask16 lanes = row < count ? lanes_before(features, i) : 0;
      _mm512_storeu_ps(to + i, _mm512_maskz_loadu_ps(lanes, from + row * step + i));
    }
  }
}

// Multiplies the rows of one head by `factors`, or by 1, and writes them to a tensor.
AVX512 void write_rows(const float* from, size_t wide, size_t count, size_t features, const float* factors, float* to,
                       size_t step) {
  for (size_t row = 0; row < count; ++row) {
    const __m512 factor = _mm512_set1_ps(factors == nullptr ? 1.0f : factors[row]);
    for (size_t i = 0; i < features; i += LANES) {
      const __m512 value = _mm512_mul_ps(_mm512_loadu_ps(from + row * wide + i), factor);
      _mm512_mask_storeu_ps(to + row * step + i, first_lanes(features - i), value);
    }
  }
}

// The keys or values of one head, [key][feature] in `rows` and [feature][key] in `turned`.
void copy_turned(const Part& args, const Tensor& tensor, const Padded& wide, size_t number, float* rows,
                 float* turned) {
  copy_rows(args.shared_head<float>(tensor, number, 0), tensor.row_step, args.sizes.keys, wide.keys,
            args.sizes.features, wide.features, rows);
  transpose(reinterpret_cast<uint32_t*>(rows), wide.features, wide.keys, wide.features,
            reinterpret_cast<uint32_t*>(turned), row_step(wide));
}

// Turns one row of products into exponentials, of which dropout keeps some.
AVX512 Softmax softmax(float* scores, size_t visible, size_t columns, float scale, uint64_t first_block,
                       const dropout::Rule& rule) {
  const __m512 factor = _mm512_set1_ps(scale), lowest = _mm512_set1_ps(masks::HIDDEN);
  __m512 highest = lowest;
  for (size_t i = 0; i < columns; i += LANES) {
    const __m512 product = _mm512_mul_ps(_mm512_loadu_ps(scores + i), factor);
    const __m512 score = _mm512_mask_mov_ps(lowest, lanes_before(visible, i), product);
    highest = _mm512_max_ps(highest, score);
    _mm512_storeu_ps(scores + i, score);
  }
  const float top = _mm512_reduce_max_ps(highest);
  const __m512 shift = _mm512_set1_ps(top);
  __m512 sums = _mm512_setzero_ps();
  for (size_t start = 0, block = first_block; start < columns; start += philox::BLOCK, ++block) {
    const uint64_t kept = dropout::kept(block, rule);
    for (size_t part = 0; part < philox::BLOCK && start + part < columns; part += LANES) {
      float* const place = scores + start + part;
      const __m512 value = exp_of(_mm512_sub_ps(_mm512_loadu_ps(place), shift));
      sums = _mm512_add_ps(sums, value);
      _mm512_storeu_ps(place, _mm512_maskz_mov_ps(static_cast<__mmask16>(kept >> part), value));
    }
  }
  return {top, 1 / _mm512_reduce_add_ps(sums)};
}

size_t bytes_forward(const Sizes&, const Padded& wide) {
  return (2 * wide.keys * wide.features + wide.features * row_step(wide) + wide.queries * wide.features +
          wide.queries * row_step(wide)) * sizeof(float) + 64 * 8;
}

void forward_head(const Part& args, const Padded& wide, size_t number, Workspace space) {
  const Sizes& sizes = args.sizes;
  const size_t step = row_step(wide);
  float* rows = space.take<float>(wide.keys * wide.features);
  float* keys = space.take<float>(wide.features * step); // [feature][key]
  float* values = space.take<float>(wide.keys * wide.features);
  float* output = space.take<float>(wide.queries * wide.features);
  float* scores = space.take<float>(wide.queries * step);

  copy_turned(args, args.key, wide, number, rows, keys);
  copy_rows(args.shared_head<float>(args.value, number, 0), args.value.row_step, sizes.keys, wide.keys, sizes.features,
            wide.features, values);
  for (size_t first = 0; first < sizes.queries; first += wide.queries) {
    const size_t count = std::min(wide.queries, sizes.queries - first), seen = args.visible(first + count - 1);
    const size_t columns = padded(seen, LANES);
    product<false>({args.head<float>(args.query, number, first), args.query.row_step, 1}, {keys, step}, {scores, step},
                   count, columns, sizes.features);
    float factors[QUERIES];
    for (size_t row = 0; row < count; ++row) {
      Softmax& found = args.softmax_of(number, first + row);
      found = softmax(scores + row * step, args.visible(first + row), columns, args.scale,
                      args.first_block(number, first + row, wide), args.rule);
      factors[row] = args.rule.scale * found.inverse_sum;
    }
    product<false>({scores, step, 1}, {values, wide.features}, {output, wide.features}, count, wide.features, seen);
    write_rows(output, wide.features, count, sizes.features, factors, args.head<float>(args.out, number, first),
               args.out.row_step);
  }
}

struct Gradients {
  Tensor out; // an input
  Tensor query, key, value;
};

// Turns one row of products into weights, and the gradients of these weights into those of the products. Between the
// two passes, `products` are the probabilities, with the sign set on dropped ones.
AVX512 void differentiate(float* products, float* gradients, size_t visible, size_t columns, float scale,
                          const Softmax& softmax, uint64_t first_block, const dropout::Rule& rule) {
  const __m512 factor = _mm512_set1_ps(scale), sign = _mm512_set1_ps(-0.0f);
  const __m512 shift = _mm512_set1_ps(softmax.highest), inverse_sum = _mm512_set1_ps(softmax.inverse_sum);
  __m512 sums = _mm512_setzero_ps();
  for (size_t start = 0, block = first_block; start < columns; start += philox::BLOCK, ++block) {
    const uint64_t kept = dropout::kept(block, rule);
    for (size_t part = 0; part < philox::BLOCK && start + part < columns; part += LANES) {
      const size_t i = start + part;
      const __mmask16 lanes = lanes_before(visible, i), keeps = static_cast<__mmask16>(kept >> part);
      const __m512 score = _mm512_mul_ps(_mm512_loadu_ps(products + i), factor);
      const __m512 power = exp_of(_mm512_sub_ps(score, shift));
      const __m512 probability = _mm512_maskz_mul_ps(lanes, power, inverse_sum);
      const __m512 through = _mm512_maskz_loadu_ps(lanes & keeps, gradients + i);
      sums = _mm512_fmadd_ps(probability, through, sums);
      _mm512_storeu_ps(products + i, _mm512_mask_or_ps(probability, static_cast<__mmask16>(~keeps), probability, sign));
      _mm512_storeu_ps(gradients + i, through);
    }
  }
  const __m512 sum = _mm512_set1_ps(_mm512_reduce_add_ps(sums));
  const __m512 kept_factor = _mm512_set1_ps(rule.scale), both = _mm512_set1_ps(rule.scale * scale);
  for (size_t i = 0; i < columns; i += LANES) {
    const __m512 marked = _mm512_loadu_ps(products + i), through = _mm512_loadu_ps(gradients + i);
    const auto keeps = static_cast<__mmask16>(~_mm512_movepi32_mask(_mm512_castps_si512(marked)));
    _mm512_storeu_ps(products + i, _mm512_maskz_mul_ps(keeps, marked, kept_factor));
    _mm512_storeu_ps(gradients + i,
                     _mm512_mul_ps(_mm512_mul_ps(_mm512_abs_ps(marked), _mm512_sub_ps(through, sum)), both));
  }
}

size_t bytes_backward(const Sizes&, const Padded& wide) {
  return (4 * wide.keys * wide.features + 2 * wide.features * row_step(wide) + 3 * wide.queries * wide.features +
          2 * wide.queries * row_step(wide)) * sizeof(float) + 64 * 12;
}

void backward_head(const Part& args, const Gradients& gradients, const Padded& wide, size_t number, Workspace space) {
  const Sizes& sizes = args.sizes;
  const size_t step = row_step(wide), features = wide.features;
  float* value_rows = space.take<float>(wide.keys * features);
  float* key_rows = space.take<float>(wide.keys * features);
  float* keys = space.take<float>(features * step);   // [feature][key]
  float* values = space.take<float>(features * step); // [feature][key]
  float* key_gradients = space.take<float>(wide.keys * features);
  float* value_gradients = space.take<float>(wide.keys * features);
  float* queries = space.take<float>(wide.queries * features);
  float* out_gradients = space.take<float>(wide.queries * features);
  float* query_gradients = space.take<float>(wide.queries * features);
  float* weights = space.take<float>(wide.queries * step);
  float* score_gradients = space.take<float>(wide.queries * step);

  copy_turned(args, args.key, wide, number, key_rows, keys);
  copy_turned(args, args.value, wide, number, value_rows, values);
  std::fill(key_gradients, key_gradients + wide.keys * features, 0.0f);
  std::fill(value_gradients, value_gradients + wide.keys * features, 0.0f);
  for (size_t first = 0; first < sizes.queries; first += wide.queries) {
    const size_t count = std::min(wide.queries, sizes.queries - first), seen = args.visible(first + count - 1);
    const size_t columns = padded(seen, LANES);
    copy_rows(args.head<float>(args.query, number, first), args.query.row_step, count, count, sizes.features, features,
              queries);
    copy_rows(args.head<float>(gradients.out, number, first), gradients.out.row_step, count, count, sizes.features,
              features, out_gradients);
    product<false>({queries, features, 1}, {keys, step}, {weights, step}, count, columns, sizes.features);
    product<false>({out_gradients, features, 1}, {values, step}, {score_gradients, step}, count, columns,
                   sizes.features);
    for (size_t row = 0; row < count; ++row) {
      differentiate(weights + row * step, score_gradients + row * step, args.visible(first + row), columns, args.scale,
                    args.softmax_of(number, first + row), args.first_block(number, first + row, wide), args.rule);
    }
    product<false>({score_gradients, step, 1}, {key_rows, features}, {query_gradients, features}, count, features,
                   seen);
    write_rows(query_gradients, features, count, sizes.features, nullptr,
               args.head<float>(gradients.query, number, first), gradients.query.row_step);
    product<true>({score_gradients, 1, step}, {queries, features}, {key_gradients, features}, seen, features, count);
    product<true>({weights, 1, step}, {out_gradients, features}, {value_gradients, features}, seen, features, count);
  }
  write_rows(key_gradients, features, sizes.keys, sizes.features, nullptr,
             args.head<float>(gradients.key, number, 0), gradients.key.row_step);
  write_rows(value_gradients, features, sizes.keys, sizes.features, nullptr,
             args.head<float>(gradients.value, number, 0), gradients.value.row_step);
}

} // namespace

// Tensors are [1, head, token, feature] of float32. Returns 0, or the number of bytes that a thread could not allocate,
// in which case there is no result.
EXPORT size_t attention_float32_rows_forward(const Attention* args) {
  return for_each_head(*args, bytes_forward, forward_head);
}

EXPORT size_t attention_float32_rows_backward(const Attention* args, const Gradients* gradients) {
  const auto work = [&](const Part& part, const Padded& wide, size_t number, Workspace space) {
    backward_head(part, *gradients, wide, number, space);
  };
  return for_each_head(*args, bytes_backward, work);
}

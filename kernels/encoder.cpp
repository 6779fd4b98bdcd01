// The parts of an encoder's layer between its matrix products, each in one pass over its tensors: dropout, the sum
// with the residual stream and LayerNorm; the gradient of the stream; GELU. They compute in float32, and round each
// result once.

#include <algorithm>
#include <cmath>

#include "dropout_rule.hpp"
#include "numbers.hpp"

namespace {

// Rows whose gradients of weight and bias are summed together: the result does not depend on the number of threads.
constexpr size_t GROUP = 32;
// Rows that a thread takes at a time in the forward pass.
constexpr size_t FORWARD_GROUP = 4;

// Which elements of a tensor dropout keeps, asked for in the order of their positions.
class Kept {
public:
  explicit Kept(const dropout::Rule& rule) : rule(rule) {}

  // Of the sixteen elements from `position` on.
  AVX512 __mmask16 at(size_t position) {
    if (rule.threshold == 0) {
      return 0xFFFF;
    }
    const size_t block = position / philox::BLOCK, shift = position % philox::BLOCK;
    uint64_t found = of(block) >> shift;
    if (shift > philox::BLOCK - LANES) {
      found |= of(block + 1) << (philox::BLOCK - shift);
    }
    return static_cast<__mmask16>(found);
  }

private:
  AVX512 uint64_t of(size_t block) {
    if (block != current) {
      bits = dropout::kept(block, rule);
      current = block;
    }
    return bits;
  }

  const dropout::Rule& rule;
  size_t current = ~size_t{0};
  uint64_t bits = 0;
};

// See entrypoints/cpu_train_stack/operators/encoder.py. `added`, `stream`, `centred` and the results are [rows, features].
struct Sum {
  Numbers added;
  const float* stream;
  const float *weight, *bias;
  float* centred; // the sum minus its mean, divided by its standard deviation
  float* inverses; // of the standard deviation of each row
  float* out;
  uint16_t* narrow; // the same as `out` in bfloat16, or null
  uint16_t* kept; // one bit for each element, [rows, vectors of a row]
  size_t rows, features;
  dropout::Rule rule;
  float epsilon;
};

uint16_t* kept_of(const Sum& sum, size_t row) {
  return sum.kept + row * ((sum.features + LANES - 1) / LANES);
}

AVX512 void forward_row(const Sum& sum, size_t row, Kept& kept) {
  const size_t first = row * sum.features;
  uint16_t* bits = kept_of(sum, row);
  float* centred = sum.centred + first;
  const __m512 scale = _mm512_set1_ps(sum.rule.scale);
  __m512 total = _mm512_setzero_ps(), squares = total;
  for (size_t i = 0; i < sum.features; i += LANES) {
    const __mmask16 lanes = first_lanes(sum.features - i);
    __m512 value = load(sum.added, first + i, lanes);
    bits[i / LANES] = kept.at(first + i);
    value = _mm512_maskz_mul_ps(bits[i / LANES], value, scale);
    value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(lanes, sum.stream + first + i));
    total = _mm512_add_ps(total, value);
    _mm512_mask_storeu_ps(centred + i, lanes, value);
  }
  const float count = static_cast<float>(sum.features);
  const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(total) / count);
  for (size_t i = 0; i < sum.features; i += LANES) {
    const __mmask16 lanes = first_lanes(sum.features - i);
    const __m512 value = _mm512_maskz_sub_ps(lanes, _mm512_maskz_loadu_ps(lanes, centred + i), mean);
    squares = _mm512_fmadd_ps(value, value, squares);
    _mm512_mask_storeu_ps(centred + i, lanes, value);
  }
  sum.inverses[row] = 1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / count + sum.epsilon);
  const __m512 inverse = _mm512_set1_ps(sum.inverses[row]);
  for (size_t i = 0; i < sum.features; i += LANES) {
    const __mmask16 lanes = first_lanes(sum.features - i);
    const __m512 value = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, centred + i), inverse);
    _mm512_mask_storeu_ps(centred + i, lanes, value);
    const __m512 weight = _mm512_maskz_loadu_ps(lanes, sum.weight + i);
    const __m512 out = _mm512_fmadd_ps(value, weight, _mm512_maskz_loadu_ps(lanes, sum.bias + i));
    _mm512_mask_storeu_ps(sum.out + first + i, lanes, out);
    if (sum.narrow) {
      _mm512_mask_cvtepi32_storeu_epi16(sum.narrow + first + i, lanes, narrow(out));
    }
  }
}

// What forward_row writes to `narrow`, from `centred`.
AVX512 void narrow_row(const Sum& sum, size_t row) {
  const size_t first = row * sum.features;
  for (size_t i = 0; i < sum.features; i += LANES) {
    const __mmask16 lanes = first_lanes(sum.features - i);
    const __m512 value = _mm512_maskz_loadu_ps(lanes, sum.centred + first + i);
    const __m512 weight = _mm512_maskz_loadu_ps(lanes, sum.weight + i);
    const __m512 out = _mm512_fmadd_ps(value, weight, _mm512_maskz_loadu_ps(lanes, sum.bias + i));
    _mm512_mask_cvtepi32_storeu_epi16(sum.narrow + first + i, lanes, narrow(out));
  }
}

// The gradient with respect to `out`, and those that the kernel writes, where they are not null.
struct SumGradients {
  const float* out;
  Numbers added;
  float* stream;
  float *weight, *bias; // [groups, features], zeros; both or neither
};

// With h the centred row of standard deviation s, and g = w dy: dx = (g - mean(g) - h mean(g h)) / s, dw = h dy.
AVX512 void backward_row(const Sum& sum, const SumGradients& found, size_t row, size_t group) {
  const size_t first = row * sum.features;
  const uint16_t* kept = kept_of(sum, row);
  const float *outer = found.out + first, *centred = sum.centred + first;
  float* weight = found.weight ? found.weight + group * sum.features : nullptr;
  float* bias = found.weight ? found.bias + group * sum.features : nullptr;
  __m512 total = _mm512_setzero_ps(), products = total;
  for (size_t i = 0; i < sum.features; i += LANES) {
    const __mmask16 lanes = first_lanes(sum.features - i);
    const __m512 by_out = _mm512_maskz_loadu_ps(lanes, outer + i);
    const __m512 value = _mm512_maskz_loadu_ps(lanes, centred + i);
    const __m512 gradient = _mm512_mul_ps(by_out, _mm512_maskz_loadu_ps(lanes, sum.weight + i));
    total = _mm512_add_ps(total, gradient);
    products = _mm512_fmadd_ps(gradient, value, products);
    if (weight) {
      const __m512 before = _mm512_maskz_loadu_ps(lanes, weight + i);
      _mm512_mask_storeu_ps(weight + i, lanes, _mm512_fmadd_ps(by_out, value, before));
      _mm512_mask_storeu_ps(bias + i, lanes, _mm512_add_ps(by_out, _mm512_maskz_loadu_ps(lanes, bias + i)));
    }
  }
  const float count = static_cast<float>(sum.features);
  const __m512 inverse = _mm512_set1_ps(sum.inverses[row]), scale = _mm512_set1_ps(sum.rule.scale);
  const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(total) / count);
  const __m512 slope = _mm512_set1_ps(_mm512_reduce_add_ps(products) / count);
  for (size_t i = 0; i < sum.features; i += LANES) {
    const __mmask16 lanes = first_lanes(sum.features - i);
    const __m512 value = _mm512_maskz_loadu_ps(lanes, centred + i);
    const __m512 by_out = _mm512_maskz_loadu_ps(lanes, outer + i);
    const __m512 shift = _mm512_fmadd_ps(value, slope, mean);
    __m512 gradient = _mm512_fmsub_ps(by_out, _mm512_maskz_loadu_ps(lanes, sum.weight + i), shift);
    gradient = _mm512_mul_ps(gradient, inverse);
    if (found.stream) {
      _mm512_mask_storeu_ps(found.stream + first + i, lanes, gradient);
    }
    if (found.added.values) {
      const __m512 dropped = _mm512_maskz_mul_ps(kept[i / LANES], gradient, scale);
      store(found.added, first + i, lanes, dropped);
    }
  }
}

template <typename Row>
void in_groups(const Sum& sum, size_t size, Row row) {
  const size_t groups = (sum.rows + size - 1) / size;
#pragma omp parallel for schedule(static) if (sum.rows * sum.features > FEW)
  for (size_t group = 0; group < groups; ++group) {
    Kept kept(sum.rule);
    for (size_t i = group * size; i < std::min(group * size + size, sum.rows); ++i) {
      row(i, kept, group);
    }
  }
}

constexpr size_t MOST = 8;

// `out` is the sum of the `count` tensors.
struct Total {
  Numbers parts[MOST];
  size_t count;
  float* out;
};

AVX512 void add(const Total& total, Range range) {
  for (size_t i = range.first; i < range.end; i += LANES) {
    const __mmask16 lanes = first_lanes(range.end - i);
    __m512 value = load(total.parts[0], i, lanes);
    for (size_t part = 1; part < total.count; ++part) {
      value = _mm512_add_ps(value, load(total.parts[part], i, lanes));
    }
    _mm512_mask_storeu_ps(total.out + i, lanes, value);
  }
}

// exp(-x^2 / 2) as a power of two, with a relative error below 1e-5: its logarithm is an integer, and a rest whose
// power is a polynomial. Below 2^-120, the result is 0.
AVX512 inline __m512 bell(__m512 x) {
  const __m512 logarithm = _mm512_mul_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(-0.5f * 1.44269504f));
  const __mmask16 is_normal = _mm512_cmp_ps_mask(logarithm, _mm512_set1_ps(-120.0f), _CMP_NLT_UQ); // or NaN
  const __m512 n = _mm512_roundscale_ps(logarithm, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(logarithm, n);
  __m512 p = _mm512_set1_ps(0.00966637f);
  for (float coefficient : {0.05592198f, 0.24022349f, 0.69312105f, 1.0f}) {
    p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(coefficient));
  }
  return _mm512_maskz_scalef_ps(is_normal, p, n);
}

// The distribution function of the normal distribution, by formula 7.1.26 of Abramowitz and Stegun, with an absolute
// error below 1e-5, and a relative one below 1e-4 above x = -3. `power` is bell(x).
AVX512 inline __m512 normal(__m512 x, __m512 power) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 scale = _mm512_set1_ps(0.3275911f * 0.707106781f);
  const __m512 t = _mm512_rcp14_ps(_mm512_fmadd_ps(_mm512_abs_ps(x), scale, one));
  __m512 p = _mm512_set1_ps(0.5f * 1.061405429f);
  for (float coefficient : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) {
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.5f * coefficient));
  }
  const __m512 tail = _mm512_mul_ps(_mm512_mul_ps(p, t), power);
  const __mmask16 is_positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NLT_UQ);
  return _mm512_mask_sub_ps(tail, is_positive, one, tail);
}

AVX512 void activate(const uint16_t* in, uint16_t* out, Range range) {
  for (size_t i = range.first; i < range.end; i += LANES) {
    const __mmask16 lanes = first_lanes(range.end - i);
    const __m512 x = widened(in + i, lanes);
    const __m512 value = _mm512_mul_ps(x, normal(x, bell(x)));
    _mm512_mask_cvtepi32_storeu_epi16(out + i, lanes, narrow(value));
  }
}

AVX512 void activate_backward(const uint16_t* in, const uint16_t* outer, uint16_t* found, Range range) {
  const __m512 factor = _mm512_set1_ps(0.398942280f); // 1 / sqrt(2 pi)
  for (size_t i = range.first; i < range.end; i += LANES) {
    const __mmask16 lanes = first_lanes(range.end - i);
    const __m512 x = widened(in + i, lanes), power = bell(x);
    const __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(x, power), factor, normal(x, power));
    const __m512 value = _mm512_mul_ps(widened(outer + i, lanes), slope);
    _mm512_mask_cvtepi32_storeu_epi16(found + i, lanes, narrow(value));
  }
}

} // namespace

EXPORT void sum_forward(const Sum* sum) {
  in_groups(*sum, FORWARD_GROUP, [=](size_t row, Kept& kept, size_t) { forward_row(*sum, row, kept); });
}

EXPORT void sum_narrow(const Sum* sum) {
  in_groups(*sum, GROUP, [=](size_t row, Kept&, size_t) { narrow_row(*sum, row); });
}

EXPORT void sum_backward(const Sum* sum, const SumGradients* gradients) {
  in_groups(*sum, GROUP, [=](size_t row, Kept&, size_t group) { backward_row(*sum, *gradients, row, group); });
}

EXPORT void total_of(const Total* total, size_t count) {
  in_ranges(count, [=](Range range) { add(*total, range); });
}

// GELU of bfloat16 numbers.
EXPORT void gelu_forward(const uint16_t* in, uint16_t* out, size_t count) {
  in_ranges(count, [=](Range range) { activate(in, out, range); });
}

EXPORT void gelu_backward(const uint16_t* in, const uint16_t* outer, uint16_t* found, size_t count) {
  in_ranges(count, [=](Range range) { activate_backward(in, outer, found, range); });
}

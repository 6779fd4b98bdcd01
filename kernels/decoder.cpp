// The parts of a decoder's layer between its matrix products, each in one pass over its tensors: the sum of the
// residual stream with RMSNorm, rotary embeddings, and SwiGLU. They compute in float32, and round each result once.

#include <cmath>

#include "numbers.hpp"

namespace {

// Rows whose gradients of the weight are summed together: the result does not depend on the number of threads.
constexpr size_t GROUP = 32;

// The value as it is stored.
AVX512 inline __m512 rounded(const Numbers& as, __m512 value) {
  return as.is_narrow ? _mm512_castsi512_ps(_mm512_slli_epi32(narrow(value), 16)) : value;
}

// See entrypoints/cpu_train_stack/operators/decoder.py. `stream`, `added`, `sum` and `out` are [rows, features].
struct Norm {
  Numbers stream, added, sum, weight, out;
  float* inverses; // of the root mean square of each row
  size_t rows, features;
  float epsilon;
};

// The gradients with respect to `sum` and `out`, and those that the kernel writes.
struct NormGradients {
  Numbers sum, out, stream, added;
  float* weight; // [groups, features], zeros, or null
};

AVX512 void forward_row(const Norm& norm, size_t row) {
  const size_t first = row * norm.features;
  const Numbers& stream = norm.added.values ? norm.sum : norm.stream;
  __m512 squares = _mm512_setzero_ps();
  for (size_t i = 0; i < norm.features; i += LANES) {
    const __mmask16 lanes = first_lanes(norm.features - i);
    __m512 value = load(norm.stream, first + i, lanes);
    if (norm.added.values) {
      value = rounded(norm.sum, _mm512_add_ps(value, load(norm.added, first + i, lanes)));
      store(norm.sum, first + i, lanes, value);
    }
    squares = _mm512_fmadd_ps(value, value, squares);
  }
  const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(norm.features);
  norm.inverses[row] = 1.0f / std::sqrt(mean + norm.epsilon);
  const __m512 inverse = _mm512_set1_ps(norm.inverses[row]);
  for (size_t i = 0; i < norm.features; i += LANES) {
    const __mmask16 lanes = first_lanes(norm.features - i);
    const __m512 value = _mm512_mul_ps(load(stream, first + i, lanes), inverse);
    store(norm.out, first + i, lanes, _mm512_mul_ps(value, load(norm.weight, i, lanes)));
  }
}

// With y = w x / r, r the root of the mean of x^2: dx = (w dy - x mean(w dy x) / r^2) / r, dw = dy x / r.
AVX512 void backward_row(const Norm& norm, const NormGradients& found, size_t row, float* weight) {
  const size_t first = row * norm.features;
  const Numbers& stream = norm.added.values ? norm.sum : norm.stream;
  __m512 products = _mm512_setzero_ps();
  for (size_t i = 0; i < norm.features; i += LANES) {
    const __mmask16 lanes = first_lanes(norm.features - i);
    const __m512 gradient = _mm512_mul_ps(load(found.out, first + i, lanes), load(norm.weight, i, lanes));
    products = _mm512_fmadd_ps(gradient, load(stream, first + i, lanes), products);
  }
  const float inverse = norm.inverses[row];
  const float mean = _mm512_reduce_add_ps(products) / static_cast<float>(norm.features);
  const __m512 factor = _mm512_set1_ps(inverse), shift = _mm512_set1_ps(mean * inverse * inverse);
  for (size_t i = 0; i < norm.features; i += LANES) {
    const __mmask16 lanes = first_lanes(norm.features - i);
    const __m512 outer = load(found.out, first + i, lanes), value = load(stream, first + i, lanes);
    __m512 gradient = _mm512_mul_ps(outer, load(norm.weight, i, lanes));
    gradient = _mm512_mul_ps(_mm512_fnmadd_ps(value, shift, gradient), factor);
    if (found.sum.values) {
      gradient = _mm512_add_ps(gradient, load(found.sum, first + i, lanes));
    }
    store(found.stream, first + i, lanes, gradient);
    if (found.added.values) {
      store(found.added, first + i, lanes, gradient);
    }
    if (weight) {
      const __m512 sum = _mm512_maskz_loadu_ps(lanes, weight + i);
      _mm512_mask_storeu_ps(
          weight + i, lanes, _mm512_fmadd_ps(_mm512_mul_ps(outer, value), factor, sum));
    }
  }
}

// 1 / (1 + exp(-x)).
AVX512 inline __m512 logistic(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 power = exp_of(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
  const __mmask16 is_negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  return _mm512_div_ps(_mm512_mask_mov_ps(one, is_negative, power), _mm512_add_ps(one, power));
}

AVX512 void add(const Numbers& stream, const Numbers& added, const Numbers& sum, Range range) {
  for (size_t i = range.first; i < range.end; i += LANES) {
    const __mmask16 lanes = first_lanes(range.end - i);
    store(sum, i, lanes, _mm512_add_ps(load(stream, i, lanes), load(added, i, lanes)));
  }
}

AVX512 void gate_forward(const Numbers& gate, const Numbers& up, const Numbers& out, Range range) {
  for (size_t i = range.first; i < range.end; i += LANES) {
    const __mmask16 lanes = first_lanes(range.end - i);
    const __m512 value = load(gate, i, lanes);
    store(out, i, lanes, _mm512_mul_ps(_mm512_mul_ps(value, logistic(value)), load(up, i, lanes)));
  }
}

// `gradients`: with respect to the output, the gate and the other factor.
AVX512 void gate_backward(const Numbers& gate, const Numbers& up, const Numbers* gradients, Range range) {
  const __m512 one = _mm512_set1_ps(1.0f);
  for (size_t i = range.first; i < range.end; i += LANES) {
    const __mmask16 lanes = first_lanes(range.end - i);
    const __m512 value = load(gate, i, lanes), share = logistic(value);
    const __m512 outer = load(gradients[0], i, lanes);
    const __m512 slope = _mm512_mul_ps(share, _mm512_fmadd_ps(value, _mm512_sub_ps(one, share), one));
    store(gradients[1], i, lanes, _mm512_mul_ps(_mm512_mul_ps(outer, load(up, i, lanes)), slope));
    store(gradients[2], i, lanes, _mm512_mul_ps(outer, _mm512_mul_ps(value, share)));
  }
}

// Queries or keys [batches, heads, tokens, features] with the steps of the first three sizes, and the cosines and
// sines [batches, tokens, features], of which the first step may be 0.
struct Rotation {
  Numbers in, out, cosines, sines;
  size_t sizes[4], in_steps[3], out_steps[3];
  size_t angle_step;
  uint32_t is_inverse; // the gradient: rotates in the other direction
};

AVX512 void rotate_row(const Rotation& of, size_t in, size_t out, size_t angle) {
  const size_t half = of.sizes[3] / 2;
  for (size_t i = 0; i < half; i += LANES) {
    const __mmask16 lanes = first_lanes(half - i);
    const __m512 a = load(of.in, in + i, lanes), b = load(of.in, in + half + i, lanes);
    __m512 first = _mm512_mul_ps(a, load(of.cosines, angle + i, lanes));
    __m512 second = _mm512_mul_ps(b, load(of.cosines, angle + half + i, lanes));
    const __m512 low = load(of.sines, angle + i, lanes), high = load(of.sines, angle + half + i, lanes);
    first = of.is_inverse ? _mm512_fmadd_ps(b, high, first) : _mm512_fnmadd_ps(b, low, first);
    second = of.is_inverse ? _mm512_fnmadd_ps(a, low, second) : _mm512_fmadd_ps(a, high, second);
    store(of.out, out + i, lanes, first);
    store(of.out, out + half + i, lanes, second);
  }
}

} // namespace

// Whether this CPU has the instructions of the kernels of layers.
EXPORT int layers_supported() {
  return philox::vectors() ? 1 : 0;
}

EXPORT void norm_forward(const Norm* norm) {
#pragma omp parallel for schedule(static) if (norm->rows * norm->features > FEW)
  for (size_t row = 0; row < norm->rows; ++row) {
    forward_row(*norm, row);
  }
}

EXPORT void norm_backward(const Norm* norm, const NormGradients* gradients) {
  const size_t groups = (norm->rows + GROUP - 1) / GROUP;
#pragma omp parallel for schedule(static) if (norm->rows * norm->features > FEW)
  for (size_t group = 0; group < groups; ++group) {
    float* weight = gradients->weight ? gradients->weight + group * norm->features : nullptr;
    for (size_t row = group * GROUP; row < std::min(group * GROUP + GROUP, norm->rows); ++row) {
      backward_row(*norm, *gradients, row, weight);
    }
  }
}

// sum = stream + added, [count].
EXPORT void add_forward(const Numbers* stream, const Numbers* added, const Numbers* sum, size_t count) {
  in_ranges(count, [=](Range range) { add(*stream, *added, *sum, range); });
}

// out = silu(gate) up, [count].
EXPORT void gated_forward(const Numbers* gate, const Numbers* up, const Numbers* out, size_t count) {
  in_ranges(count, [=](Range range) { gate_forward(*gate, *up, *out, range); });
}

EXPORT void gated_backward(const Numbers* gate, const Numbers* up, const Numbers* gradients, size_t count) {
  in_ranges(count, [=](Range range) { gate_backward(*gate, *up, gradients, range); });
}

EXPORT void rotated(const Rotation* rotation) {
  const size_t* sizes = rotation->sizes;
  const size_t tokens = sizes[0] * sizes[2];
#pragma omp parallel for schedule(static) if (tokens * sizes[1] * sizes[3] > FEW)
  for (size_t place = 0; place < tokens; ++place) {
    const size_t batch = place / sizes[2], token = place % sizes[2];
    const size_t angle = batch * rotation->angle_step + token * sizes[3];
    for (size_t head = 0; head < sizes[1]; ++head) {
      const size_t* in = rotation->in_steps;
      const size_t* out = rotation->out_steps;
      rotate_row(
          *rotation, batch * in[0] + head * in[1] + token * in[2], batch * out[0] + head * out[1] + token * out[2],
          angle);
    }
  }
}

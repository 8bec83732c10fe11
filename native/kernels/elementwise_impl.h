// Text of elementwise.h, once per instruction set. Included after simd/vec_*.h and simd/vec_math.h.
#pragma once

#include "elementwise.h"

namespace caudal {
namespace {

// A fixed order for every width: kLanes partial sums, then the tree of reduce_add.
inline float sum_of_squares(const float* x, int n) {
  VecF s = set1(0.0f);
  for (int i = 0; i < n; i += kLanes) {
    VecF v = load(x + i);
    s = fma(v, v, s);
  }
  return reduce_add(s);
}

void rms_norm(const float* x, const float* weight, float* out, int n, int group, float eps) {
  // A group narrower than its padding is the whole row, and the padding adds zeros to the sum.
  int step = group % 16 == 0 ? group : n;
  for (int g = 0; g < n; g += step) {
    float mean = sum_of_squares(x + g, step) / static_cast<float>(group);
    VecF scale = set1(1.0f / __builtin_sqrtf(mean + eps));
    for (int i = 0; i < step; i += kLanes) {
      VecF v = mul(load(x + g + i), scale);
      store(out + g + i, weight ? mul(v, load(weight + i)) : v);
    }
  }
}

// A fixed order for every width: 16 partial sums, column i in the i % 16th, then pairs of neighbours.
template <class Fn>
inline float sum_of_columns(int width, const Fn& fn) {
  float sums[16] = {};
  for (int i = 0; i < width; ++i) sums[i % 16] += fn(i);
  for (int step = 1; step < 16; step *= 2) {
    for (int i = 0; i < 16; i += 2 * step) sums[i] += sums[i + step];
  }
  return sums[0];
}

void layer_norm(const float* x, const float* weight, const float* bias, float* out, int width, float eps) {
  const auto n = static_cast<float>(width);
  const float mean = sum_of_columns(width, [&](int i) { return x[i]; }) / n;
  const float variance = sum_of_columns(width, [&](int i) { return (x[i] - mean) * (x[i] - mean); }) / n;
  const float scale = 1.0f / __builtin_sqrtf(variance + eps);
  for (int i = 0; i < width; ++i) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
  for (int i = width; i % 16 != 0; ++i) out[i] = 0.0f;
}

inline void rotate_halves(float* x, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; i += kLanes) {
    VecF a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(x + i, sub(mul(a, c), mul(b, s)));
    store(x + half + i, add(mul(b, c), mul(a, s)));
  }
}

inline void rotate_pairs(float* x, const float* cos, const float* sin, int begin, int half) {
  for (int i = begin; i < half; ++i) {
    float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

void rope(float* x, const float* cos, const float* sin, int num_heads, int head_size, int rotary, bool interleaved) {
  int half = rotary / 2;
  for (int h = 0; h < num_heads; ++h, x += head_size) {
    if (interleaved) {
      rotate_pairs(x, cos, sin, 0, half);
    } else if (half % kLanes == 0) {
      rotate_halves(x, cos, sin, half);
    } else {
      for (int i = 0; i < half; ++i) {
        float a = x[i], b = x[half + i];
        x[i] = a * cos[i] - b * sin[i];
        x[half + i] = b * cos[i] + a * sin[i];
      }
    }
  }
}

inline VecF silu(VecF x) { return div(x, add(set1(1.0f), exp(sub(set1(0.0f), x)))); }

// Hendrycks and Gimpel 2016, the tanh form.
inline VecF gelu_tanh(VecF x) {
  VecF cubic = mul(mul(mul(x, x), x), set1(0.044715f));
  VecF t = tanh(mul(set1(0.7978845608f), add(x, cubic)));
  return mul(mul(set1(0.5f), x), add(set1(1.0f), t));
}

void glu(const float* gate, const float* up, float* out, int n, GluActivation activation) {
  switch (activation) {
    case GluActivation::silu:
      for (int i = 0; i < n; i += kLanes) store(out + i, mul(silu(load(gate + i)), load(up + i)));
      return;
    case GluActivation::gelu_tanh:
      for (int i = 0; i < n; i += kLanes) store(out + i, mul(gelu_tanh(load(gate + i)), load(up + i)));
      return;
    case GluActivation::gelu:
      for (int i = 0; i < n; ++i) {
        out[i] = 0.5f * gate[i] * (1.0f + __builtin_erff(gate[i] * 0.70710678f)) * up[i];
      }
      return;
  }
}

void activate(const float* x, float* out, int n, GluActivation activation) {
  switch (activation) {
    case GluActivation::silu:
      for (int i = 0; i < n; i += kLanes) store(out + i, silu(load(x + i)));
      return;
    case GluActivation::gelu_tanh:
      for (int i = 0; i < n; i += kLanes) store(out + i, gelu_tanh(load(x + i)));
      return;
    case GluActivation::gelu:
      for (int i = 0; i < n; ++i) out[i] = 0.5f * x[i] * (1.0f + __builtin_erff(x[i] * 0.70710678f));
      return;
  }
}

void add_rows(const float* x, const float* y, float* out, int n) {
  for (int i = 0; i < n; i += kLanes) store(out + i, add(load(x + i), load(y + i)));
}

void softcap(const float* x, float* out, int n, float cap) {
  const VecF scale = set1(1.0f / cap), back = set1(cap), one = set1(1.0f), minus_one = set1(-1.0f), zero = set1(0.0f);
  for (int i = 0; i < n; i += kLanes) {
    const VecF v = load(x + i);
    // 0, or NaN where v is: tanh alone would make a number of it. max and min keep a NaN in their second operand.
    const VecF nan_or_zero = mul(min(one, max(minus_one, v)), zero);
    store(out + i, add(mul(back, tanh(mul(v, scale))), nan_or_zero));
  }
}

constexpr ElementwiseKernels kElementwiseKernels{rms_norm, layer_norm, rope, glu, activate, add_rows, softcap};

}  // namespace
}  // namespace caudal

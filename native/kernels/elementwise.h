// Operations on rows of activations. The contract; elementwise_impl.h is the text.
// `n` is the padded width of a row (a multiple of 16).
#pragma once

#include <cstddef>
#include <cstdint>

namespace caudal {

enum class GluActivation : int32_t { silu, gelu_tanh, gelu };

struct ElementwiseKernels {
  // out = x / sqrt(sum(x^2)/group + eps) * weight, for each of the n/group groups; weight has `group` elements or is
  // null. A group that is not a multiple of 16 is allowed only when it is the whole row (n = padded group).
  void (*rms_norm)(const float* x, const float* weight, float* out, int n, int group, float eps);
  // out = (x - mean) / sqrt(variance + eps) * weight + bias over the whole row. `width` is not padded; what follows it
  // in `out`, up to the padded width, becomes 0.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float* out, int width, float eps);
  // In place on num_heads heads of head_size; cos/sin have rotary/2 elements, already times the attention factor.
  void (*rope)(float* x, const float* cos, const float* sin, int num_heads, int head_size, int rotary,
               bool interleaved);
  void (*glu)(const float* gate, const float* up, float* out, int n, GluActivation activation);
  void (*activate)(const float* x, float* out, int n, GluActivation activation);
  void (*add)(const float* x, const float* y, float* out, int n);
  // NaN for NaN.
  void (*softcap)(const float* x, float* out, int n, float cap);
};

}  // namespace caudal

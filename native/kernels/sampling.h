// Passes over a row of logits. The contract; sampling_impl.h is the text. n may be any number.
#pragma once

#include <cstdint>

namespace caudal {

constexpr int kBlockLogits = 256;

// What lies in ranges of equal width, from a largest logit down: bucket (shift - x) * buckets_per_logit, computed in
// float32 and rounded down.
struct Histogram {
  float buckets_per_logit;
  int first, end;   // the buckets that are wanted
  double* masses;   // [end], of exp(y) for y = (x - shift) * scale
  double* moments;  // the same, of exp(y) * y; null if not wanted
  int32_t* counts;  // how many there are; null if not wanted
};

// Of all that lies behind a histogram's last bucket. Where the histogram has no moments, the moment is that of all.
struct Tail {
  double mass, moment;
};

struct SamplingKernels {
  // The largest logit, and that of every kBlockLogits of them. NaN counts for nothing.
  float (*max_values)(const float* x, int n, float* of_blocks);
  // exp((x - shift) * scale), summed in a fixed order.
  double (*exp_sum)(const float* x, int n, float scale, float shift);
  // The same sum, and in `moment` that of exp(y) * y for y = (x - shift) * scale.
  double (*exp_moment)(const float* x, int n, float scale, float shift, double* moment);
  // Adds the logits, none of them larger than shift, to a histogram, one after another, and returns what lies behind
  // it. NaN weighs nothing.
  Tail (*exp_histogram)(const float* x, int n, float scale, float shift, const Histogram& histogram);
  // How many logits are larger than a value.
  int (*count_above)(const float* x, int n, float value);
  // Writes the indices of the logits in [lowest, highest], ascending, and returns how many they are.
  int (*find_in_range)(const float* x, int n, float lowest, float highest, int32_t* found);
};

}  // namespace caudal

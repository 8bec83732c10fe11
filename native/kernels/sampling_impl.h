// Text of sampling.h, once per instruction set. Included after simd/vec_*.h and simd/vec_math.h.
#pragma once

#include "sampling.h"

namespace caudal {
namespace {

inline float max_value(const float* x, int n) {
  float best = -__builtin_inff();
  int i = 0;
  if (n >= kLanes) {
    VecF m = set1(best);  // max takes its second operand where the first is NaN
    for (; i + kLanes <= n; i += kLanes) m = max(load(x + i), m);
    best = reduce_max(m);
  }
  for (; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

float max_values(const float* x, int n, float* of_blocks) {
  float best = -__builtin_inff();
  for (int i = 0; i < n; i += kBlockLogits) {
    const float largest = max_value(x + i, n - i < kBlockLogits ? n - i : kBlockLogits);
    of_blocks[i / kBlockLogits] = largest;
    best = largest > best ? largest : best;
  }
  return best;
}

// Sums fn(exponents) over n logits, kCount sums at once: short float sums into doubles, because a vocabulary has too
// many terms for one float. The logits beyond the last full vector are as if -inf filled it up.
template <int kCount, class Fn>
inline void sum_exponents(const float* x, int n, float scale, float shift, double* totals, const Fn& fn) {
  constexpr int kRun = 256;
  const VecF a = set1(scale), b = set1(shift);
  const auto exponents = [&](const float* p) { return mul(sub(load(p), b), a); };
  for (int c = 0; c < kCount; ++c) totals[c] = 0.0;
  const auto add_to_totals = [&](const VecF* sums) {
    for (int c = 0; c < kCount; ++c) totals[c] += static_cast<double>(reduce_add(sums[c]));
  };
  int i = 0;
  while (i + kLanes <= n) {
    VecF sums[kCount];
    for (VecF& s : sums) s = set1(0.0f);
    for (int end = i + kRun; i < end && i + kLanes <= n; i += kLanes) fn(exponents(x + i), sums);
    add_to_totals(sums);
  }
  if (i == n) return;
  float last[kLanes];
  for (int j = 0; j < kLanes; ++j) last[j] = i + j < n ? x[i + j] : -__builtin_inff();
  VecF sums[kCount];
  for (VecF& s : sums) s = set1(0.0f);
  fn(exponents(last), sums);
  add_to_totals(sums);
}

double exp_sum(const float* x, int n, float scale, float shift) {
  double total;
  sum_exponents<1>(x, n, scale, shift, &total, [](VecF y, VecF* sums) { sums[0] = add(sums[0], exp(y)); });
  return total;
}

double exp_moment(const float* x, int n, float scale, float shift, double* moment) {
  double totals[2];
  const VecF least = set1(-100.0f);  // -inf times 0 would be NaN; from here on exp(y) * y is nothing
  sum_exponents<2>(x, n, scale, shift, totals, [&](VecF y, VecF* sums) {
    const VecF w = exp(y);
    sums[0] = add(sums[0], w);
    sums[1] = fma(w, max(y, least), sums[1]);
  });
  *moment = totals[1];
  return totals[0];
}

// What a run of logits adds to a histogram.
struct HistogramRun {
  static constexpr int kLength = 256;
  alignas(64) int32_t buckets[kLength];
  alignas(64) float masses[kLength];
  alignas(64) float moments[kLength];
};

template <bool kMoments>
inline void weigh_run(const float* x, int n, float scale, float shift, const Histogram& h, HistogramRun& run) {
  const VecF a = set1(scale), b = set1(shift), per_bucket = set1(h.buckets_per_logit);
  const VecF least = set1(-100.0f), zero = set1(0.0f), beyond = set1(static_cast<float>(h.num_buckets));
  alignas(64) float buckets[kLanes], last[kLanes];
  for (int i = 0; i < n; i += kLanes) {
    const float* p = x + i;
    if (i + kLanes > n) {
      for (int j = 0; j < kLanes; ++j) last[j] = i + j < n ? p[j] : -__builtin_inff();
      p = last;
    }
    const VecF v = load(p), y = mul(sub(v, b), a), w = exp(y);
    // A NaN is beyond the last bucket: min takes its second operand where the first is NaN.
    store(buckets, max(zero, min(mul(sub(b, v), per_bucket), beyond)));
    for (int j = 0; j < kLanes; ++j) run.buckets[i + j] = static_cast<int32_t>(buckets[j]);
    store(run.masses + i, w);
    if constexpr (kMoments) store(run.moments + i, mul(w, max(y, least)));
  }
}

// Vectors first, for a whole run, and then the sums one by one: what a vector has just stored is slow to read in parts.
template <bool kMoments, bool kCounts>
inline void fill_histogram(const float* x, int n, float scale, float shift, const Histogram& h) {
  HistogramRun run;
  for (int first = 0; first < n; first += HistogramRun::kLength) {
    const int length = n - first < HistogramRun::kLength ? n - first : HistogramRun::kLength;
    weigh_run<kMoments>(x + first, length, scale, shift, h, run);
    for (int i = 0; i < length; ++i) {
      const int32_t bucket = run.buckets[i];
      h.masses[bucket] += static_cast<double>(run.masses[i]);
      if constexpr (kMoments) h.moments[bucket] += static_cast<double>(run.moments[i]);
      if constexpr (kCounts) ++h.counts[bucket];
    }
  }
}

void exp_histogram(const float* x, int n, float scale, float shift, const Histogram& h) {
  if (h.moments != nullptr) {
    h.counts != nullptr ? fill_histogram<true, true>(x, n, scale, shift, h)
                        : fill_histogram<true, false>(x, n, scale, shift, h);
  } else {
    h.counts != nullptr ? fill_histogram<false, true>(x, n, scale, shift, h)
                        : fill_histogram<false, false>(x, n, scale, shift, h);
  }
}

int count_above(const float* x, int n, float value) {
  int count = 0;
  for (int i = 0; i < n; ++i) count += static_cast<int>(x[i] > value);
  return count;
}

int find_in_range(const float* x, int n, float lowest, float highest, int32_t* found) {
  constexpr int kRun = 32;
  int count = 0;
  for (int first = 0; first < n; first += kRun) {
    const int end = n - first < kRun ? n : first + kRun;
    int num_inside = 0;  // of all, at once: most runs have none
    for (int i = first; i < end; ++i)
      num_inside += static_cast<int>(x[i] >= lowest) & static_cast<int>(x[i] <= highest);
    if (num_inside == 0) continue;
    for (int i = first; i < end; ++i) {
      if (x[i] >= lowest && x[i] <= highest) found[count++] = i;
    }
  }
  return count;
}

constexpr SamplingKernels kSamplingKernels{max_values, exp_sum, exp_moment, exp_histogram, count_above, find_in_range};

}  // namespace
}  // namespace caudal

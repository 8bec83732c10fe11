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

// What a run of logits adds to a histogram, those in its buckets only.
struct HistogramRun {
  static constexpr int kLength = 256;
  int count;
  alignas(64) float buckets[kLength + kLanes];
  alignas(64) float masses[kLength + kLanes];
  alignas(64) float moments[kLength + kLanes];
};

// Returns the run's part of the Tail.
template <bool kMoments>
inline Tail weigh_run(const float* x, int n, float scale, float shift, const Histogram& h, HistogramRun& run) {
  const VecF a = set1(scale), b = set1(shift), per_bucket = set1(h.buckets_per_logit);
  const VecF first = set1(static_cast<float>(h.first)), end = set1(static_cast<float>(h.end));
  const VecF least = set1(-100.0f), zero = set1(0.0f);
  VecF tail_mass = zero, moment = zero;
  float last[kLanes];
  run.count = 0;
  for (int i = 0; i < n; i += kLanes) {
    const float* p = x + i;
    if (i + kLanes > n) {
      for (int j = 0; j < kLanes; ++j) last[j] = i + j < n ? p[j] : -__builtin_inff();
      p = last;
    }
    // max and min take their second operand where the first is NaN: a NaN is behind the last bucket.
    const VecF v = load(p), y = max(mul(sub(v, b), a), least), w = exp(y);
    const VecF bucket = max(zero, min(mul(sub(b, v), per_bucket), end));
    const uint32_t inside = lanes_not_below(bucket, first) & ~lanes_not_below(bucket, end);
    tail_mass = add(tail_mass, zero_where_less(w, bucket, end));
    if constexpr (kMoments) {
      moment = add(moment, zero_where_less(mul(w, y), bucket, end));
    } else {
      moment = fma(w, y, moment);
    }
    if (inside == 0) continue;
    store_lanes(run.buckets + run.count, bucket, inside);
    store_lanes(run.masses + run.count, w, inside);
    if constexpr (kMoments) store_lanes(run.moments + run.count, mul(w, y), inside);
    run.count += __builtin_popcount(inside);
  }
  return {static_cast<double>(reduce_add(tail_mass)), static_cast<double>(reduce_add(moment))};
}

// Vectors first, for a whole run, and then the sums one by one: what a vector has just stored is slow to read in parts.
template <bool kMoments, bool kCounts>
inline Tail fill_histogram(const float* x, int n, float scale, float shift, const Histogram& h) {
  HistogramRun run;
  Tail tail{0.0, 0.0};
  for (int first = 0; first < n; first += HistogramRun::kLength) {
    const int length = n - first < HistogramRun::kLength ? n - first : HistogramRun::kLength;
    const Tail more = weigh_run<kMoments>(x + first, length, scale, shift, h, run);
    tail = {tail.mass + more.mass, tail.moment + more.moment};
    for (int i = 0; i < run.count; ++i) {
      const auto bucket = static_cast<int32_t>(run.buckets[i]);
      h.masses[bucket] += static_cast<double>(run.masses[i]);
      if constexpr (kMoments) h.moments[bucket] += static_cast<double>(run.moments[i]);
      if constexpr (kCounts) ++h.counts[bucket];
    }
  }
  return tail;
}

Tail exp_histogram(const float* x, int n, float scale, float shift, const Histogram& h) {
  if (h.moments != nullptr) {
    return h.counts != nullptr ? fill_histogram<true, true>(x, n, scale, shift, h)
                               : fill_histogram<true, false>(x, n, scale, shift, h);
  }
  return h.counts != nullptr ? fill_histogram<false, true>(x, n, scale, shift, h)
                             : fill_histogram<false, false>(x, n, scale, shift, h);
}

int count_above(const float* x, int n, float value) {
  int count = 0;
  for (int i = 0; i < n; ++i) count += static_cast<int>(x[i] > value);
  return count;
}

int find_in_range(const float* x, int n, float lowest, float highest, int32_t* found) {
  constexpr int kVectors = 4;
  const VecF low = set1(lowest), high = set1(highest);
  int count = 0, i = 0;
  for (; i + kVectors * kLanes <= n; i += kVectors * kLanes) {
    uint32_t inside[kVectors], any = 0;
    for (int v = 0; v < kVectors; ++v) {
      const VecF y = load(x + i + v * kLanes);
      inside[v] = lanes_not_below(y, low) & lanes_not_below(high, y);
      any |= inside[v];
    }
    if (any == 0) continue;  // as most have none
    for (int v = 0; v < kVectors; ++v) {
      for (uint32_t lanes = inside[v]; lanes != 0; lanes &= lanes - 1) {
        found[count++] = i + v * kLanes + __builtin_ctz(lanes);
      }
    }
  }
  for (; i < n; ++i) {
    if (x[i] >= lowest && x[i] <= highest) found[count++] = i;
  }
  return count;
}

constexpr SamplingKernels kSamplingKernels{max_values, exp_sum, exp_moment, exp_histogram, count_above, find_in_range};

}  // namespace
}  // namespace caudal

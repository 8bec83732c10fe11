// exp and tanh on float vectors, from the primitives of one instruction set.
// Included after a simd/vec_*.h.
#pragma once

namespace caudal {
namespace {

// e^x, 0 below -87. Relative error about 1e-7; exp(0) is exactly 1.
// Cody-Waite reduction by ln 2 in two parts, then the Taylor terms to x^7/7!, enough for |r| <= ln(2)/2.
inline VecF exp(VecF x) {
  const VecF low = set1(-87.0f);
  VecF clamped = min(max(x, low), set1(88.0f));
  VecF n = round_even(mul(clamped, set1(1.44269504f)));
  VecF r = fma(n, set1(-0.693359375f), clamped);
  r = fma(n, set1(2.12194440e-4f), r);
  VecF p = set1(1.0f / 5040);
  p = fma(p, r, set1(1.0f / 720));
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return zero_where_less(mul(p, exp2_whole(n)), x, low);
}

// Absolute error about 1e-7.
inline VecF tanh(VecF x) {
  VecF e = exp(min(max(add(x, x), set1(-40.0f)), set1(40.0f)));
  return sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f))));
}

}  // namespace
}  // namespace caudal

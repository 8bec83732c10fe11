// Float vectors of sixteen lanes: AVX-512.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace caudal {
namespace {

constexpr int kLanes = 16;
constexpr int kVectorRegisters = 32;

struct VecF {
  __m512 v;
};

inline VecF load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, VecF a) { _mm512_storeu_ps(p, a.v); }
inline VecF set1(float x) { return {_mm512_set1_ps(x)}; }
inline VecF add(VecF a, VecF b) { return {_mm512_add_ps(a.v, b.v)}; }
inline VecF sub(VecF a, VecF b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline VecF mul(VecF a, VecF b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline VecF div(VecF a, VecF b) { return {_mm512_div_ps(a.v, b.v)}; }
inline VecF max(VecF a, VecF b) { return {_mm512_max_ps(a.v, b.v)}; }
inline VecF min(VecF a, VecF b) { return {_mm512_min_ps(a.v, b.v)}; }
inline VecF fma(VecF a, VecF b, VecF c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline VecF round_even(VecF a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline VecF zero_where_less(VecF value, VecF a, VecF b) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ), value.v)};
}
// A bit for each lane, the first one lowest: whether a >= b. Never where one is NaN.
inline uint32_t lanes_not_below(VecF a, VecF b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
// Stores these lanes one behind another; what follows them, up to kLanes in all, is overwritten.
inline void store_lanes(float* p, VecF a, uint32_t lanes) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(static_cast<__mmask16>(lanes), a.v));
}
inline VecF exp2_whole(VecF n) {
  __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
}
inline VecF load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline VecF load_int8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline void store_half(uint16_t* p, VecF a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline float reduce_add(VecF a) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float reduce_max(VecF a) {
  __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

}  // namespace
}  // namespace caudal

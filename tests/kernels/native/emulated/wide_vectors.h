// The AVX-512 intrinsics that the kernels use, as pairs of AVX2 registers. Includes of <immintrin.h> after this one
// find its names taken. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "dot_products.h"

namespace {

struct WideInts {
  __m256i lo, hi;
};
struct WideFloats {
  __m256 lo, hi;
};

#define EACH_HALF_1(To, name, From, half) \
  inline To wide_##name(From a) { return {half(a.lo), half(a.hi)}; }
#define EACH_HALF_2(Type, name, half) \
  inline Type wide_##name(Type a, Type b) { return {half(a.lo, b.lo), half(a.hi, b.hi)}; }
#define EACH_HALF_3(name, half)                                             \
  inline WideFloats wide_##name(WideFloats a, WideFloats b, WideFloats c) { \
    return {half(a.lo, b.lo, c.lo), half(a.hi, b.hi, c.hi)};                \
  }
#define EACH_HALF_SHIFT(name, half) \
  inline WideInts wide_##name(WideInts a, int count) { return {half(a.lo, count), half(a.hi, count)}; }

EACH_HALF_1(WideFloats, castsi512_ps, WideInts, _mm256_castsi256_ps)
EACH_HALF_1(WideFloats, cvtepi32_ps, WideInts, _mm256_cvtepi32_ps)
EACH_HALF_1(WideInts, cvtps_epi32, WideFloats, _mm256_cvtps_epi32)
EACH_HALF_2(WideInts, add_epi32, _mm256_add_epi32)
EACH_HALF_2(WideInts, sub_epi32, _mm256_sub_epi32)
EACH_HALF_2(WideInts, and_si512, _mm256_and_si256)
EACH_HALF_2(WideInts, max_epi32, _mm256_max_epi32)
EACH_HALF_2(WideInts, min_epi32, _mm256_min_epi32)
EACH_HALF_2(WideInts, mullo_epi32, _mm256_mullo_epi32)
EACH_HALF_2(WideInts, shuffle_epi8, _mm256_shuffle_epi8)
EACH_HALF_2(WideInts, sllv_epi32, _mm256_sllv_epi32)
EACH_HALF_2(WideFloats, add_ps, _mm256_add_ps)
EACH_HALF_2(WideFloats, sub_ps, _mm256_sub_ps)
EACH_HALF_2(WideFloats, mul_ps, _mm256_mul_ps)
EACH_HALF_2(WideFloats, div_ps, _mm256_div_ps)
EACH_HALF_2(WideFloats, max_ps, _mm256_max_ps)
EACH_HALF_2(WideFloats, min_ps, _mm256_min_ps)
EACH_HALF_3(fmadd_ps, _mm256_fmadd_ps)
EACH_HALF_3(fnmadd_ps, _mm256_fnmadd_ps)
EACH_HALF_SHIFT(slli_epi16, _mm256_slli_epi16)
EACH_HALF_SHIFT(srli_epi16, _mm256_srli_epi16)
EACH_HALF_SHIFT(slli_epi32, _mm256_slli_epi32)
EACH_HALF_SHIFT(srli_epi32, _mm256_srli_epi32)
EACH_HALF_SHIFT(srai_epi32, _mm256_srai_epi32)

inline WideInts wide_sll_epi32(WideInts a, __m128i count) {
  return {_mm256_sll_epi32(a.lo, count), _mm256_sll_epi32(a.hi, count)};
}
inline WideInts wide_srl_epi32(WideInts a, __m128i count) {
  return {_mm256_srl_epi32(a.lo, count), _mm256_srl_epi32(a.hi, count)};
}

inline WideInts twice(__m256i v) { return {v, v}; }
inline WideInts wide_set1_epi8(int v) { return twice(_mm256_set1_epi8(static_cast<char>(v))); }
inline WideInts wide_set1_epi16(int v) { return twice(_mm256_set1_epi16(static_cast<int16_t>(v))); }
inline WideInts wide_set1_epi32(int v) { return twice(_mm256_set1_epi32(v)); }
inline WideInts wide_setzero_si512() { return twice(_mm256_setzero_si256()); }
inline WideInts wide_broadcast_i32x4(__m128i v) { return twice(_mm256_broadcastsi128_si256(v)); }
inline WideFloats wide_set1_ps(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
inline WideFloats wide_setzero_ps() { return wide_set1_ps(0.0F); }

template <class Wide>
Wide load_wide(const void* p) {
  Wide v;
  std::memcpy(&v, p, 64);
  return v;
}
inline WideInts wide_loadu_si512(const void* p) { return load_wide<WideInts>(p); }
inline WideFloats wide_loadu_ps(const void* p) { return load_wide<WideFloats>(p); }
inline void wide_storeu_si512(void* p, WideInts v) { std::memcpy(p, &v, 64); }
inline void wide_storeu_ps(void* p, WideFloats v) { std::memcpy(p, &v, 64); }

inline __m128i low_half(__m256i v) { return _mm256_castsi256_si128(v); }
inline __m128i high_half(__m256i v) { return _mm256_extracti128_si256(v, 1); }
inline WideInts wide_cvtepi8_epi16(__m256i v) {
  return {_mm256_cvtepi8_epi16(low_half(v)), _mm256_cvtepi8_epi16(high_half(v))};
}
inline WideInts wide_cvtepu8_epi16(__m256i v) {
  return {_mm256_cvtepu8_epi16(low_half(v)), _mm256_cvtepu8_epi16(high_half(v))};
}
inline WideInts wide_cvtepu16_epi32(__m256i v) {
  return {_mm256_cvtepu16_epi32(low_half(v)), _mm256_cvtepu16_epi32(high_half(v))};
}
inline WideInts wide_cvtepi8_epi32(__m128i v) {
  return {_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
}
inline WideInts wide_cvtepu8_epi32(__m128i v) {
  return {_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
}
inline WideFloats wide_cvtph_ps(__m256i v) { return {_mm256_cvtph_ps(low_half(v)), _mm256_cvtph_ps(high_half(v))}; }
inline __m256i wide_cvtps_ph(WideFloats v, int) {
  return _mm256_set_m128i(_mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT),
                          _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
}
inline __m128i wide_cvtepi32_epi8(WideInts v) {  // keeps the low bytes
  int32_t ints[16];
  int8_t bytes[16];
  std::memcpy(ints, &v, 64);
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<int8_t>(ints[i]);
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

// Bit abc of `table` is the result where the bits of a, b and c are.
inline __m256i ternary(__m256i a, __m256i b, __m256i c, int table) {
  const __m256i ones = _mm256_set1_epi32(-1);
  __m256i result = _mm256_setzero_si256();
  for (int abc = 0; abc < 8; ++abc) {
    if ((table >> abc & 1) == 0) continue;
    const __m256i is_a = (abc & 4) != 0 ? a : _mm256_xor_si256(a, ones);
    const __m256i is_b = (abc & 2) != 0 ? b : _mm256_xor_si256(b, ones);
    const __m256i is_c = (abc & 1) != 0 ? c : _mm256_xor_si256(c, ones);
    result = _mm256_or_si256(result, _mm256_and_si256(is_a, _mm256_and_si256(is_b, is_c)));
  }
  return result;
}
inline WideInts wide_ternarylogic_epi32(WideInts a, WideInts b, WideInts c, int table) {
  return {ternary(a.lo, b.lo, c.lo, table), ternary(a.hi, b.hi, c.hi, table)};
}

inline WideFloats wide_abs_ps(WideFloats v) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_andnot_ps(sign, v.lo), _mm256_andnot_ps(sign, v.hi)};
}
inline WideFloats wide_roundscale_ps(WideFloats v, int) {  // to whole numbers, as the kernels ask for
  constexpr int kHow = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(v.lo, kHow), _mm256_round_ps(v.hi, kHow)};
}
inline __mmask16 wide_cmp_ps_mask(WideFloats a, WideFloats b, int predicate) {
  const auto halves = [&](auto compare) {
    return static_cast<__mmask16>(_mm256_movemask_ps(compare(a.lo, b.lo)) | _mm256_movemask_ps(compare(a.hi, b.hi))
                                                                                << 8);
  };
  if (predicate == _CMP_GT_OQ) return halves([](__m256 x, __m256 y) { return _mm256_cmp_ps(x, y, _CMP_GT_OQ); });
  if (predicate == _CMP_GE_OQ) return halves([](__m256 x, __m256 y) { return _mm256_cmp_ps(x, y, _CMP_GE_OQ); });
  if (predicate == _CMP_NLT_UQ) return halves([](__m256 x, __m256 y) { return _mm256_cmp_ps(x, y, _CMP_NLT_UQ); });
  __builtin_trap();  // the kernels ask for no other
}
inline WideFloats wide_maskz_mov_ps(__mmask16 mask, WideFloats v) {
  alignas(32) float lanes[16];
  _mm256_store_ps(lanes, v.lo);
  _mm256_store_ps(lanes + 8, v.hi);
  for (int i = 0; i < 16; ++i) lanes[i] = mask >> i & 1 ? lanes[i] : 0.0F;
  return {_mm256_load_ps(lanes), _mm256_load_ps(lanes + 8)};
}
inline WideFloats wide_maskz_compress_ps(__mmask16 mask, WideFloats v) {
  alignas(32) float lanes[16], kept[16] = {};
  _mm256_store_ps(lanes, v.lo);
  _mm256_store_ps(lanes + 8, v.hi);
  int count = 0;
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) kept[count++] = lanes[i];
  }
  return {_mm256_load_ps(kept), _mm256_load_ps(kept + 8)};
}
inline __m256 wide_castps512_ps256(WideFloats v) { return v.lo; }
inline __m256 wide_extractf32x8_ps(WideFloats v, int) { return v.hi; }  // the kernels ask for half 1
inline float wide_reduce_max_ps(WideFloats v) {
  float lanes[16];
  std::memcpy(lanes, &v, 64);
  float largest = lanes[0];
  for (const float lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

}  // namespace

namespace caudal {
namespace {
namespace mm {

template <class Value>
WideInts broadcast_four_bytes(const Value* x) {
  int32_t bytes;
  std::memcpy(&bytes, x, 4);
  return wide_set1_epi32(bytes);
}
inline void add_byte_products(WideInts& acc, WideInts w, const int8_t* x) {
  const WideInts a = broadcast_four_bytes(x);
  acc = {emulated_dpbusd(acc.lo, w.lo, a.lo), emulated_dpbusd(acc.hi, w.hi, a.hi)};
}
inline void add_word_products(WideInts& acc, WideInts w, const int16_t* x) {
  const WideInts a = broadcast_four_bytes(x);
  acc = {emulated_dpwssd(acc.lo, w.lo, a.lo), emulated_dpwssd(acc.hi, w.hi, a.hi)};
}

}  // namespace mm
}  // namespace
}  // namespace caudal

#define __m512i WideInts
#define __m512 WideFloats
#define _mm512_abs_ps wide_abs_ps
#define _mm512_add_epi32 wide_add_epi32
#define _mm512_add_ps wide_add_ps
#define _mm512_and_si512 wide_and_si512
#define _mm512_broadcast_i32x4 wide_broadcast_i32x4
#define _mm512_castps512_ps256 wide_castps512_ps256
#define _mm512_castsi512_ps wide_castsi512_ps
#define _mm512_cmp_ps_mask wide_cmp_ps_mask
#define _mm512_cvtepi32_epi8 wide_cvtepi32_epi8
#define _mm512_cvtepi32_ps wide_cvtepi32_ps
#define _mm512_cvtepi8_epi16 wide_cvtepi8_epi16
#define _mm512_cvtepi8_epi32 wide_cvtepi8_epi32
#define _mm512_cvtepu16_epi32 wide_cvtepu16_epi32
#define _mm512_cvtepu8_epi16 wide_cvtepu8_epi16
#define _mm512_cvtepu8_epi32 wide_cvtepu8_epi32
#define _mm512_cvtph_ps wide_cvtph_ps
#define _mm512_cvtps_epi32 wide_cvtps_epi32
#define _mm512_cvtps_ph wide_cvtps_ph
#define _mm512_div_ps wide_div_ps
#define _mm512_extractf32x8_ps wide_extractf32x8_ps
#define _mm512_fmadd_ps wide_fmadd_ps
#define _mm512_fnmadd_ps wide_fnmadd_ps
#define _mm512_loadu_ps wide_loadu_ps
#define _mm512_loadu_si512 wide_loadu_si512
#define _mm512_maskz_compress_ps wide_maskz_compress_ps
#define _mm512_maskz_mov_ps wide_maskz_mov_ps
#define _mm512_max_epi32 wide_max_epi32
#define _mm512_max_ps wide_max_ps
#define _mm512_min_epi32 wide_min_epi32
#define _mm512_min_ps wide_min_ps
#define _mm512_mul_ps wide_mul_ps
#define _mm512_mullo_epi32 wide_mullo_epi32
#define _mm512_reduce_max_ps wide_reduce_max_ps
#define _mm512_roundscale_ps wide_roundscale_ps
#define _mm512_set1_epi16 wide_set1_epi16
#define _mm512_set1_epi32 wide_set1_epi32
#define _mm512_set1_epi8 wide_set1_epi8
#define _mm512_set1_ps wide_set1_ps
#define _mm512_setzero_ps wide_setzero_ps
#define _mm512_setzero_si512 wide_setzero_si512
#define _mm512_shuffle_epi8 wide_shuffle_epi8
#define _mm512_sll_epi32 wide_sll_epi32
#define _mm512_slli_epi16 wide_slli_epi16
#define _mm512_slli_epi32 wide_slli_epi32
#define _mm512_sllv_epi32 wide_sllv_epi32
#define _mm512_srai_epi32 wide_srai_epi32
#define _mm512_srl_epi32 wide_srl_epi32
#define _mm512_srli_epi16 wide_srli_epi16
#define _mm512_srli_epi32 wide_srli_epi32
#define _mm512_storeu_ps wide_storeu_ps
#define _mm512_storeu_si512 wide_storeu_si512
#define _mm512_sub_epi32 wide_sub_epi32
#define _mm512_sub_ps wide_sub_ps
#define _mm512_ternarylogic_epi32 wide_ternarylogic_epi32

// What vpdpbusd and vpdpwssd compute, by AVX2 alone.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
#pragma once

#include <immintrin.h>

namespace {

// acc + four products of unsigned and signed bytes, per int32.
inline __m256i emulated_dpbusd(__m256i acc, __m256i u, __m256i s) {
  const __m256i even =
      _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
  return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}

// acc + two products of int16, per int32.
inline __m256i emulated_dpwssd(__m256i acc, __m256i a, __m256i b) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}

}  // namespace

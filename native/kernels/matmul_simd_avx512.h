// Primitives of matmul_impl.h for AVX-512 F, BW, DQ, VL and VNNI. Sixteen lanes are one register.
//
// vpdpbusd adds four byte products to an int32 without loss, so weights may have all eight bits. There are registers
// enough to unpack weights at every use: scratch would only cost bandwidth.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "matmul_inline.h"

namespace caudal {
namespace {
namespace mm {

constexpr int kTileWidth = 8;  // wider tiles were no faster on Zen 4, and slower for Q6_K
constexpr int kDepth4 = 8;
constexpr int kDepth5 = 8;
constexpr int kDepth6 = 8;
constexpr bool kSplitQ8 = false;
constexpr int kZeroShiftQ8 = 7;
// From how many tiles on weights of so many bits are unpacked to scratch first; 0 is never.
constexpr int unpack_from_tiles(int) { return 0; }
constexpr bool keep_in_memory(int) { return false; }

struct Bytes {
  __m512i v;
};  // 16 rows x 4 bytes
struct Ints {
  __m512i v;
};  // 16 int32
struct Floats {
  __m512 v;
};  // 16 float32
struct Pairs {
  __m512i v;
};  // 16 rows x 2 int16
using Parts = Ints;
using Scales = Ints;

CAUDAL_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

CAUDAL_INLINE Bytes load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
CAUDAL_INLINE void store_bytes(uint8_t* p, Bytes b) { _mm512_storeu_si512(p, b.v); }
CAUDAL_INLINE Bytes low_nibbles(Bytes b) { return {_mm512_and_si512(b.v, _mm512_set1_epi8(15))}; }
CAUDAL_INLINE Bytes high_nibbles(Bytes b) {
  return {_mm512_and_si512(_mm512_srli_epi16(b.v, 4), _mm512_set1_epi8(15))};
}
template <int kShift>
CAUDAL_INLINE __m512i shift_left(__m512i v) {
  if constexpr (kShift >= 0) {
    return _mm512_slli_epi16(v, kShift);
  } else {
    return _mm512_srli_epi16(v, -kShift);
  }
}
// plane << kShift & kMask
template <int kShift, int kMask>
CAUDAL_INLINE Bytes pick_bits(Bytes plane) {
  return {_mm512_and_si512(shift_left<kShift>(plane.v), _mm512_set1_epi8(kMask))};
}
// nibbles | (plane << kShift & kMask)
template <int kShift, int kMask>
CAUDAL_INLINE Bytes insert_bits(Bytes nibbles, Bytes plane) {
  const __m512i moved = shift_left<kShift>(plane.v);
  return {_mm512_ternarylogic_epi32(nibbles.v, moved, _mm512_set1_epi8(kMask), 0xF8)};  // a | (b & c)
}
// Bytes from a plane of their high nibbles and one of their low nibbles: those of the first or the second quad.
CAUDAL_INLINE Bytes join_low_nibbles(Bytes high, Bytes low) {
  const __m512i mask = _mm512_set1_epi8(15);
  return {_mm512_ternarylogic_epi32(mask, low.v, _mm512_slli_epi16(high.v, 4), 0xCA)};  // a ? b : c
}
CAUDAL_INLINE Bytes join_high_nibbles(Bytes high, Bytes low) {
  const __m512i mask = _mm512_set1_epi8(15);
  return {_mm512_ternarylogic_epi32(mask, _mm512_srli_epi16(low.v, 4), high.v, 0xCA)};
}
// The bytes of a table that nibbles stand for.
CAUDAL_INLINE Bytes look_up(const uint8_t* table, Bytes nibbles) {
  const __m512i t = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm512_shuffle_epi8(t, nibbles.v)};
}
// Byte kIndex of each row, unsigned.
template <int kIndex>
CAUDAL_INLINE Ints byte_of(Bytes b) {
  return {_mm512_and_si512(_mm512_srli_epi32(b.v, 8 * kIndex), _mm512_set1_epi32(255))};
}
// Some bits of each row's 32 in a plane of bytes.
CAUDAL_INLINE Ints bits_at(const uint8_t* plane, int shift, int32_t mask) {
  const __m512i v = _mm512_srl_epi32(_mm512_loadu_si512(plane), _mm_cvtsi32_si128(shift));
  return {_mm512_and_si512(v, _mm512_set1_epi32(mask))};
}
// The integers of a table that nibbles stand for.
CAUDAL_INLINE Ints look_up(const uint8_t* table, Ints nibbles) {
  return {_mm512_and_si512(look_up(table, Bytes{nibbles.v}).v, _mm512_set1_epi32(255))};
}

// In assembler, because compilers spend a register and an instruction on the broadcast. Tests replace these two where
// they emulate the instruction set.
#ifndef CAUDAL_EMULATED
CAUDAL_INLINE void add_byte_products(__m512i& acc, __m512i w, const int8_t* x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*reinterpret_cast<const int32_t(*)[1]>(x)));
}
CAUDAL_INLINE void add_word_products(__m512i& acc, __m512i w, const int16_t* x) {
  asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*reinterpret_cast<const int16_t(*)[2]>(x)));
}
#endif

CAUDAL_INLINE Parts dot(Parts acc, Bytes w, const int8_t* x) {
  add_byte_products(acc.v, w.v, x);
  return acc;
}
CAUDAL_INLINE Parts dot_first(Bytes w, const int8_t* x) { return dot({_mm512_setzero_si512()}, w, x); }
// The sum of each row's parts, times a constant.
template <int kTimes>
CAUDAL_INLINE Ints reduce(Parts p) {
  static_assert(kTimes == 1, "only nibble planes are weighted");
  return p;
}
CAUDAL_INLINE Ints reduce_scaled(Parts p, Scales s) { return {_mm512_mullo_epi32(p.v, s.v)}; }

CAUDAL_INLINE Pairs load_pairs_u8(const uint8_t* p) {
  return {_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
CAUDAL_INLINE Pairs load_pairs_s8(const uint8_t* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
CAUDAL_INLINE Pairs low_nibbles(Pairs p) { return {_mm512_and_si512(p.v, _mm512_set1_epi16(15))}; }
CAUDAL_INLINE Pairs high_nibbles(Pairs p) { return {_mm512_srli_epi16(p.v, 4)}; }
template <int kIndex>
CAUDAL_INLINE Ints ints_of(Pairs p) {
  if constexpr (kIndex == 0) {
    return {_mm512_srai_epi32(_mm512_slli_epi32(p.v, 16), 16)};
  } else {
    return {_mm512_srai_epi32(p.v, 16)};
  }
}
// Integer `half` of each row's two.
CAUDAL_INLINE Ints half_at(Pairs p, int half) {
  return {_mm512_srai_epi32(_mm512_sll_epi32(p.v, _mm_cvtsi32_si128(16 - 16 * half)), 16)};
}
template <int kIndex>
CAUDAL_INLINE Scales scales_of(Pairs p) {
  return ints_of<kIndex>(p);
}
// acc + pair . (x[0], x[1])
CAUDAL_INLINE Ints dot_pairs(Ints acc, Pairs p, const int16_t* x) {
  add_word_products(acc.v, p.v, x);
  return acc;
}

CAUDAL_INLINE Ints ints(int32_t v) { return {_mm512_set1_epi32(v)}; }
CAUDAL_INLINE Ints broadcast_int(const int32_t* p) { return {_mm512_set1_epi32(*p)}; }
CAUDAL_INLINE Ints add(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
CAUDAL_INLINE Ints subtract(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
template <int kShift>
CAUDAL_INLINE Ints shift_ints(Ints a) {
  return {_mm512_slli_epi32(a.v, kShift)};
}

CAUDAL_INLINE Floats zeros() { return {_mm512_setzero_ps()}; }
CAUDAL_INLINE Floats broadcast(const float* p) { return {_mm512_set1_ps(*p)}; }
CAUDAL_INLINE Floats load_floats(const float* p) { return {_mm512_loadu_ps(p)}; }
CAUDAL_INLINE void store_floats(float* p, Floats f) { _mm512_storeu_ps(p, f.v); }
CAUDAL_INLINE Floats load_halves(const uint8_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
CAUDAL_INLINE Floats load_bfloats(const uint8_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
// 2^(e - 128) of sixteen bytes e; the two smallest are denormal.
CAUDAL_INLINE Floats load_powers(const uint8_t* p) {
  const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  const __m512i denormal = _mm512_sllv_epi32(_mm512_set1_epi32(1 << 21), _mm512_min_epi32(e, _mm512_set1_epi32(1)));
  return {_mm512_castsi512_ps(_mm512_max_epi32(normal, denormal))};
}
CAUDAL_INLINE Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
CAUDAL_INLINE Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
CAUDAL_INLINE Floats subtract(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
CAUDAL_INLINE Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
// c + a * b and c - a * b, rounded once.
CAUDAL_INLINE Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
CAUDAL_INLINE Floats fnma(Floats a, Floats b, Floats c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }

// For the quantiser of activations.
CAUDAL_INLINE Floats max_abs(Floats a, Floats b) { return {_mm512_max_ps(_mm512_abs_ps(a.v), _mm512_abs_ps(b.v))}; }
CAUDAL_INLINE float max_lane(Floats a) { return _mm512_reduce_max_ps(a.v); }
// A bit per lane whose magnitude is above the limit, and the others, with zeros in its place. A NaN is not above.
CAUDAL_INLINE uint32_t lanes_above(Floats a, Floats limit) {
  return _mm512_cmp_ps_mask(_mm512_abs_ps(a.v), limit.v, _CMP_GT_OQ);
}
CAUDAL_INLINE Floats zero_above(Floats a, Floats limit) {
  return {_mm512_maskz_mov_ps(static_cast<__mmask16>(~lanes_above(a, limit)), a.v)};
}
// Of 16 int8.
CAUDAL_INLINE int32_t sum_of_bytes(__m128i bytes) {
  const __m128i shifted = _mm_xor_si128(bytes, _mm_set1_epi8(-128));
  const __m128i halves = _mm_sad_epu8(shifted, _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(halves, _mm_unpackhi_epi64(halves, halves))) - 16 * 128;
}
// Rounds to the nearest even integer, clamps to +-127, stores 16 int8 and returns their sum.
CAUDAL_INLINE int32_t store_rounded(int8_t* p, Floats a) {
  // Clamped first: a float beyond int32 becomes a negative integer. max takes its second operand where a is NaN.
  const __m512 least = _mm512_max_ps(a.v, _mm512_set1_ps(-127.0F));
  const __m512i q = _mm512_cvtps_epi32(_mm512_min_ps(least, _mm512_set1_ps(127.0F)));
  const __m128i bytes = _mm512_cvtepi32_epi8(q);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  return sum_of_bytes(bytes);
}

}  // namespace mm
}  // namespace
}  // namespace caudal

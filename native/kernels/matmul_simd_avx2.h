// Primitives of matmul_impl.h for AVX2 + FMA + F16C, with and without AVX-VNNI. Sixteen lanes are two registers.
//
// With it (vpdpbusd) four byte products are added to an int32 without loss, so weights may have all eight bits.
// Without it a byte product is vpmaddubsw, which leaves int16 pair sums. They are added up in int16 as
// deep as the bits of the weights allow (activations stay within +-127): 8 quads of 4 bits reach 30480,
// 4 of 5 bits 31496, 2 of 6 bits 32004. The horizontal add and the multiplication with an integer scale are
// then one vpmaddwd.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "matmul_inline.h"

namespace caudal {
namespace {
namespace mm {

constexpr int kTileWidth = 6;
constexpr int kDepth4 = 8;
#ifdef CAUDAL_AVX_VNNI
constexpr int kDepth5 = 8;
constexpr int kDepth6 = 8;
constexpr bool kSplitQ8 = false;
#else
constexpr int kDepth5 = 4;
constexpr int kDepth6 = 2;
constexpr bool kSplitQ8 = true;  // Q8_0 as two planes of nibbles
#endif
constexpr int kZeroShiftQ8 = 7;  // its zero point is 1 << 7
// From how many tiles on weights of so many bits are unpacked to scratch first; 0 is never. Nibbles are cheap to
// unpack.
constexpr int unpack_from_tiles(int bits) { return bits % 4 == 0 ? 4 : 2; }
constexpr bool keep_in_memory(int width) { return width > 2; }

struct Bytes {
  __m256i lo, hi;
};  // 16 rows x 4 bytes
struct Ints {
  __m256i lo, hi;
};  // 16 int32
struct Floats {
  __m256 lo, hi;
};  // 16 float32
struct Pairs {
  __m256i lo, hi;
};  // 16 rows x 2 int16
#ifdef CAUDAL_AVX_VNNI
using Parts = Ints;
using Scales = Ints;
#else
struct Parts {
  __m256i lo, hi;
};  // 16 rows x 2 int16 sums
struct Scales {
  __m256i lo, hi;
};  // 16 rows x the same int16 twice
#endif

CAUDAL_INLINE __m256i broadcast32(const void* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm256_set1_epi32(v);
}

// The compiler would reorder integer additions, run out of registers and spill; this pins the order.
CAUDAL_INLINE void pin(__m256i& v) { asm volatile("" : "+x"(v)); }

CAUDAL_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

CAUDAL_INLINE Bytes load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
CAUDAL_INLINE void store_bytes(uint8_t* p, Bytes b) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(p), b.lo);
  _mm256_store_si256(reinterpret_cast<__m256i*>(p + 32), b.hi);
}
CAUDAL_INLINE Bytes low_nibbles(Bytes b) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(b.lo, mask), _mm256_and_si256(b.hi, mask)};
}
CAUDAL_INLINE Bytes high_nibbles(Bytes b) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(b.lo, 4), mask), _mm256_and_si256(_mm256_srli_epi16(b.hi, 4), mask)};
}
template <int kShift>
CAUDAL_INLINE __m256i shift_left(__m256i v) {
  if constexpr (kShift >= 0) {
    return _mm256_slli_epi16(v, kShift);
  } else {
    return _mm256_srli_epi16(v, -kShift);
  }
}
// plane << kShift & kMask
template <int kShift, int kMask>
CAUDAL_INLINE Bytes pick_bits(Bytes plane) {
  const __m256i mask = _mm256_set1_epi8(kMask);
  return {_mm256_and_si256(shift_left<kShift>(plane.lo), mask), _mm256_and_si256(shift_left<kShift>(plane.hi), mask)};
}
// nibbles | (plane << kShift & kMask)
template <int kShift, int kMask>
CAUDAL_INLINE Bytes insert_bits(Bytes nibbles, Bytes plane) {
  const __m256i mask = _mm256_set1_epi8(kMask);
  return {_mm256_or_si256(nibbles.lo, _mm256_and_si256(shift_left<kShift>(plane.lo), mask)),
          _mm256_or_si256(nibbles.hi, _mm256_and_si256(shift_left<kShift>(plane.hi), mask))};
}
// Bytes from a plane of their high nibbles and one of their low nibbles: those of the first or the second quad.
CAUDAL_INLINE Bytes join_low_nibbles(Bytes high, Bytes low) {
  const Bytes h = low_nibbles(high);
  const Bytes l = low_nibbles(low);
  return {_mm256_or_si256(_mm256_slli_epi16(h.lo, 4), l.lo), _mm256_or_si256(_mm256_slli_epi16(h.hi, 4), l.hi)};
}
CAUDAL_INLINE Bytes join_high_nibbles(Bytes high, Bytes low) {
  const __m256i mask = _mm256_set1_epi8(static_cast<char>(0xF0));
  const Bytes l = high_nibbles(low);
  return {_mm256_or_si256(_mm256_and_si256(high.lo, mask), l.lo),
          _mm256_or_si256(_mm256_and_si256(high.hi, mask), l.hi)};
}
// The bytes of a table that nibbles stand for.
CAUDAL_INLINE Bytes look_up(const uint8_t* table, Bytes nibbles) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(t, nibbles.lo), _mm256_shuffle_epi8(t, nibbles.hi)};
}
// Byte kIndex of each row, unsigned.
template <int kIndex>
CAUDAL_INLINE Ints byte_of(Bytes b) {
  const __m256i mask = _mm256_set1_epi32(255);
  return {_mm256_and_si256(_mm256_srli_epi32(b.lo, 8 * kIndex), mask),
          _mm256_and_si256(_mm256_srli_epi32(b.hi, 8 * kIndex), mask)};
}
// Some bits of each row's 32 in a plane of bytes.
CAUDAL_INLINE Ints bits_at(const uint8_t* plane, int shift, int32_t mask) {
  const Bytes b = load_bytes(plane);
  const __m256i bits = _mm256_set1_epi32(mask);
  const __m128i count = _mm_cvtsi32_si128(shift);
  return {_mm256_and_si256(_mm256_srl_epi32(b.lo, count), bits), _mm256_and_si256(_mm256_srl_epi32(b.hi, count), bits)};
}
// The integers of a table that nibbles stand for.
CAUDAL_INLINE Ints look_up(const uint8_t* table, Ints nibbles) {
  const Bytes b = look_up(table, Bytes{nibbles.lo, nibbles.hi});
  const __m256i mask = _mm256_set1_epi32(255);
  return {_mm256_and_si256(b.lo, mask), _mm256_and_si256(b.hi, mask)};
}

#ifdef CAUDAL_AVX_VNNI

CAUDAL_INLINE Parts dot(Parts acc, Bytes w, const int8_t* x) {
  const __m256i a = broadcast32(x);
  acc.lo = _mm256_dpbusd_avx_epi32(acc.lo, w.lo, a);
  pin(acc.lo);
  acc.hi = _mm256_dpbusd_avx_epi32(acc.hi, w.hi, a);
  pin(acc.hi);
  return acc;
}
CAUDAL_INLINE Parts dot_first(Bytes w, const int8_t* x) {
  return dot({_mm256_setzero_si256(), _mm256_setzero_si256()}, w, x);
}
// The sum of each row's parts, times a constant.
template <int kTimes>
CAUDAL_INLINE Ints reduce(Parts p) {
  static_assert(kTimes == 1, "only nibble planes are weighted");
  return p;
}
CAUDAL_INLINE Ints reduce_scaled(Parts p, Scales s) {
  return {_mm256_mullo_epi32(p.lo, s.lo), _mm256_mullo_epi32(p.hi, s.hi)};
}

#else

CAUDAL_INLINE Parts dot_first(Bytes w, const int8_t* x) {
  const __m256i a = broadcast32(x);
  Parts r{_mm256_maddubs_epi16(w.lo, a), _mm256_maddubs_epi16(w.hi, a)};
  pin(r.lo);
  pin(r.hi);
  return r;
}
CAUDAL_INLINE Parts dot(Parts acc, Bytes w, const int8_t* x) {
  const __m256i a = broadcast32(x);
  acc.lo = _mm256_add_epi16(acc.lo, _mm256_maddubs_epi16(w.lo, a));
  pin(acc.lo);
  acc.hi = _mm256_add_epi16(acc.hi, _mm256_maddubs_epi16(w.hi, a));
  pin(acc.hi);
  return acc;
}
// The sum of each row's parts, times a constant.
template <int kTimes>
CAUDAL_INLINE Ints reduce(Parts p) {
  const __m256i times = _mm256_set1_epi16(kTimes);
  return {_mm256_madd_epi16(p.lo, times), _mm256_madd_epi16(p.hi, times)};
}
CAUDAL_INLINE Ints reduce_scaled(Parts p, Scales s) {
  return {_mm256_madd_epi16(p.lo, s.lo), _mm256_madd_epi16(p.hi, s.hi)};
}

#endif

CAUDAL_INLINE Pairs load_pairs_u8(const uint8_t* p) {
  return {_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
CAUDAL_INLINE Pairs load_pairs_s8(const uint8_t* p) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
CAUDAL_INLINE Pairs low_nibbles(Pairs p) {
  const __m256i mask = _mm256_set1_epi16(15);
  return {_mm256_and_si256(p.lo, mask), _mm256_and_si256(p.hi, mask)};
}
CAUDAL_INLINE Pairs high_nibbles(Pairs p) { return {_mm256_srli_epi16(p.lo, 4), _mm256_srli_epi16(p.hi, 4)}; }
// Integer `half` of each row's two.
CAUDAL_INLINE Ints half_at(Pairs p, int half) {
  const __m128i count = _mm_cvtsi32_si128(16 - 16 * half);
  return {_mm256_srai_epi32(_mm256_sll_epi32(p.lo, count), 16), _mm256_srai_epi32(_mm256_sll_epi32(p.hi, count), 16)};
}
#ifdef CAUDAL_AVX_VNNI
template <int kIndex>
CAUDAL_INLINE Ints ints_of(Pairs p) {
  if constexpr (kIndex == 0) {
    return {_mm256_srai_epi32(_mm256_slli_epi32(p.lo, 16), 16), _mm256_srai_epi32(_mm256_slli_epi32(p.hi, 16), 16)};
  } else {
    return {_mm256_srai_epi32(p.lo, 16), _mm256_srai_epi32(p.hi, 16)};
  }
}
template <int kIndex>
CAUDAL_INLINE Scales scales_of(Pairs p) {
  return ints_of<kIndex>(p);
}
#else
template <int kIndex>
CAUDAL_INLINE Scales scales_of(Pairs p) {
  if constexpr (kIndex == 0) {
    return {_mm256_blend_epi16(p.lo, _mm256_slli_epi32(p.lo, 16), 0xAA),
            _mm256_blend_epi16(p.hi, _mm256_slli_epi32(p.hi, 16), 0xAA)};
  } else {
    return {_mm256_blend_epi16(p.lo, _mm256_srli_epi32(p.lo, 16), 0x55),
            _mm256_blend_epi16(p.hi, _mm256_srli_epi32(p.hi, 16), 0x55)};
  }
}
template <int kShift>
CAUDAL_INLINE Scales shift_ints(Scales s) {
  return {_mm256_slli_epi16(s.lo, kShift), _mm256_slli_epi16(s.hi, kShift)};
}
#endif
// acc + pair . (x[0], x[1])
CAUDAL_INLINE Ints dot_pairs(Ints acc, Pairs p, const int16_t* x) {
  const __m256i a = broadcast32(x);
  return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(p.lo, a)), _mm256_add_epi32(acc.hi, _mm256_madd_epi16(p.hi, a))};
}

CAUDAL_INLINE Ints ints(int32_t v) { return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
CAUDAL_INLINE Ints broadcast_int(const int32_t* p) {
  const __m256i v = _mm256_set1_epi32(*p);
  return {v, v};
}
CAUDAL_INLINE Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
CAUDAL_INLINE Ints subtract(Ints a, Ints b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
template <int kShift>
CAUDAL_INLINE Ints shift_ints(Ints a) {
  return {_mm256_slli_epi32(a.lo, kShift), _mm256_slli_epi32(a.hi, kShift)};
}

CAUDAL_INLINE Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
CAUDAL_INLINE Floats broadcast(const float* p) {
  const __m256 v = _mm256_broadcast_ss(p);
  return {v, v};
}
CAUDAL_INLINE Floats load_floats(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
CAUDAL_INLINE void store_floats(float* p, Floats f) {
  _mm256_storeu_ps(p, f.lo);
  _mm256_storeu_ps(p + 8, f.hi);
}
CAUDAL_INLINE Floats load_halves(const uint8_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
CAUDAL_INLINE Floats load_bfloats(const uint8_t* p) {
  return {_mm256_castsi256_ps(
              _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16)),
          _mm256_castsi256_ps(
              _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16))), 16))};
}
// 2^(e - 128) of sixteen bytes e; the two smallest are denormal.
CAUDAL_INLINE __m256 powers_of_two(const uint8_t* p) {
  const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  const __m256i denormal = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21), _mm256_min_epi32(e, _mm256_set1_epi32(1)));
  return _mm256_castsi256_ps(_mm256_max_epi32(normal, denormal));
}
CAUDAL_INLINE Floats load_powers(const uint8_t* p) { return {powers_of_two(p), powers_of_two(p + 8)}; }
CAUDAL_INLINE Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
CAUDAL_INLINE Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
CAUDAL_INLINE Floats subtract(Floats a, Floats b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
CAUDAL_INLINE Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
// c + a * b and c - a * b, rounded once.
CAUDAL_INLINE Floats fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
CAUDAL_INLINE Floats fnma(Floats a, Floats b, Floats c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}

// For the quantiser of activations.
CAUDAL_INLINE Floats max_abs(Floats a, Floats b) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_max_ps(_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, b.lo)),
          _mm256_max_ps(_mm256_andnot_ps(sign, a.hi), _mm256_andnot_ps(sign, b.hi))};
}
CAUDAL_INLINE float max_lane(Floats a) {
  const __m256 m = _mm256_max_ps(a.lo, a.hi);
  __m128 n = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
  n = _mm_max_ps(n, _mm_movehl_ps(n, n));
  n = _mm_max_ss(n, _mm_movehdup_ps(n));
  return _mm_cvtss_f32(n);
}
CAUDAL_INLINE __m256 above(__m256 a, __m256 limit) {
  return _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0F), a), limit, _CMP_GT_OQ);
}
// A bit per lane whose magnitude is above the limit, and the others, with zeros in its place. A NaN is not above.
CAUDAL_INLINE uint32_t lanes_above(Floats a, Floats limit) {
  const auto lo = static_cast<uint32_t>(_mm256_movemask_ps(above(a.lo, limit.lo)));
  return lo | static_cast<uint32_t>(_mm256_movemask_ps(above(a.hi, limit.hi))) << 8;
}
CAUDAL_INLINE Floats zero_above(Floats a, Floats limit) {
  return {_mm256_andnot_ps(above(a.lo, limit.lo), a.lo), _mm256_andnot_ps(above(a.hi, limit.hi), a.hi)};
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
  const __m256 limit = _mm256_set1_ps(127.0F);
  const __m256 bottom = _mm256_set1_ps(-127.0F);
  const __m256i lo = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(a.lo, bottom), limit));
  const __m256i hi = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(a.hi, bottom), limit));
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xD8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  return sum_of_bytes(bytes);
}

}  // namespace mm
}  // namespace
}  // namespace caudal

// Primitives of matmul_impl.h for NEON, with and without the dot product extension. Sixteen lanes are four registers.
//
// With it (sdot) weights are signed bytes, which those of up to six bits and Q8_0 are. Without it, products are
// added up in int16, one per lane: 8 quads of 4 or 5 bits reach 31496, 4 of 6 bits 32004.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "matmul_inline.h"

namespace caudal {
namespace {
namespace mm {

#ifdef __ARM_FEATURE_DOTPROD
constexpr int kTileWidth = 6;
constexpr int kDepth6 = 8;
constexpr bool kSplitQ8 = false;
constexpr int kZeroShiftQ8 = 0;  // join_*_nibbles make signed bytes
#else
constexpr int kTileWidth = 2;
constexpr int kDepth6 = 4;
constexpr bool kSplitQ8 = true;  // Q8_0 as two planes of nibbles
constexpr int kZeroShiftQ8 = 7;
#endif
constexpr int kDepth4 = 8;
constexpr int kDepth5 = 8;
// From how many tiles on weights of so many bits are unpacked to scratch first; 0 is never.
constexpr int unpack_from_tiles(int) { return 0; }
constexpr bool keep_in_memory(int width) { return width > 1; }

struct Bytes {
  uint8x16_t v[4];
};  // 16 rows x 4 bytes
struct Ints {
  int32x4_t v[4];
};  // 16 int32
struct Floats {
  float32x4_t v[4];
};
struct Pairs {
  int16x8_t v[4];
};  // 16 rows x 2 int16
using Scales = Ints;
#ifdef __ARM_FEATURE_DOTPROD
using Parts = Ints;
#else
struct Parts {
  int16x8_t v[8];
};  // 16 rows x 4 int16
#endif

// Register i of a result is fn(i).
template <class Result, class Fn>
CAUDAL_INLINE Result each(const Fn& fn) {
  return {{fn(0), fn(1), fn(2), fn(3)}};
}
#define CAUDAL_EACH(Result, ...) each<Result>([&](int i) CAUDAL_LAMBDA { return __VA_ARGS__; })

CAUDAL_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

CAUDAL_INLINE Bytes load_bytes(const uint8_t* p) { return CAUDAL_EACH(Bytes, vld1q_u8(p + 16 * i)); }
CAUDAL_INLINE void store_bytes(uint8_t* p, Bytes b) {
  for (int i = 0; i < 4; ++i) {
    vst1q_u8(p + 16 * i, b.v[i]);
  }
}
CAUDAL_INLINE Bytes low_nibbles(Bytes b) { return CAUDAL_EACH(Bytes, vandq_u8(b.v[i], vdupq_n_u8(15))); }
CAUDAL_INLINE Bytes high_nibbles(Bytes b) { return CAUDAL_EACH(Bytes, vshrq_n_u8(b.v[i], 4)); }
template <int kShift>
CAUDAL_INLINE uint8x16_t shift_left(uint8x16_t v) {
  if constexpr (kShift >= 0) {
    return vshlq_n_u8(v, kShift);
  } else {
    return vshrq_n_u8(v, -kShift);
  }
}
// plane << kShift & kMask
template <int kShift, int kMask>
CAUDAL_INLINE Bytes pick_bits(Bytes plane) {
  return CAUDAL_EACH(Bytes, vandq_u8(shift_left<kShift>(plane.v[i]), vdupq_n_u8(kMask)));
}
// nibbles | (plane << kShift & kMask)
template <int kShift, int kMask>
CAUDAL_INLINE Bytes insert_bits(Bytes nibbles, Bytes plane) {
  return CAUDAL_EACH(Bytes, vorrq_u8(nibbles.v[i], vandq_u8(shift_left<kShift>(plane.v[i]), vdupq_n_u8(kMask))));
}
// Bytes from a plane of their high nibbles and one of their low nibbles: those of the first or the second quad.
CAUDAL_INLINE Bytes join_low_nibbles(Bytes high, Bytes low) {
  return CAUDAL_EACH(Bytes, vsliq_n_u8(vandq_u8(low.v[i], vdupq_n_u8(15)), high.v[i], 4));
}
CAUDAL_INLINE Bytes join_high_nibbles(Bytes high, Bytes low) {
  return CAUDAL_EACH(Bytes, vsriq_n_u8(high.v[i], low.v[i], 4));
}
// The bytes of a table that nibbles stand for.
CAUDAL_INLINE Bytes look_up(const uint8_t* table, Bytes nibbles) {
  const uint8x16_t t = vld1q_u8(table);
  return CAUDAL_EACH(Bytes, vqtbl1q_u8(t, nibbles.v[i]));
}
// Byte kIndex of each row, unsigned.
template <int kIndex>
CAUDAL_INLINE Ints byte_of(Bytes b) {
  return CAUDAL_EACH(Ints, vreinterpretq_s32_u32(vandq_u32(
                               vshlq_u32(vreinterpretq_u32_u8(b.v[i]), vdupq_n_s32(-8 * kIndex)), vdupq_n_u32(255))));
}
// Some bits of each row's 32 in a plane of bytes.
CAUDAL_INLINE Ints bits_at(const uint8_t* plane, int shift, int32_t mask) {
  const Bytes b = load_bytes(plane);
  return CAUDAL_EACH(Ints,
                     vandq_s32(vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_u8(b.v[i]), vdupq_n_s32(-shift))),
                               vdupq_n_s32(mask)));
}
// The integers of a table that nibbles stand for.
CAUDAL_INLINE Ints look_up(const uint8_t* table, Ints nibbles) {
  const Bytes b = look_up(table, CAUDAL_EACH(Bytes, vreinterpretq_u8_s32(nibbles.v[i])));
  return CAUDAL_EACH(Ints, vandq_s32(vreinterpretq_s32_u8(b.v[i]), vdupq_n_s32(255)));
}

CAUDAL_INLINE int8x16_t broadcast_quad(const int8_t* x) {
  int32_t v;
  std::memcpy(&v, x, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(v));
}

CAUDAL_INLINE Ints ints(int32_t v) { return CAUDAL_EACH(Ints, (void(i), vdupq_n_s32(v))); }

#ifdef __ARM_FEATURE_DOTPROD

CAUDAL_INLINE Parts dot(Parts acc, Bytes w, const int8_t* x) {
  const int8x16_t a = broadcast_quad(x);
  return CAUDAL_EACH(Parts, vdotq_s32(acc.v[i], vreinterpretq_s8_u8(w.v[i]), a));
}
CAUDAL_INLINE Parts dot_first(Bytes w, const int8_t* x) { return dot(ints(0), w, x); }
// Q8_0 has w + 128 in its bytes; with the top bit turned they are w.
CAUDAL_INLINE Bytes signed_bytes(Bytes b) { return CAUDAL_EACH(Bytes, veorq_u8(b.v[i], vdupq_n_u8(128))); }
// The sum of each row's parts, times a constant.
template <int kTimes>
CAUDAL_INLINE Ints reduce(Parts p) {
  static_assert(kTimes == 1, "only nibble planes are weighted");
  return p;
}
CAUDAL_INLINE Ints reduce_scaled(Parts p, Scales s) { return CAUDAL_EACH(Ints, vmulq_s32(p.v[i], s.v[i])); }

#else

CAUDAL_INLINE Parts dot_first(Bytes w, const int8_t* x) {
  const int8x8_t a = vget_low_s8(broadcast_quad(x));
  Parts r;
  for (int i = 0; i < 4; ++i) {
    r.v[2 * i] = vmull_s8(vreinterpret_s8_u8(vget_low_u8(w.v[i])), a);
    r.v[2 * i + 1] = vmull_s8(vreinterpret_s8_u8(vget_high_u8(w.v[i])), a);
  }
  return r;
}
CAUDAL_INLINE Parts dot(Parts acc, Bytes w, const int8_t* x) {
  const int8x8_t a = vget_low_s8(broadcast_quad(x));
  for (int i = 0; i < 4; ++i) {
    acc.v[2 * i] = vmlal_s8(acc.v[2 * i], vreinterpret_s8_u8(vget_low_u8(w.v[i])), a);
    acc.v[2 * i + 1] = vmlal_s8(acc.v[2 * i + 1], vreinterpret_s8_u8(vget_high_u8(w.v[i])), a);
  }
  return acc;
}
// The sum of each row's parts, times a constant.
template <int kTimes>
CAUDAL_INLINE Ints reduce(Parts p) {
  return CAUDAL_EACH(Ints, vmulq_n_s32(vpaddq_s32(vpaddlq_s16(p.v[2 * i]), vpaddlq_s16(p.v[2 * i + 1])), kTimes));
}
CAUDAL_INLINE Ints reduce_scaled(Parts p, Scales s) {
  const Ints sums = reduce<1>(p);
  return CAUDAL_EACH(Ints, vmulq_s32(sums.v[i], s.v[i]));
}

#endif

CAUDAL_INLINE Pairs load_pairs_u8(const uint8_t* p) {
  return CAUDAL_EACH(Pairs, vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p + 8 * i))));
}
CAUDAL_INLINE Pairs load_pairs_s8(const uint8_t* p) {
  return CAUDAL_EACH(Pairs, vmovl_s8(vreinterpret_s8_u8(vld1_u8(p + 8 * i))));
}
CAUDAL_INLINE Pairs low_nibbles(Pairs p) { return CAUDAL_EACH(Pairs, vandq_s16(p.v[i], vdupq_n_s16(15))); }
CAUDAL_INLINE Pairs high_nibbles(Pairs p) { return CAUDAL_EACH(Pairs, vshrq_n_s16(p.v[i], 4)); }
template <int kIndex>
CAUDAL_INLINE Ints ints_of(Pairs p) {
  if constexpr (kIndex == 0) {
    return CAUDAL_EACH(Ints, vshrq_n_s32(vshlq_n_s32(vreinterpretq_s32_s16(p.v[i]), 16), 16));
  } else {
    return CAUDAL_EACH(Ints, vshrq_n_s32(vreinterpretq_s32_s16(p.v[i]), 16));
  }
}
// Integer `half` of each row's two.
CAUDAL_INLINE Ints half_at(Pairs p, int half) {
  return CAUDAL_EACH(Ints, vshrq_n_s32(vshlq_s32(vreinterpretq_s32_s16(p.v[i]), vdupq_n_s32(16 - 16 * half)), 16));
}
template <int kIndex>
CAUDAL_INLINE Scales scales_of(Pairs p) {
  return ints_of<kIndex>(p);
}
// acc + pair . (x[0], x[1])
CAUDAL_INLINE Ints dot_pairs(Ints acc, Pairs p, const int16_t* x) {
  int32_t v;
  std::memcpy(&v, x, 4);
  const int16x4_t a = vreinterpret_s16_s32(vdup_n_s32(v));
  return CAUDAL_EACH(
      Ints, vaddq_s32(acc.v[i], vpaddq_s32(vmull_s16(vget_low_s16(p.v[i]), a), vmull_s16(vget_high_s16(p.v[i]), a))));
}

CAUDAL_INLINE Ints broadcast_int(const int32_t* p) { return ints(*p); }
CAUDAL_INLINE Ints add(Ints a, Ints b) { return CAUDAL_EACH(Ints, vaddq_s32(a.v[i], b.v[i])); }
CAUDAL_INLINE Ints subtract(Ints a, Ints b) { return CAUDAL_EACH(Ints, vsubq_s32(a.v[i], b.v[i])); }
template <int kShift>
CAUDAL_INLINE Ints shift_ints(Ints a) {
  return CAUDAL_EACH(Ints, vshlq_n_s32(a.v[i], kShift));
}

CAUDAL_INLINE Floats zeros() { return CAUDAL_EACH(Floats, (void(i), vdupq_n_f32(0.0F))); }
CAUDAL_INLINE Floats broadcast(const float* p) {
  const float32x4_t v = vld1q_dup_f32(p);
  return {{v, v, v, v}};
}
CAUDAL_INLINE Floats load_floats(const float* p) { return CAUDAL_EACH(Floats, vld1q_f32(p + 4 * i)); }
CAUDAL_INLINE void store_floats(float* p, Floats f) {
  for (int i = 0; i < 4; ++i) {
    vst1q_f32(p + 4 * i, f.v[i]);
  }
}
CAUDAL_INLINE Floats load_halves(const uint8_t* p) {
  return CAUDAL_EACH(Floats, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i))));
}
CAUDAL_INLINE Floats load_bfloats(const uint8_t* p) {
  return CAUDAL_EACH(Floats, vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p + 8 * i)), 16)));
}
// 2^(e - 128) of sixteen bytes e; the two smallest are denormal.
CAUDAL_INLINE Floats load_powers(const uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes));
  const uint16x8_t high = vmovl_u8(vget_high_u8(bytes));
  const uint16x4_t quarters[4] = {vget_low_u16(low), vget_high_u16(low), vget_low_u16(high), vget_high_u16(high)};
  Floats r;
  for (int i = 0; i < 4; ++i) {
    const int32x4_t e = vreinterpretq_s32_u32(vmovl_u16(quarters[i]));
    const int32x4_t normal = vshlq_n_s32(vsubq_s32(e, vdupq_n_s32(1)), 23);
    const int32x4_t denormal = vshlq_s32(vdupq_n_s32(1 << 21), vminq_s32(e, vdupq_n_s32(1)));
    r.v[i] = vreinterpretq_f32_s32(vmaxq_s32(normal, denormal));
  }
  return r;
}
CAUDAL_INLINE Floats to_floats(Ints a) { return CAUDAL_EACH(Floats, vcvtq_f32_s32(a.v[i])); }
CAUDAL_INLINE Floats add(Floats a, Floats b) { return CAUDAL_EACH(Floats, vaddq_f32(a.v[i], b.v[i])); }
CAUDAL_INLINE Floats subtract(Floats a, Floats b) { return CAUDAL_EACH(Floats, vsubq_f32(a.v[i], b.v[i])); }
CAUDAL_INLINE Floats mul(Floats a, Floats b) { return CAUDAL_EACH(Floats, vmulq_f32(a.v[i], b.v[i])); }
// c + a * b and c - a * b, rounded once.
CAUDAL_INLINE Floats fma(Floats a, Floats b, Floats c) {
  return CAUDAL_EACH(Floats, vfmaq_f32(c.v[i], a.v[i], b.v[i]));
}
CAUDAL_INLINE Floats fnma(Floats a, Floats b, Floats c) {
  return CAUDAL_EACH(Floats, vfmsq_f32(c.v[i], a.v[i], b.v[i]));
}

// For the quantiser of activations.
CAUDAL_INLINE Floats max_abs(Floats a, Floats b) {
  return CAUDAL_EACH(Floats, vmaxq_f32(vabsq_f32(a.v[i]), vabsq_f32(b.v[i])));
}
CAUDAL_INLINE float max_lane(Floats a) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
}
// A bit per lane whose magnitude is above the limit, and the others, with zeros in its place. A NaN is not above.
CAUDAL_INLINE uint32_t lanes_above(Floats a, Floats limit) {
  alignas(16) static constexpr uint32_t kBits[16] = {
      1, 2, 4, 8, 1 << 4, 1 << 5, 1 << 6, 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
  uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) {
    bits |= vaddvq_u32(vandq_u32(vcagtq_f32(a.v[i], limit.v[i]), vld1q_u32(kBits + 4 * i)));
  }
  return bits;
}
CAUDAL_INLINE Floats zero_above(Floats a, Floats limit) {
  return CAUDAL_EACH(Floats,
                     vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(a.v[i]), vcagtq_f32(a.v[i], limit.v[i]))));
}
// Rounds to the nearest even integer, clamps to +-127, stores 16 int8 and returns their sum.
CAUDAL_INLINE int32_t store_rounded(int8_t* p, Floats a) {
  const Ints q = CAUDAL_EACH(Ints, vmaxq_s32(vminq_s32(vcvtnq_s32_f32(a.v[i]), vdupq_n_s32(127)), vdupq_n_s32(-127)));
  const int16x8_t lo = vcombine_s16(vmovn_s32(q.v[0]), vmovn_s32(q.v[1]));
  const int16x8_t hi = vcombine_s16(vmovn_s32(q.v[2]), vmovn_s32(q.v[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
  return vaddvq_s32(vaddq_s32(vaddq_s32(q.v[0], q.v[1]), vaddq_s32(q.v[2], q.v[3])));
}

}  // namespace mm
}  // namespace
}  // namespace caudal

// Float vectors of four lanes: AArch64 NEON.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace caudal {
namespace {

constexpr int kLanes = 4;
constexpr int kVectorRegisters = 32;

struct VecF {
  float32x4_t v;
};

inline VecF load(const float* p) { return {vld1q_f32(p)}; }
inline void store(float* p, VecF a) { vst1q_f32(p, a.v); }
inline VecF set1(float x) { return {vdupq_n_f32(x)}; }
inline VecF add(VecF a, VecF b) { return {vaddq_f32(a.v, b.v)}; }
inline VecF sub(VecF a, VecF b) { return {vsubq_f32(a.v, b.v)}; }
inline VecF mul(VecF a, VecF b) { return {vmulq_f32(a.v, b.v)}; }
inline VecF div(VecF a, VecF b) { return {vdivq_f32(a.v, b.v)}; }
// The "number" forms give the other operand where one is NaN.
// The second operand where one is NaN, as maxps and minps have it.
inline VecF max(VecF a, VecF b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
inline VecF min(VecF a, VecF b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }
inline VecF fma(VecF a, VecF b, VecF c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
inline VecF round_even(VecF a) { return {vrndnq_f32(a.v)}; }
inline VecF zero_where_less(VecF value, VecF a, VecF b) {
  return {vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value.v), vcltq_f32(a.v, b.v)))};
}
// A bit for each lane, the first one lowest: whether a >= b. Never where one is NaN.
inline uint32_t lanes_not_below(VecF a, VecF b) {
  const uint32x4_t bits = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(vcgeq_f32(a.v, b.v), bits));
}
// Stores these lanes one behind another; what follows them, up to kLanes in all, is overwritten.
inline void store_lanes(float* p, VecF a, uint32_t lanes) {
  float all[kLanes];
  vst1q_f32(all, a.v);
  for (; lanes != 0; lanes &= lanes - 1) *p++ = all[__builtin_ctz(lanes)];
}
inline VecF exp2_whole(VecF n) {
  int32x4_t e = vaddq_s32(vcvtnq_s32_f32(n.v), vdupq_n_s32(127));
  return {vreinterpretq_f32_s32(vshlq_n_s32(e, 23))};
}
inline VecF load_half(const uint16_t* p) { return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))}; }
inline VecF load_int8(const int8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, 4);
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four))))))};
}
inline void store_half(uint16_t* p, VecF a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.v))); }
inline float reduce_add(VecF a) { return vaddvq_f32(a.v); }
inline float reduce_max(VecF a) { return vmaxnmvq_f32(a.v); }

}  // namespace
}  // namespace caudal

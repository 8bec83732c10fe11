// Float vectors of one lane, in plain C++: the oracle's arithmetic.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace caudal {
namespace {

constexpr int kLanes = 1;
constexpr int kVectorRegisters = 16;

struct VecF {
  float v;
};

inline VecF load(const float* p) { return {*p}; }
inline void store(float* p, VecF a) { *p = a.v; }
inline VecF set1(float x) { return {x}; }
inline VecF add(VecF a, VecF b) { return {a.v + b.v}; }
inline VecF sub(VecF a, VecF b) { return {a.v - b.v}; }
inline VecF mul(VecF a, VecF b) { return {a.v * b.v}; }
inline VecF div(VecF a, VecF b) { return {a.v / b.v}; }
// The second operand where the first is NaN, as maxps and minps have it.
inline VecF max(VecF a, VecF b) { return {a.v > b.v ? a.v : b.v}; }
inline VecF min(VecF a, VecF b) { return {a.v < b.v ? a.v : b.v}; }
inline VecF fma(VecF a, VecF b, VecF c) { return {__builtin_fmaf(a.v, b.v, c.v)}; }
inline VecF round_even(VecF a) { return {__builtin_nearbyintf(a.v)}; }
inline VecF zero_where_less(VecF value, VecF a, VecF b) { return {a.v < b.v ? 0.0f : value.v}; }
// A bit for each lane, the first one lowest: whether a >= b. Never where one is NaN.
inline uint32_t lanes_not_below(VecF a, VecF b) { return a.v >= b.v ? 1u : 0u; }
// Stores these lanes one behind another; what follows them, up to kLanes in all, is overwritten.
inline void store_lanes(float* p, VecF a, uint32_t lanes) {
  if (lanes != 0) *p = a.v;
}

// 2^n for whole n in [-126, 127].
inline VecF exp2_whole(VecF n) {
  uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n.v) + 127) << 23;
  float f;
  std::memcpy(&f, &bits, 4);
  return {f};
}

inline float half_to_float(uint16_t h) {
  uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  uint32_t exponent = (h >> 10) & 31;
  uint32_t fraction = h & 0x3ff;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | (fraction << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  } else {
    float f = static_cast<float>(fraction) * 0x1p-24f;
    std::memcpy(&bits, &f, 4);
    bits |= sign;
  }
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

inline uint16_t float_to_half(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x47800000u) {
    return static_cast<uint16_t>(sign | (magnitude > 0x7f800000u ? 0x7e00 : 0x7c00));
  }
  if (magnitude < 0x38800000u) {  // subnormal: scale so that the fraction's unit is one
    float scaled = __builtin_nearbyintf(__builtin_fabsf(f) * 0x1p24f);
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(scaled));
  }
  uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline VecF load_int8(const int8_t* p) { return {static_cast<float>(*p)}; }
inline VecF load_half(const uint16_t* p) { return {half_to_float(*p)}; }
inline void store_half(uint16_t* p, VecF a) { *p = float_to_half(a.v); }
inline float reduce_add(VecF a) { return a.v; }
inline float reduce_max(VecF a) { return a.v; }

}  // namespace
}  // namespace caudal

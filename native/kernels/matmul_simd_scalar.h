// Primitives of matmul_impl.h in plain C++: the reference of every other set, and the fallback where there is none.
// Written for clarity; the compiler may vectorise it as it can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "matmul_inline.h"

namespace caudal {
namespace {
namespace mm {

constexpr int kTileWidth = 1;
constexpr int kDepth4 = 8;
constexpr int kDepth5 = 8;
constexpr int kDepth6 = 8;
constexpr bool kSplitQ8 = false;
constexpr int kZeroShiftQ8 = 7;
// From how many tiles on weights of so many bits are unpacked to scratch first; 0 is never.
constexpr int unpack_from_tiles(int) { return 0; }
constexpr bool keep_in_memory(int) { return false; }

struct Bytes {
  uint8_t v[64];
};
struct Ints {
  int32_t v[16];
};
struct Floats {
  float v[16];
};
struct Pairs {
  int16_t v[32];
};
using Parts = Ints;
using Scales = Ints;

CAUDAL_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

CAUDAL_INLINE Bytes load_bytes(const uint8_t* p) {
  Bytes b;
  std::memcpy(b.v, p, 64);
  return b;
}
CAUDAL_INLINE void store_bytes(uint8_t* p, const Bytes& b) { std::memcpy(p, b.v, 64); }

template <class Fn>
CAUDAL_INLINE Bytes map_bytes(const Fn& fn) {
  Bytes r;
  for (int i = 0; i < 64; ++i) {
    r.v[i] = static_cast<uint8_t>(fn(i));
  }
  return r;
}
template <class Fn>
CAUDAL_INLINE Ints map_ints(const Fn& fn) {
  Ints r;
  for (int i = 0; i < 16; ++i) {
    r.v[i] = fn(i);
  }
  return r;
}
template <class Fn>
CAUDAL_INLINE Floats map_floats(const Fn& fn) {
  Floats r;
  for (int i = 0; i < 16; ++i) {
    r.v[i] = fn(i);
  }
  return r;
}

CAUDAL_INLINE Bytes low_nibbles(const Bytes& b) {
  return map_bytes([&](int i) { return b.v[i] & 15; });
}
CAUDAL_INLINE Bytes high_nibbles(const Bytes& b) {
  return map_bytes([&](int i) { return b.v[i] >> 4; });
}
// plane << kShift & kMask
template <int kShift, int kMask>
CAUDAL_INLINE Bytes pick_bits(const Bytes& plane) {
  return map_bytes([&](int i) {
    const int p = plane.v[i];
    return (kShift >= 0 ? p << (kShift >= 0 ? kShift : 0) : p >> (kShift >= 0 ? 0 : -kShift)) & kMask;
  });
}
// nibbles | (plane << kShift & kMask)
template <int kShift, int kMask>
CAUDAL_INLINE Bytes insert_bits(const Bytes& nibbles, const Bytes& plane) {
  const Bytes bits = pick_bits<kShift, kMask>(plane);
  return map_bytes([&](int i) { return nibbles.v[i] | bits.v[i]; });
}
// Bytes from a plane of their high nibbles and one of their low nibbles: those of the first or the second quad.
CAUDAL_INLINE Bytes join_low_nibbles(const Bytes& high, const Bytes& low) {
  return map_bytes([&](int i) { return (high.v[i] & 15) << 4 | (low.v[i] & 15); });
}
CAUDAL_INLINE Bytes join_high_nibbles(const Bytes& high, const Bytes& low) {
  return map_bytes([&](int i) { return (high.v[i] & 0xF0) | low.v[i] >> 4; });
}
// The bytes of a table that nibbles stand for.
CAUDAL_INLINE Bytes look_up(const uint8_t* table, const Bytes& nibbles) {
  return map_bytes([&](int i) { return table[nibbles.v[i]]; });
}
template <int kIndex>
CAUDAL_INLINE Ints byte_of(const Bytes& b) {
  return map_ints([&](int i) { return static_cast<int32_t>(b.v[4 * i + kIndex]); });
}
// Some bits of each row's 32 in a plane of bytes.
CAUDAL_INLINE Ints bits_at(const uint8_t* plane, int shift, int32_t mask) {
  return map_ints([&](int i) {
    const uint8_t* p = plane + 4 * i;
    const uint32_t bits = p[0] | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
    return static_cast<int32_t>(bits >> shift) & mask;
  });
}
// The integers of a table that nibbles stand for.
CAUDAL_INLINE Ints look_up(const uint8_t* table, const Ints& nibbles) {
  return map_ints([&](int i) { return static_cast<int32_t>(table[nibbles.v[i]]); });
}

CAUDAL_INLINE Parts dot(const Parts& acc, const Bytes& w, const int8_t* x) {
  return map_ints([&](int i) {
    return acc.v[i] + w.v[4 * i] * x[0] + w.v[4 * i + 1] * x[1] + w.v[4 * i + 2] * x[2] + w.v[4 * i + 3] * x[3];
  });
}
CAUDAL_INLINE Ints ints(int32_t v) {
  return map_ints([&](int) { return v; });
}
CAUDAL_INLINE Parts dot_first(const Bytes& w, const int8_t* x) { return dot(ints(0), w, x); }
template <int kTimes>
CAUDAL_INLINE Ints reduce(const Parts& p) {
  return map_ints([&](int i) { return p.v[i] * kTimes; });
}
CAUDAL_INLINE Ints reduce_scaled(const Parts& p, const Scales& s) {
  return map_ints([&](int i) { return p.v[i] * s.v[i]; });
}

template <class Fn>
CAUDAL_INLINE Pairs map_pairs(const Fn& fn) {
  Pairs r;
  for (int i = 0; i < 32; ++i) {
    r.v[i] = static_cast<int16_t>(fn(i));
  }
  return r;
}
CAUDAL_INLINE Pairs load_pairs_u8(const uint8_t* p) {
  return map_pairs([&](int i) { return p[i]; });
}
CAUDAL_INLINE Pairs load_pairs_s8(const uint8_t* p) {
  return map_pairs([&](int i) { return static_cast<int8_t>(p[i]); });
}
CAUDAL_INLINE Pairs low_nibbles(const Pairs& p) {
  return map_pairs([&](int i) { return p.v[i] & 15; });
}
CAUDAL_INLINE Pairs high_nibbles(const Pairs& p) {
  return map_pairs([&](int i) { return p.v[i] >> 4; });
}
template <int kIndex>
CAUDAL_INLINE Ints ints_of(const Pairs& p) {
  return map_ints([&](int i) { return static_cast<int32_t>(p.v[2 * i + kIndex]); });
}
// Integer `half` of each row's two.
CAUDAL_INLINE Ints half_at(const Pairs& p, int half) {
  return map_ints([&](int i) { return static_cast<int32_t>(p.v[2 * i + half]); });
}
template <int kIndex>
CAUDAL_INLINE Scales scales_of(const Pairs& p) {
  return ints_of<kIndex>(p);
}
// acc + pair . (x[0], x[1])
CAUDAL_INLINE Ints dot_pairs(const Ints& acc, const Pairs& p, const int16_t* x) {
  return map_ints([&](int i) { return acc.v[i] + p.v[2 * i] * x[0] + p.v[2 * i + 1] * x[1]; });
}

CAUDAL_INLINE Ints broadcast_int(const int32_t* p) { return ints(*p); }
CAUDAL_INLINE Ints add(const Ints& a, const Ints& b) {
  return map_ints([&](int i) { return a.v[i] + b.v[i]; });
}
CAUDAL_INLINE Ints subtract(const Ints& a, const Ints& b) {
  return map_ints([&](int i) { return a.v[i] - b.v[i]; });
}
template <int kShift>
CAUDAL_INLINE Ints shift_ints(const Ints& a) {
  return map_ints([&](int i) { return a.v[i] * (1 << kShift); });
}

CAUDAL_INLINE Floats zeros() {
  return map_floats([](int) { return 0.0F; });
}
CAUDAL_INLINE Floats broadcast(const float* p) {
  return map_floats([&](int) { return *p; });
}
CAUDAL_INLINE Floats load_floats(const float* p) {
  return map_floats([&](int i) { return p[i]; });
}
CAUDAL_INLINE void store_floats(float* p, const Floats& f) { std::memcpy(p, f.v, 64); }
CAUDAL_INLINE float float_of_bits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
CAUDAL_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 31U;
  const uint32_t fraction = half & 1023U;
  if (exponent == 0) {  // zero or denormal: fraction / 2^24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t biased = exponent == 31 ? 255U : exponent + 112U;
  return float_of_bits(sign | biased << 23 | fraction << 13);
}
CAUDAL_INLINE uint16_t load_16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}
CAUDAL_INLINE Floats load_halves(const uint8_t* p) {
  return map_floats([&](int i) { return half_to_float(load_16(p + 2 * i)); });
}
CAUDAL_INLINE Floats load_bfloats(const uint8_t* p) {
  return map_floats([&](int i) { return float_of_bits(static_cast<uint32_t>(load_16(p + 2 * i)) << 16); });
}
// 2^(e - 128) of sixteen bytes e; the two smallest are denormal.
CAUDAL_INLINE Floats load_powers(const uint8_t* p) {
  return map_floats([&](int i) {
    const uint32_t e = p[i];
    return float_of_bits(e < 2 ? 1U << (21 + e) : (e - 1) << 23);
  });
}
CAUDAL_INLINE Floats to_floats(const Ints& a) {
  return map_floats([&](int i) { return static_cast<float>(a.v[i]); });
}
CAUDAL_INLINE Floats add(const Floats& a, const Floats& b) {
  return map_floats([&](int i) { return a.v[i] + b.v[i]; });
}
CAUDAL_INLINE Floats subtract(const Floats& a, const Floats& b) {
  return map_floats([&](int i) { return a.v[i] - b.v[i]; });
}
CAUDAL_INLINE Floats mul(const Floats& a, const Floats& b) {
  return map_floats([&](int i) { return a.v[i] * b.v[i]; });
}
// c + a * b and c - a * b, rounded once.
CAUDAL_INLINE Floats fma(const Floats& a, const Floats& b, const Floats& c) {
  return map_floats([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
CAUDAL_INLINE Floats fnma(const Floats& a, const Floats& b, const Floats& c) {
  return map_floats([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
}

CAUDAL_INLINE Floats max_abs(const Floats& a, const Floats& b) {
  return map_floats([&](int i) {
    const float p = __builtin_fabsf(a.v[i]);
    const float q = __builtin_fabsf(b.v[i]);
    return p > q ? p : q;
  });
}
CAUDAL_INLINE float max_lane(const Floats& a) {
  float m = a.v[0];
  for (int i = 1; i < 16; ++i) {
    m = m > a.v[i] ? m : a.v[i];
  }
  return m;
}
// A bit per lane whose magnitude is above the limit, and the others, with zeros in its place. A NaN is not above.
CAUDAL_INLINE uint32_t lanes_above(const Floats& a, const Floats& limit) {
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) {
    bits |= __builtin_fabsf(a.v[i]) > limit.v[i] ? uint32_t{1} << i : 0;
  }
  return bits;
}
CAUDAL_INLINE Floats zero_above(const Floats& a, const Floats& limit) {
  return map_floats([&](int i) { return __builtin_fabsf(a.v[i]) > limit.v[i] ? 0.0F : a.v[i]; });
}
// Rounds to the nearest even integer, clamps to +-127, stores 16 int8 and returns their sum.
CAUDAL_INLINE int32_t store_rounded(int8_t* p, const Floats& a) {
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) {
    const float r = __builtin_nearbyintf(a.v[i]);
    const int32_t q = r >= 127.0F ? 127 : r >= -127.0F ? static_cast<int32_t>(r) : -127;  // NaN is -127
    p[i] = static_cast<int8_t>(q);
    sum += q;
  }
  return sum;
}

}  // namespace mm
}  // namespace
}  // namespace caudal

// Q2_K and Q3_K: sub-blocks of 16 values whose lower two bits share one plane: part of matmul_impl.h.
#pragma once

namespace caudal {
namespace {
namespace mm {

struct TwoBits {
  const uint8_t* plane;
  template <int kQuad>
  CAUDAL_INLINE Bytes quad() const {
    return pick_bits<-2 * kQuad, 3>(load_bytes(plane));
  }
  CAUDAL_INLINE Ints element(int quad, int i) const { return bits_at(plane, 8 * i + 2 * quad, 3); }
};

// A pair of sub-blocks shares the plane of the third bits.
template <int kHalf>
struct ThreeBits {
  const uint8_t* plane;
  const uint8_t* third;
  template <int kQuad>
  CAUDAL_INLINE Bytes quad() const {
    return insert_bits<2 - 4 * kHalf - kQuad, 4>(TwoBits{plane}.quad<kQuad>(), load_bytes(third));
  }
  CAUDAL_INLINE Ints element(int quad, int i) const {
    return add(TwoBits{plane}.element(quad, i), shift_ints<2>(bits_at(third, 8 * i + 4 * kHalf + quad, 1)));
  }
};

template <Format kFormat, int kBits>
struct TraitsLowBits {
  static constexpr int kBitCount = kBits;
  static constexpr int kBlock = 256;
  static constexpr int kBlockBytes = format_info(kFormat).panel_block_bytes;
  static constexpr int kSubBlocks = 16;
  static constexpr int kQuads = 4;
  static constexpr int kPlanes = 1;
  static constexpr int kDepth = 4;  // sums of 16 values below 8 fit in int16
  static constexpr bool kHasMin = kBits == 2;
  static constexpr int kTrueZeroShift = kHasMin ? -1 : 2;
  static constexpr int kZeroShift = kTrueZeroShift;
  static constexpr int kThirdAt = 16 * kPlane;
  static constexpr int kScalesAt = kThirdAt + (kBits == 3 ? 8 * kPlane : 0);
  static constexpr int kFloatsAt = kScalesAt + 256;

  CAUDAL_INLINE static Floats scale(const uint8_t* p) { return load_halves(p + kFloatsAt); }
  CAUDAL_INLINE static Pairs scale_pairs(const uint8_t* p, int pair) {
    if constexpr (kBits == 2) {
      return low_nibbles(load_pairs_u8(p + kScalesAt + pair * 32));
    } else {
      return load_pairs_s8(p + kScalesAt + pair * 32);
    }
  }
  CAUDAL_INLINE static Pairs min_pairs(const uint8_t* p, int pair) {
    return high_nibbles(load_pairs_u8(p + kScalesAt + pair * 32));
  }
  template <int kHalf>
  CAUDAL_INLINE static auto whole(const uint8_t* p, int sub) {
    if constexpr (kBits == 2) {
      return TwoBits{p + sub * kPlane};
    } else {
      return ThreeBits<kHalf>{p + sub * kPlane, p + kThirdAt + sub / 2 * kPlane};
    }
  }
  template <int kPart, int kHalf>
  CAUDAL_INLINE static auto plane(const uint8_t* p, int sub) {
    return whole<kHalf>(p, sub);
  }
};

template <>
struct TraitsOf<Format::q2_k> : TraitsLowBits<Format::q2_k, 2> {};
template <>
struct TraitsOf<Format::q3_k> : TraitsLowBits<Format::q3_k, 3> {};

}  // namespace mm
}  // namespace
}  // namespace caudal

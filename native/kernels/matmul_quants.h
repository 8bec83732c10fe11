// How each weight format keeps its integers in a panel block: part of matmul_impl.h.
//
// A source gives the 16 rows x 4 bytes of a quad of one sub-block, whose half of its pair is known when compiling.
// `whole` sources give complete values, and single elements of 16 rows; `plane` sources give what one pass of the dot
// product takes, which differs for Q8_0 where bytes must stay small (kSplitQ8).
#pragma once

#include <type_traits>
#include <utility>

#include "../formats/format_info.h"

namespace caudal {
namespace {
namespace mm {

// Calls fn(integral_constant<int, 0>) .. fn(integral_constant<int, N - 1>), unrolled.
template <class Fn, int... kIs>
CAUDAL_INLINE void unroll_sequence(const Fn& fn, std::integer_sequence<int, kIs...>) {
  (fn(std::integral_constant<int, kIs>{}), ...);
}
template <int kCount, class Fn>
CAUDAL_INLINE void unroll(const Fn& fn) {
  unroll_sequence(fn, std::make_integer_sequence<int, kCount>{});
}

// Already one byte per value: [quad][16][4].
struct UnpackedBytes {
  const uint8_t* bytes;
  template <int kQuad>
  CAUDAL_INLINE Bytes quad() const {
    return load_bytes(bytes + kQuad * 64);
  }
};

struct Nibbles {
  const uint8_t* nibbles;
  template <int kQuad>
  CAUDAL_INLINE Bytes quad() const {
    const Bytes both = load_bytes(nibbles + kQuad / 2 * 64);
    if constexpr (kQuad % 2 == 0) {
      return low_nibbles(both);
    } else {
      return high_nibbles(both);
    }
  }
  CAUDAL_INLINE Ints element(int quad, int i) const {
    return bits_at(nibbles + quad / 2 * 64, 8 * i + 4 * (quad % 2), 15);
  }
};

// Nibbles and a plane with bit 4 of eight quads.
struct Nibbles5 {
  const uint8_t* nibbles;
  const uint8_t* plane;
  template <int kQuad>
  CAUDAL_INLINE Bytes quad() const {
    return insert_bits<4 - kQuad, 0x10>(Nibbles{nibbles}.quad<kQuad>(), load_bytes(plane));
  }
  CAUDAL_INLINE Ints element(int quad, int i) const {
    return add(Nibbles{nibbles}.element(quad, i), shift_ints<4>(bits_at(plane, 8 * i + quad, 1)));
  }
};

// Nibbles and a plane with bits 4 and 5 of four quads.
struct Nibbles6 {
  const uint8_t* nibbles;
  const uint8_t* plane;
  template <int kQuad>
  CAUDAL_INLINE Bytes quad() const {
    return insert_bits<4 - 2 * kQuad, 0x30>(Nibbles{nibbles}.quad<kQuad>(), load_bytes(plane));
  }
  CAUDAL_INLINE Ints element(int quad, int i) const {
    return add(Nibbles{nibbles}.element(quad, i), shift_ints<4>(bits_at(plane, 8 * i + 2 * quad, 3)));
  }
};

// Two nibble planes make a byte.
struct Nibbles8 {
  const uint8_t* high;
  const uint8_t* low;
  template <int kQuad>
  CAUDAL_INLINE Bytes quad() const {
    const Bytes highs = load_bytes(high + kQuad / 2 * 64);
    const Bytes lows = load_bytes(low + kQuad / 2 * 64);
    if constexpr (kQuad % 2 == 0) {
      return join_low_nibbles(highs, lows);
    } else {
      return join_high_nibbles(highs, lows);
    }
  }
  CAUDAL_INLINE Ints element(int quad, int i) const {
    return add(Nibbles{low}.element(quad, i), shift_ints<4>(Nibbles{high}.element(quad, i)));
  }
};

// Bytes as the dot product takes them: w + 128, or w where it multiplies signed bytes (kZeroShiftQ8 is 0).
struct DotNibbles8 {
  Nibbles8 source;
  template <int kQuad>
  CAUDAL_INLINE Bytes quad() const {
    if constexpr (kZeroShiftQ8 == 0) {
      return signed_bytes(source.quad<kQuad>());
    } else {
      return source.quad<kQuad>();
    }
  }
};

// The 32-blocks: f16 scale per block, and a minimum or a zero point of 1 << kZeroShift.
template <Format kFormat, int kBits>
struct Traits32 {
  static constexpr int kBitCount = kBits;
  static constexpr int kBlock = 32;
  static constexpr int kBlockBytes = format_info(kFormat).panel_block_bytes;
  static constexpr int kSubBlocks = 1;
  static constexpr int kQuads = 8;
  static constexpr int kPlanes = kBits == 8 && kSplitQ8 ? 2 : 1;
  static constexpr int kDepth = kBits == 4 || kPlanes == 2 ? kDepth4 : kBits == 5 ? kDepth5 : 8;
  static constexpr bool kHasMin = kFormat == Format::q4_1 || kFormat == Format::q5_1;
  static constexpr int kTrueZeroShift = kHasMin ? -1 : kBits - 1;
  static constexpr int kZeroShift = kBits == 8 ? kZeroShiftQ8 : kTrueZeroShift;
  static constexpr int kFloatsAt = kNibbles32 + (kBits == 5 ? kPlane : kBits == 8 ? kNibbles32 : 0);

  CAUDAL_INLINE static Floats scale(const uint8_t* p) { return load_halves(p + kFloatsAt); }
  template <int kHalf>
  CAUDAL_INLINE static auto whole(const uint8_t* p, int) {
    if constexpr (kBits == 4) {
      return Nibbles{p};
    } else if constexpr (kBits == 5) {
      return Nibbles5{p, p + kNibbles32};
    } else {
      return Nibbles8{p, p + kNibbles32};
    }
  }
  template <int kPart, int kHalf>
  CAUDAL_INLINE static auto plane(const uint8_t* p, int) {
    if constexpr (kPlanes == 2) {
      return Nibbles{p + kPart * kNibbles32};
    } else if constexpr (kBits == 8) {
      return DotNibbles8{whole<0>(p, 0)};
    } else {
      return whole<0>(p, 0);
    }
  }
};

// The 256-blocks: integer scales per sub-block, f16 scale per block.
template <Format kFormat, int kBits>
struct Traits256 {
  static constexpr int kBitCount = kBits;
  static constexpr int kBlock = 256;
  static constexpr int kBlockBytes = format_info(kFormat).panel_block_bytes;
  static constexpr int kSubBlocks = kBits == 6 ? 16 : 8;
  static constexpr int kQuads = 64 / kSubBlocks;
  static constexpr int kPlanes = 1;
  static constexpr int kDepthAllowed = kBits == 4 ? kDepth4 : kBits == 5 ? kDepth5 : kDepth6;
  static constexpr int kDepth = kDepthAllowed < kQuads ? kDepthAllowed : kQuads;
  static constexpr bool kHasMin = kBits != 6;
  static constexpr int kTrueZeroShift = kHasMin ? -1 : 5;
  static constexpr int kZeroShift = kTrueZeroShift;
  static constexpr int kScalesAt = kNibbles256 + (kBits == 5 ? 8 * kPlane : kBits == 6 ? 16 * kPlane : 0);
  static constexpr int kMinsAt = kScalesAt + 128;
  static constexpr int kFloatsAt = kScalesAt + 256;

  CAUDAL_INLINE static Floats scale(const uint8_t* p) { return load_halves(p + kFloatsAt); }
  CAUDAL_INLINE static Pairs min_pairs(const uint8_t* p, int pair) { return load_pairs_u8(p + kMinsAt + pair * 32); }
  CAUDAL_INLINE static Pairs scale_pairs(const uint8_t* p, int pair) {
    if constexpr (kBits == 6) {
      return load_pairs_s8(p + kScalesAt + pair * 32);
    } else {
      return load_pairs_u8(p + kScalesAt + pair * 32);
    }
  }
  template <int kHalf>
  CAUDAL_INLINE static auto whole(const uint8_t* p, int sub) {
    if constexpr (kBits == 4) {
      return Nibbles{p + sub * 256};
    } else if constexpr (kBits == 5) {
      return Nibbles5{p + sub * 256, p + kNibbles256 + sub * kPlane};
    } else {
      return Nibbles6{p + sub * 128, p + kNibbles256 + sub * kPlane};
    }
  }
  template <int kPart, int kHalf>
  CAUDAL_INLINE static auto plane(const uint8_t* p, int sub) {
    return whole<kHalf>(p, sub);
  }
};

template <Format kFormat>
struct TraitsOf;
template <>
struct TraitsOf<Format::q4_0> : Traits32<Format::q4_0, 4> {};
template <>
struct TraitsOf<Format::q4_1> : Traits32<Format::q4_1, 4> {};
template <>
struct TraitsOf<Format::q5_0> : Traits32<Format::q5_0, 5> {};
template <>
struct TraitsOf<Format::q5_1> : Traits32<Format::q5_1, 5> {};
template <>
struct TraitsOf<Format::q8_0> : Traits32<Format::q8_0, 8> {};
template <>
struct TraitsOf<Format::q4_k> : Traits256<Format::q4_k, 4> {};
template <>
struct TraitsOf<Format::q5_k> : Traits256<Format::q5_k, 5> {};
template <>
struct TraitsOf<Format::q6_k> : Traits256<Format::q6_k, 6> {};

// Calls fn(pair, integral_constant<int, half>) for every sub-block.
template <class Traits, class Fn>
CAUDAL_INLINE void for_each_sub_block(const Fn& fn) {
  for (int pair = 0; pair * 2 < Traits::kSubBlocks; ++pair) {
    unroll<Traits::kSubBlocks == 1 ? 1 : 2>([&](auto half) CAUDAL_LAMBDA { fn(pair, half); });
  }
}

// One byte per value, plane by plane, for tiles that will read the block several times.
template <class Traits>
CAUDAL_INLINE void unpack_block(const uint8_t* p, uint8_t* dst) {
  for_each_sub_block<Traits>([&](int pair, auto half) CAUDAL_LAMBDA {
    unroll<Traits::kPlanes>([&](auto part) CAUDAL_LAMBDA {
      const auto source = Traits::template plane<decltype(part)::value, decltype(half)::value>(p, pair * 2 + half);
      unroll<Traits::kQuads>([&](auto q) CAUDAL_LAMBDA {
        store_bytes(dst + decltype(q)::value * 64, source.template quad<decltype(q)::value>());
      });
      dst += Traits::kQuads * 64;
    });
  });
}

// How the integers of a sub-block become weights: scale * (q - zero) + least.
struct Levels {
  Floats scale;
  Floats least;
  Ints zero;
};

template <class Traits>
CAUDAL_INLINE Levels levels_of(const uint8_t* p, int sub) {
  Levels levels{Traits::scale(p), zeros(), ints(0)};
  if constexpr (Traits::kBlock == 256) {
    levels.scale = mul(levels.scale, to_floats(half_at(Traits::scale_pairs(p, sub / 2), sub % 2)));
  }
  if constexpr (!Traits::kHasMin) {
    levels.zero = ints(1 << Traits::kTrueZeroShift);
  } else if constexpr (Traits::kBlock == 256) {
    const Floats dmin = load_halves(p + Traits::kFloatsAt + kHalves);
    levels.least = mul(dmin, to_floats(half_at(Traits::min_pairs(p, sub / 2), sub % 2)));
  } else {
    levels.least = load_halves(p + Traits::kFloatsAt + kHalves);
  }
  return levels;
}

template <class Traits>
CAUDAL_INLINE Floats weight_of(const Levels& levels, Ints q) {
  const Floats w = mul(levels.scale, to_floats(subtract(q, levels.zero)));
  if constexpr (Traits::kHasMin) {
    return Traits::kBlock == 256 ? subtract(w, levels.least) : add(w, levels.least);
  } else {
    return w;
  }
}

// dst[block][16] = the weights of a block as float32, computed as the format defines them.
template <class Traits>
CAUDAL_INLINE void dequantize_block(const uint8_t* p, float* dst) {
  for_each_sub_block<Traits>([&](int pair, auto half) CAUDAL_LAMBDA {
    constexpr int kHalf = decltype(half)::value;
    const Levels levels = levels_of<Traits>(p, pair * 2 + kHalf);
    const auto source = Traits::template whole<kHalf>(p, pair * 2 + kHalf);
    unroll<Traits::kQuads>([&](auto q) CAUDAL_LAMBDA {
      const Bytes bytes = source.template quad<decltype(q)::value>();
      unroll<4>([&](auto i) CAUDAL_LAMBDA {
        store_floats(dst, weight_of<Traits>(levels, byte_of<decltype(i)::value>(bytes)));
        dst += 16;
      });
    });
  });
}

// The weights of element k of a block.
template <class Traits>
CAUDAL_INLINE Floats dequantize_element(const uint8_t* p, int k) {
  const int sub = k / (4 * Traits::kQuads);
  const int quad = k / 4 % Traits::kQuads;
  const Ints q = sub % 2 == 0 ? Traits::template whole<0>(p, sub).element(quad, k % 4)
                              : Traits::template whole<1>(p, sub).element(quad, k % 4);
  return weight_of<Traits>(levels_of<Traits>(p, sub), q);
}

}  // namespace mm
}  // namespace
}  // namespace caudal

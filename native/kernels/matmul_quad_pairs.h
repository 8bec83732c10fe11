// Dot products for AArch64 with i8mm, two quads and two columns at a time: part of matmul_tiles.h.
//
// smmla multiplies 2 rows x 8 k with 2 columns x 8 k. Interleaving the 32-bit lanes of two quads gives just that for
// rows and columns alike, so packed weights need no other layout; a column's two quads are neighbours.
#pragma once

namespace caudal {
namespace {
namespace mm {

CAUDAL_INLINE int8x16_t interleave_low(uint8x16_t even, uint8x16_t odd) {
  return vreinterpretq_s8_s32(vzip1q_s32(vreinterpretq_s32_u8(even), vreinterpretq_s32_u8(odd)));
}
CAUDAL_INLINE int8x16_t interleave_high(uint8x16_t even, uint8x16_t odd) {
  return vreinterpretq_s8_s32(vzip2q_s32(vreinterpretq_s32_u8(even), vreinterpretq_s32_u8(odd)));
}

// Two neighbouring quads of two columns.
CAUDAL_INLINE int8x16_t load_columns(const int8_t* first, const int8_t* second) {
  return vcombine_s8(vld1_s8(first), vld1_s8(second));
}

// What dot_quads of matmul_tiles.h does.
template <int kQuads, int kDepth, int kWidth, class Source, class Finish>
CAUDAL_INLINE void dot_quad_pairs(const Source& source, const int8_t* x, const Finish& finish) {
  static_assert(kDepth % 2 == 0, "quads are taken in pairs");
  constexpr int kColumnPairs = (kWidth + 1) / 2;
  unroll<kQuads / kDepth>([&](auto group) CAUDAL_LAMBDA {
    int32x4_t sums[kColumnPairs][8];  // rows 2i and 2i + 1 times two columns
    unroll<kColumnPairs * 8>([&](auto n) CAUDAL_LAMBDA { sums[n / 8][n % 8] = vdupq_n_s32(0); });
    unroll<kDepth / 2>([&](auto step) CAUDAL_LAMBDA {
      constexpr int kQuad = decltype(group)::value * kDepth + decltype(step)::value * 2;
      const Bytes even = source.template quad<kQuad>();
      const Bytes odd = source.template quad<kQuad + 1>();
      int8x16_t columns[kColumnPairs];
      unroll<kColumnPairs>([&](auto pair) CAUDAL_LAMBDA {
        constexpr bool kTwo = decltype(pair)::value * 2 + 1 < kWidth;
        const int8_t* first = quad_at<kQuad, kWidth>(x, pair * 2);
        columns[pair] = load_columns(first, kTwo ? quad_at<kQuad, kWidth>(x, pair * 2 + 1) : first);
      });
      unroll<4>([&](auto i) CAUDAL_LAMBDA {
        const int8x16_t low = interleave_low(even.v[i], odd.v[i]);
        const int8x16_t high = interleave_high(even.v[i], odd.v[i]);
        unroll<kColumnPairs>([&](auto pair) CAUDAL_LAMBDA {
          sums[pair][2 * i] = vmmlaq_s32(sums[pair][2 * i], low, columns[pair]);
          sums[pair][2 * i + 1] = vmmlaq_s32(sums[pair][2 * i + 1], high, columns[pair]);
        });
      });
    });
    Parts parts[kWidth];
    unroll<kWidth>([&](auto j) CAUDAL_LAMBDA {
      unroll<4>([&](auto i) CAUDAL_LAMBDA {
        const int32x4_t* both = sums[j / 2] + 2 * i;
        parts[j].v[i] = j % 2 == 0 ? vuzp1q_s32(both[0], both[1]) : vuzp2q_s32(both[0], both[1]);
      });
    });
    finish(group, parts);
  });
}

}  // namespace mm
}  // namespace
}  // namespace caudal

// What each weight format is: its GGUF block, its R16 panel block, and the activations it is multiplied with.
//
// Layout of a panel block (16 rows x block_elems), all parts in this order:
//   nibbles  [quads / 2][16 rows][4]  byte = quad 2j in its low half, quad 2j+1 in its high half
//            Q2_K, Q3_K instead: [sub-block of 16][16][4], bits 2q, 2q+1 of a byte are bits 0, 1 of quad q
//   planes   Q5_*: [sub-block of 32][16][4], bit q of a byte is bit 4 of quad q
//            Q6_K: [sub-block of 16][16][4], bits 2q, 2q+1 of a byte are bits 4, 5 of quad q
//            Q3_K: [pair of sub-blocks of 16][16][4], bit q of a byte is bit 2 of quad q
//            Q8_0: the low nibbles of w + 128, where the first part holds its high nibbles
//   scales   Q4_K, Q5_K: u8 [4 sub-block pairs][16][2], then mins alike; IQ4_XS: s8 [4 pairs][16][2];
//            Q3_K, Q6_K: s8 [8 pairs][16][2]; Q2_K: u8 [8 pairs][16][2], the scale's nibble below the min's
//   floats   f16 d[16], then m[16] (Q4_1, Q5_1) or dmin[16] (Q2_K, Q4_K, Q5_K); MXFP4: u8 exponents [16]
// Q4_1, Q5_1 and the K formats keep their values unsigned; the zero points of the others (4, 8, 16, 32, 128) are
// taken away with the sums of the activations; for IQ4_NL, IQ4_XS and MXFP4 they are those of the levels that their
// nibbles stand for. F16, BF16 and F32 are [k][16 rows] without blocks.
// Source: ggml's block structures as the GGUF specification publishes them.
#pragma once

#include "../kernels/matmul.h"

namespace caudal {

constexpr int kNibbles32 = 256;    // nibble bytes of 16 rows x 32
constexpr int kNibbles256 = 2048;  // nibble bytes of 16 rows x 256
constexpr int kPlane = 64;         // one plane of 16 rows x 4 bytes
constexpr int kHalves = 32;        // 16 float16
constexpr int kExponents = 16;     // 16 bytes

constexpr FormatInfo kFormatInfo[kNumFormats] = {
    {"Q4_0", 32, 18, kNibbles32 + kHalves, ActivationKind::q8_32},
    {"Q4_1", 32, 20, kNibbles32 + 2 * kHalves, ActivationKind::q8_32},
    {"Q5_0", 32, 22, kNibbles32 + kPlane + kHalves, ActivationKind::q8_32},
    {"Q5_1", 32, 24, kNibbles32 + kPlane + 2 * kHalves, ActivationKind::q8_32},
    {"Q8_0", 32, 34, 2 * kNibbles32 + kHalves, ActivationKind::q8_32},
    {"Q4_K", 256, 144, kNibbles256 + 256 + 2 * kHalves, ActivationKind::q8_256},
    {"Q5_K", 256, 176, kNibbles256 + 8 * kPlane + 256 + 2 * kHalves, ActivationKind::q8_256},
    {"Q6_K", 256, 210, kNibbles256 + 16 * kPlane + 256 + kHalves, ActivationKind::q8_256},
    {"F16", 1, 2, 32, ActivationKind::f32},
    {"BF16", 1, 2, 32, ActivationKind::f32},
    {"F32", 1, 4, 64, ActivationKind::f32},
    {"Q2_K", 256, 84, 16 * kPlane + 256 + 2 * kHalves, ActivationKind::q8_256},
    {"Q3_K", 256, 110, (16 + 8) * kPlane + 256 + kHalves, ActivationKind::q8_256},
    {"IQ4_NL", 32, 18, kNibbles32 + kHalves, ActivationKind::q8_32},
    {"IQ4_XS", 256, 136, kNibbles256 + 128 + kHalves, ActivationKind::q8_256},
    {"MXFP4", 32, 17, kNibbles32 + kExponents, ActivationKind::q8_32},
};

constexpr const FormatInfo& format_info(Format format) { return kFormatInfo[static_cast<int>(format)]; }

}  // namespace caudal

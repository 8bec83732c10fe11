// From sixteen GGUF blocks to one R16 panel block (layout in format_info.h).
//
// Blocks are first spread to one byte per value, [16][block_elems], then interleaved; both steps are plain loops over
// bytes and words that compilers vectorise.
// Source: ggml's block structures as the GGUF specification publishes them.
#pragma once

#include <cstdint>
#include <cstring>

#include "format_info.h"

namespace caudal {

// Bits of a 32-value block in values 0..15 | 16..31 order: low nibbles then high nibbles.
inline void spread_nibbles(const uint8_t* packed, int bytes, uint8_t* low, uint8_t* high) {
  for (int i = 0; i < bytes; ++i) {
    low[i] = packed[i] & 15;
    high[i] = packed[i] >> 4;
  }
}

// Bits of four values to one bit in each of four bytes.
inline uint32_t spread_bits(uint32_t bits) { return (bits & 15U) * 0x00204081U & 0x01010101U; }

// The plane of 16 blocks of 32 values whose fifth bits are a 32-bit word at `offset`, bit i being that of value i.
inline void interleave_fifth_bits(const uint8_t* const* blocks, int offset, uint8_t* dst) {
  for (int r = 0; r < kPanelRows; ++r) {
    uint32_t bits;
    std::memcpy(&bits, blocks[r] + offset, 4);
    uint32_t word = 0;
    for (int q = 0; q < 8; ++q) {
      word |= spread_bits(bits >> (4 * q)) << q;
    }
    std::memcpy(dst + r * 4, &word, 4);
  }
}

inline uint32_t load_quad(const uint8_t* values) {
  uint32_t word;
  std::memcpy(&word, values, 4);
  return word;
}

// values[16][stride], `count` per row -> nibble bytes of quad pairs; every value is below 16 or is masked to it.
inline void interleave_nibbles(const uint8_t* values, int stride, int count, int shift, uint8_t* dst) {
  for (int k = 0; k < count; k += 8) {
    for (int r = 0; r < kPanelRows; ++r) {
      const uint32_t even = load_quad(values + r * stride + k) >> shift & 0x0F0F0F0FU;
      const uint32_t odd = load_quad(values + r * stride + k + 4) >> shift & 0x0F0F0F0FU;
      const uint32_t word = even | odd << 4;
      std::memcpy(dst + r * 4, &word, 4);
    }
    dst += 64;
  }
}

// Planes of the kBits bits of each value from kFirstBit on; 8 / kBits quads share a plane.
template <int kBits, int kFirstBit>
inline void interleave_planes(const uint8_t* values, int stride, int count, uint8_t* dst) {
  constexpr int kQuadsPerPlane = 8 / kBits;
  constexpr uint32_t kMask = ((1U << kBits) - 1U) * 0x01010101U;
  for (int k = 0; k < count; k += 4 * kQuadsPerPlane) {
    for (int r = 0; r < kPanelRows; ++r) {
      uint32_t word = 0;
      for (int q = 0; q < kQuadsPerPlane; ++q) {
        word |= (load_quad(values + r * stride + k + 4 * q) >> kFirstBit & kMask) << (kBits * q);
      }
      std::memcpy(dst + r * 4, &word, 4);
    }
    dst += kPlane;
  }
}

inline void gather_halves(const uint8_t* const* blocks, int offset, uint8_t* dst) {
  for (int r = 0; r < kPanelRows; ++r) {
    std::memcpy(dst + r * 2, blocks[r] + offset, 2);
  }
}

template <Format kFormat>
inline void pack_block_32(const uint8_t* const* blocks, uint8_t* dst) {
  constexpr bool kHasMin = kFormat == Format::q4_1 || kFormat == Format::q5_1;
  constexpr bool kHasFifth = kFormat == Format::q5_0 || kFormat == Format::q5_1;
  constexpr int kBitsAt = kHasMin ? 4 : 2;
  constexpr int kQuantsAt = kBitsAt + (kHasFifth ? 4 : 0);
  alignas(64) uint8_t values[kPanelRows * 32];
  for (int r = 0; r < kPanelRows; ++r) {
    uint8_t* row = values + r * 32;
    if constexpr (kFormat == Format::q8_0) {
      for (int i = 0; i < 32; ++i) {
        row[i] = static_cast<uint8_t>(blocks[r][2 + i] ^ 0x80);  // w + 128
      }
    } else {
      spread_nibbles(blocks[r] + kQuantsAt, 16, row, row + 16);
    }
  }
  if constexpr (kFormat == Format::q8_0) {
    interleave_nibbles(values, 32, 32, 4, dst);
    dst += kNibbles32;
  }
  interleave_nibbles(values, 32, 32, 0, dst);
  dst += kNibbles32;
  if constexpr (kHasFifth) {
    interleave_fifth_bits(blocks, kBitsAt, dst);
    dst += kPlane;
  }
  gather_halves(blocks, 0, dst);
  if constexpr (kHasMin) {
    gather_halves(blocks, 2, dst + kHalves);
  }
}

// Six-bit scales and minima of a Q4_K or Q5_K block: 12 bytes -> 8 and 8.
inline void spread_scales(const uint8_t* packed, uint8_t* scales, uint8_t* mins) {
  for (int j = 0; j < 4; ++j) {
    scales[j] = packed[j] & 63;
    mins[j] = packed[j + 4] & 63;
    scales[j + 4] = static_cast<uint8_t>((packed[j + 8] & 15) | (packed[j] >> 6) << 4);
    mins[j + 4] = static_cast<uint8_t>(packed[j + 8] >> 4 | (packed[j + 4] >> 6) << 4);
  }
}

template <Format kFormat>
inline void pack_block_k45(const uint8_t* const* blocks, uint8_t* dst) {
  constexpr bool kHasFifth = kFormat == Format::q5_k;
  constexpr int kQuantsAt = kHasFifth ? 48 : 16;
  alignas(64) uint8_t values[kPanelRows * 256];
  uint8_t scales[8];
  uint8_t mins[8];
  uint8_t* scales_to = dst + kNibbles256 + (kHasFifth ? 8 * kPlane : 0);
  for (int r = 0; r < kPanelRows; ++r) {
    uint8_t* row = values + r * 256;
    for (int g = 0; g < 4; ++g) {
      spread_nibbles(blocks[r] + kQuantsAt + g * 32, 32, row + g * 64, row + g * 64 + 32);
      if constexpr (kHasFifth) {
        const uint8_t* bits = blocks[r] + 16;
        for (int i = 0; i < 32; ++i) {
          row[g * 64 + i] = static_cast<uint8_t>(row[g * 64 + i] | (bits[i] >> (2 * g) & 1) << 4);
          row[g * 64 + 32 + i] = static_cast<uint8_t>(row[g * 64 + 32 + i] | (bits[i] >> (2 * g + 1) & 1) << 4);
        }
      }
    }
    spread_scales(blocks[r] + 4, scales, mins);
    for (int j = 0; j < 8; ++j) {
      const int at = j / 2 * 32 + r * 2 + j % 2;
      scales_to[at] = scales[j];
      scales_to[128 + at] = mins[j];
    }
  }
  interleave_nibbles(values, 256, 256, 0, dst);
  if constexpr (kHasFifth) {
    interleave_planes<1, 4>(values, 256, 256, dst + kNibbles256);
  }
  gather_halves(blocks, 0, scales_to + 256);
  gather_halves(blocks, 2, scales_to + 256 + kHalves);
}

inline void pack_block_q6_k(const uint8_t* const* blocks, uint8_t* dst) {
  alignas(64) uint8_t values[kPanelRows * 256];
  uint8_t* scales_to = dst + kNibbles256 + 16 * kPlane;
  for (int r = 0; r < kPanelRows; ++r) {
    for (int half = 0; half < 2; ++half) {
      const uint8_t* low = blocks[r] + half * 64;
      const uint8_t* high = blocks[r] + 128 + half * 32;
      uint8_t* row = values + r * 256 + half * 128;
      for (int i = 0; i < 32; ++i) {
        row[i] = static_cast<uint8_t>((low[i] & 15) | (high[i] & 3) << 4);
        row[32 + i] = static_cast<uint8_t>((low[32 + i] & 15) | (high[i] >> 2 & 3) << 4);
        row[64 + i] = static_cast<uint8_t>(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
        row[96 + i] = static_cast<uint8_t>(low[32 + i] >> 4 | high[i] >> 6 << 4);
      }
    }
    for (int j = 0; j < 16; ++j) {
      scales_to[j / 2 * 32 + r * 2 + j % 2] = blocks[r][192 + j];
    }
  }
  interleave_nibbles(values, 256, 256, 0, dst);
  interleave_planes<2, 4>(values, 256, 256, dst + kNibbles256);
  gather_halves(blocks, 208, scales_to + 256);
}

// The two-bit codes of a Q2_K or Q3_K block: 64 bytes, of which each half holds four runs of 32 values.
inline void spread_pairs_of_bits(const uint8_t* packed, uint8_t* row) {
  for (int half = 0; half < 2; ++half) {
    for (int run = 0; run < 4; ++run) {
      for (int i = 0; i < 32; ++i) {
        *row++ = packed[half * 32 + i] >> (2 * run) & 3;
      }
    }
  }
}

inline void pack_block_q2_k(const uint8_t* const* blocks, uint8_t* dst) {
  alignas(64) uint8_t values[kPanelRows * 256];
  uint8_t* scales_to = dst + 16 * kPlane;
  for (int r = 0; r < kPanelRows; ++r) {
    spread_pairs_of_bits(blocks[r] + 16, values + r * 256);
    for (int j = 0; j < 16; ++j) {
      scales_to[j / 2 * 32 + r * 2 + j % 2] = blocks[r][j];
    }
  }
  interleave_planes<2, 0>(values, 256, 256, dst);
  gather_halves(blocks, 80, scales_to + 256);
  gather_halves(blocks, 82, scales_to + 256 + kHalves);
}

inline void pack_block_q3_k(const uint8_t* const* blocks, uint8_t* dst) {
  alignas(64) uint8_t values[kPanelRows * 256];
  uint8_t* scales_to = dst + (16 + 8) * kPlane;
  for (int r = 0; r < kPanelRows; ++r) {
    uint8_t* row = values + r * 256;
    spread_pairs_of_bits(blocks[r] + 32, row);
    for (int i = 0; i < 256; ++i) {
      row[i] = static_cast<uint8_t>(row[i] | (blocks[r][i % 32] >> (i / 32) & 1) << 2);
    }
    const uint8_t* packed = blocks[r] + 96;
    for (int j = 0; j < 16; ++j) {
      const int low = packed[j % 8] >> (j / 8 * 4) & 15;
      const int high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
      scales_to[j / 2 * 32 + r * 2 + j % 2] = static_cast<uint8_t>((low | high << 4) - 32);
    }
  }
  interleave_planes<2, 0>(values, 256, 256, dst);
  interleave_planes<1, 2>(values, 256, 256, dst + 16 * kPlane);
  gather_halves(blocks, 108, scales_to + 256);
}

inline void pack_block_iq4_xs(const uint8_t* const* blocks, uint8_t* dst) {
  alignas(64) uint8_t values[kPanelRows * 256];
  uint8_t* scales_to = dst + kNibbles256;
  for (int r = 0; r < kPanelRows; ++r) {
    const uint8_t* block = blocks[r];
    for (int j = 0; j < 8; ++j) {
      uint8_t* row = values + r * 256 + j * 32;
      spread_nibbles(block + 8 + j * 16, 16, row, row + 16);
      const int low = block[4 + j / 2] >> (j % 2 * 4) & 15;
      const int high = block[2 + j / 4] >> (j % 4 * 2) & 3;
      scales_to[j / 2 * 32 + r * 2 + j % 2] = static_cast<uint8_t>((low | high << 4) - 32);
    }
  }
  interleave_nibbles(values, 256, 256, 0, dst);
  gather_halves(blocks, 0, scales_to + 128);
}

inline void pack_block_mxfp4(const uint8_t* const* blocks, uint8_t* dst) {
  alignas(64) uint8_t values[kPanelRows * 32];
  for (int r = 0; r < kPanelRows; ++r) {
    spread_nibbles(blocks[r] + 1, 16, values + r * 32, values + r * 32 + 16);
    dst[kNibbles32 + r] = blocks[r][0];
  }
  interleave_nibbles(values, 32, 32, 0, dst);
}

template <int kBytes>
inline void pack_element(const uint8_t* const* blocks, uint8_t* dst) {
  for (int r = 0; r < kPanelRows; ++r) {
    std::memcpy(dst + r * kBytes, blocks[r], kBytes);
  }
}

// Packs one block of 16 rows.
inline void pack_block(Format format, const uint8_t* const* blocks, uint8_t* dst) {
  switch (format) {
    case Format::q4_0:
    case Format::iq4_nl:  // what its nibbles mean is up to the kernels
      return pack_block_32<Format::q4_0>(blocks, dst);
    case Format::q4_1:
      return pack_block_32<Format::q4_1>(blocks, dst);
    case Format::q5_0:
      return pack_block_32<Format::q5_0>(blocks, dst);
    case Format::q5_1:
      return pack_block_32<Format::q5_1>(blocks, dst);
    case Format::q8_0:
      return pack_block_32<Format::q8_0>(blocks, dst);
    case Format::q4_k:
      return pack_block_k45<Format::q4_k>(blocks, dst);
    case Format::q5_k:
      return pack_block_k45<Format::q5_k>(blocks, dst);
    case Format::q6_k:
      return pack_block_q6_k(blocks, dst);
    case Format::f16:
    case Format::bf16:
      return pack_element<2>(blocks, dst);
    case Format::f32:
      return pack_element<4>(blocks, dst);
    case Format::q2_k:
      return pack_block_q2_k(blocks, dst);
    case Format::q3_k:
      return pack_block_q3_k(blocks, dst);
    case Format::iq4_xs:
      return pack_block_iq4_xs(blocks, dst);
    case Format::mxfp4:
      return pack_block_mxfp4(blocks, dst);
  }
}

}  // namespace caudal

// IQ4_NL, IQ4_XS and MXFP4: nibbles that stand for sixteen levels: part of matmul_impl.h.
//
// The levels of IQ4 are signed bytes, kept as Q8_0's values are: raised by 128, as two nibbles, or signed, as the dot
// product of the instruction set wants them. Those of MXFP4 lie within +-12 and are raised by 16 to five bits.
#pragma once

namespace caudal {
namespace {
namespace mm {

struct LevelTable {
  alignas(16) uint8_t bytes[16];
};

constexpr int kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Twice the numbers of E2M1, which makes them whole.
constexpr int kMxfp4Levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// (level + raise) >> shift & mask, modulo 256.
constexpr LevelTable level_table(const int (&levels)[16], int raise, int shift, int mask) {
  LevelTable table{};
  for (int i = 0; i < 16; ++i) {
    table.bytes[i] = static_cast<uint8_t>((levels[i] + raise) >> shift & mask);
  }
  return table;
}

constexpr LevelTable kIq4Raised = level_table(kIq4Levels, 128, 0, 255);
constexpr LevelTable kIq4High = level_table(kIq4Levels, 128, 4, 15);
constexpr LevelTable kIq4Low = level_table(kIq4Levels, 128, 0, 15);
constexpr LevelTable kIq4Signed = level_table(kIq4Levels, 0, 0, 255);
constexpr LevelTable kMxfp4Raised = level_table(kMxfp4Levels, 16, 0, 255);

template <const LevelTable& kTable>
struct LookedUp {
  Nibbles indices;
  template <int kQuad>
  CAUDAL_INLINE Bytes quad() const {
    return look_up(kTable.bytes, indices.quad<kQuad>());
  }
  CAUDAL_INLINE Ints element(int quad, int i) const { return look_up(kTable.bytes, indices.element(quad, i)); }
};

template <int kPart>
constexpr const LevelTable& iq4_table() {
  if constexpr (kSplitQ8) {
    return kPart == 0 ? kIq4High : kIq4Low;
  } else {
    return kZeroShiftQ8 == 0 ? kIq4Signed : kIq4Raised;
  }
}

template <Format kFormat>
struct TraitsIq4 {
  static constexpr int kBitCount = 8;
  static constexpr int kBlock = format_info(kFormat).block_elems;
  static constexpr int kBlockBytes = format_info(kFormat).panel_block_bytes;
  static constexpr int kSubBlocks = kBlock / 32;
  static constexpr int kQuads = 8;
  static constexpr int kPlanes = kSplitQ8 ? 2 : 1;
  static constexpr int kDepth = kSplitQ8 ? kDepth4 : 8;
  static constexpr bool kHasMin = false;
  static constexpr int kTrueZeroShift = 7;
  static constexpr int kZeroShift = kZeroShiftQ8;
  static constexpr int kScalesAt = kNibbles256;
  static constexpr int kFloatsAt = kBlock == 32 ? kNibbles32 : kScalesAt + 128;

  CAUDAL_INLINE static Floats scale(const uint8_t* p) { return load_halves(p + kFloatsAt); }
  CAUDAL_INLINE static Pairs scale_pairs(const uint8_t* p, int pair) {
    return load_pairs_s8(p + kScalesAt + pair * 32);
  }
  template <int kHalf>
  CAUDAL_INLINE static auto whole(const uint8_t* p, int sub) {
    return LookedUp<kIq4Raised>{Nibbles{p + sub * kNibbles32}};
  }
  template <int kPart, int kHalf>
  CAUDAL_INLINE static auto plane(const uint8_t* p, int sub) {
    if constexpr (kPart == 1) {
      // Or the compiler keeps the first part's nibbles for the second one, where there are no registers for them.
      asm volatile("" : "+r"(p));
    }
    return LookedUp<iq4_table<kPart>()>{Nibbles{p + sub * kNibbles32}};
  }
};

struct TraitsMxfp4 {
  static constexpr int kBitCount = 5;
  static constexpr int kBlock = 32;
  static constexpr int kBlockBytes = format_info(Format::mxfp4).panel_block_bytes;
  static constexpr int kSubBlocks = 1;
  static constexpr int kQuads = 8;
  static constexpr int kPlanes = 1;
  static constexpr int kDepth = kDepth5;
  static constexpr bool kHasMin = false;
  static constexpr int kTrueZeroShift = 4;
  static constexpr int kZeroShift = kTrueZeroShift;

  CAUDAL_INLINE static Floats scale(const uint8_t* p) { return load_powers(p + kNibbles32); }
  template <int kHalf>
  CAUDAL_INLINE static auto whole(const uint8_t* p, int) {
    return LookedUp<kMxfp4Raised>{Nibbles{p}};
  }
  template <int kPart, int kHalf>
  CAUDAL_INLINE static auto plane(const uint8_t* p, int) {
    return whole<kHalf>(p, 0);
  }
};

template <>
struct TraitsOf<Format::iq4_nl> : TraitsIq4<Format::iq4_nl> {};
template <>
struct TraitsOf<Format::iq4_xs> : TraitsIq4<Format::iq4_xs> {};
template <>
struct TraitsOf<Format::mxfp4> : TraitsMxfp4 {};

}  // namespace mm
}  // namespace
}  // namespace caudal

// What a block of a row of activations becomes: part of matmul_impl.h.
//
// A tile of W rows holds all of a block before the next one, in the order in which it is multiplied, so that a single
// pointer follows it and hardware prefetches it. Its int8 come in pieces of 16 of a row, which are written by one
// vector, and threads that pack different rows write to different cache lines but for a few.
#pragma once

#include <cstdint>

namespace caudal {
namespace {
namespace mm {

constexpr int kPiece = 16;

// For weights in blocks of 32: int8 [2][W][16], Sums32 [W].
struct alignas(16) Sums32 {
  float scale;
  float sum_f;  // scale times sum
  int32_t sum;
};
static_assert(sizeof(Sums32) == kPiece, "as large as a piece");

// For weights in blocks of 256: int8 [16][W][16], Sums256 [W].
struct alignas(64) Sums256 {
  float scale;
  int16_t sums16[16];  // of every 16
  int16_t sums32[8];   // of every 32
};
static_assert(sizeof(Sums256) == 64, "a cache line");

// Where quad kQuad of a column is, among W columns.
template <int kQuad, int kWidth>
CAUDAL_INLINE const int8_t* quad_at(const int8_t* x, int column) {
  return x + (kQuad * 4 / kPiece * kWidth + column) * kPiece + kQuad * 4 % kPiece;
}

// Where a row's part of the blocks is, block by block.
template <int kBlockElems, class BlockSums>
class Cursor {
 public:
  static constexpr int kElems = kBlockElems;
  static constexpr int kBytes = kElems + sizeof(BlockSums);

  CAUDAL_INLINE Cursor(uint8_t* tile, int column, int width) : block_(tile), column_(column), width_(width) {}
  CAUDAL_INLINE void next() { block_ += width_ * kBytes; }
  // The place of element i.
  CAUDAL_INLINE int8_t* q(int i) const {
    return reinterpret_cast<int8_t*>(block_) + (i / kPiece * width_ + column_) * kPiece + i % kPiece;
  }
  CAUDAL_INLINE BlockSums& sums() const { return reinterpret_cast<BlockSums*>(block_ + kElems * width_)[column_]; }

 private:
  uint8_t* block_;
  int column_;
  int width_;
};
using Cursor32 = Cursor<32, Sums32>;
using Cursor256 = Cursor<256, Sums256>;

// Fills in the sums from those of every 16 elements; the scale is known.
CAUDAL_INLINE void set_sums(Sums32& sums, const int32_t* of_16) {
  sums.sum = of_16[0] + of_16[1];
  sums.sum_f = sums.scale * static_cast<float>(sums.sum);
}
CAUDAL_INLINE void set_sums(Sums256& sums, const int32_t* of_16) {
  for (int i = 0; i < 16; ++i) {
    sums.sums16[i] = static_cast<int16_t>(of_16[i]);
  }
  for (int i = 0; i < 8; ++i) {
    sums.sums32[i] = static_cast<int16_t>(of_16[2 * i] + of_16[2 * i + 1]);
  }
}

}  // namespace mm
}  // namespace
}  // namespace caudal

// What a block of a row of activations becomes: part of matmul_impl.h.
//
// One record holds all that a block is multiplied with, so a tile's code has a single pointer to follow.
#pragma once

#include <cstdint>

namespace caudal {
namespace {
namespace mm {

// For weights in blocks of 32.
struct alignas(16) Record32 {
  static constexpr int kElems = 32;
  int8_t q[kElems];
  float scale;
  float sum_f;  // scale times sum
  int32_t sum;

  CAUDAL_INLINE void set(float s, const int32_t* sums_of_16) {
    scale = s;
    sum = sums_of_16[0] + sums_of_16[1];
    sum_f = s * static_cast<float>(sum);
  }
};
static_assert(sizeof(Record32) == 48, "four of them are three cache lines");

// For weights in blocks of 256.
struct alignas(64) Record256 {
  static constexpr int kElems = 256;
  int8_t q[kElems];
  float scale;
  int16_t sums16[16];  // of every 16
  int16_t sums32[8];   // of every 32

  CAUDAL_INLINE void set(float s, const int32_t* sums_of_16) {
    scale = s;
    for (int i = 0; i < 16; ++i) {
      sums16[i] = static_cast<int16_t>(sums_of_16[i]);
    }
    for (int i = 0; i < 8; ++i) {
      sums32[i] = static_cast<int16_t>(sums_of_16[2 * i] + sums_of_16[2 * i + 1]);
    }
  }
};
static_assert(sizeof(Record256) == 320, "five cache lines");

}  // namespace mm
}  // namespace
}  // namespace caudal

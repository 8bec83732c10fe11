// The text of limits.h, by the primitives of the matmul kernels.
#pragma once

#include <utility>

#include "limits.h"

namespace caudal {
namespace {

inline uint64_t read_bytes(const uint8_t* data, size_t bytes) {
  constexpr size_t kWords = 32;  // four registers of the widest vectors
  uint64_t sums[kWords] = {};
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  for (size_t i = 0; i < bytes / sizeof(uint64_t); i += kWords) {
    for (size_t j = 0; j < kWords; ++j) sums[j] ^= words[i + j];
  }
  uint64_t all = 0;
  for (const uint64_t sum : sums) all ^= sum;
  return all;
}

// The inner loop of a tile, without all that scales and unpacks. The sums are named by constants, for an array that is
// indexed by a variable would not stay in registers.
template <int... kColumns>
int64_t multiply_columns(int rounds, std::integer_sequence<int, kColumns...>) {
  constexpr int kQuads = 8;
  constexpr int kWidth = sizeof...(kColumns);
  alignas(64) uint8_t weights[kQuads * 64] = {};
  alignas(64) int8_t x[kQuads * kWidth * 4] = {};
  mm::Parts sums[] = {mm::dot_first(mm::load_bytes(weights), x + kColumns * 4)...};
  for (int round = 0; round < rounds; ++round) {
    // Otherwise the compiler may multiply once for all rounds.
    asm volatile("" : : "r"(weights), "r"(x) : "memory");
    for (int quad = 0; quad < kQuads; ++quad) {
      const mm::Bytes w = mm::load_bytes(weights + quad * 64);
      ((sums[kColumns] = mm::dot(sums[kColumns], w, x + (quad * kWidth + kColumns) * 4)), ...);
    }
  }
  const mm::Parts seen[] = {sums[kColumns]...};
  asm volatile("" : : "r"(seen) : "memory");
  return int64_t{rounds} * kQuads * kWidth * 64;
}

inline int64_t multiply_bytes(int rounds) {
  return multiply_columns(rounds, std::make_integer_sequence<int, mm::kTileWidth>{});
}

const LimitKernels kLimitKernels{read_bytes, multiply_bytes};

}  // namespace
}  // namespace caudal

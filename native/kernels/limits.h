// How fast an instruction set can read and multiply when it does nothing else: what speeds are fractions of.
#pragma once

#include <cstddef>
#include <cstdint>

namespace caudal {

struct LimitKernels {
  // Reads so many bytes, a multiple of 256, from a multiple of 64 on; returns something that depends on all of them.
  uint64_t (*read)(const uint8_t* data, size_t bytes);
  // Multiplies bytes that stay in registers and the first cache, so many rounds; returns how many products.
  int64_t (*multiply_bytes)(int rounds);
};

}  // namespace caudal

// Memory for weights, in huge pages where the system has them.
//
// Matrices of one model lie behind one another: most are smaller than a huge page, and alone would get none. Where
// every 4 KB of weights costs a walk through page tables, and ends what hardware prefetches, reading them takes up to
// half as long again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory.h"

namespace caudal {

struct WeightPlace {
  std::shared_ptr<const Mapping> segment;  // keeps `data`
  uint8_t* data;                           // at a multiple of 64
};

class WeightMemory {
 public:
  // Address space is reserved by segments of so many bytes, or of what is taken if that is more. Memory that nothing is
  // written to is not used.
  static constexpr size_t kSegmentBytes = size_t{256} << 20;
  explicit WeightMemory(size_t segment_bytes = kSegmentBytes) : segment_bytes_(segment_bytes) {}

  // A place of so many bytes. It is given back when nobody has a place in its segment any more. Throws std::bad_alloc.
  WeightPlace take(size_t bytes);

 private:
  size_t segment_bytes_;
  std::shared_ptr<const Mapping> segment_;
  size_t used_ = 0;
};

}  // namespace caudal

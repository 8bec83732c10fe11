#include "weight_memory.h"

#include <algorithm>

namespace caudal {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAlign = 64;

size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Where the first huge page of a mapping begins.
size_t first_place(const Mapping& segment) {
  const auto address = reinterpret_cast<uintptr_t>(segment.data());
  return round_up(address, kHugePage) - address;
}

}  // namespace

WeightPlace WeightMemory::take(size_t bytes) {
  used_ = round_up(used_, kAlign);
  if (segment_ == nullptr || used_ + bytes > segment_->size()) {
    // Small ones, alone in memory of their own, would only waste most of a huge page.
    const size_t wanted = std::max(bytes, segment_bytes_);
    const bool is_large = wanted >= kHugePage;
    segment_ = std::make_shared<const Mapping>(wanted + (is_large ? kHugePage : 0), is_large);
    used_ = is_large ? first_place(*segment_) : 0;
  }
  WeightPlace place{segment_, segment_->data() + used_};
  used_ += bytes;
  return place;
}

}  // namespace caudal

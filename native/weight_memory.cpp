#include "weight_memory.h"

#include <algorithm>

namespace caudal {

namespace {

constexpr size_t kAlign = 64;

}  // namespace

WeightPlace WeightMemory::take(size_t bytes) {
  used_ = (used_ + kAlign - 1) / kAlign * kAlign;
  if (segment_ == nullptr || used_ + bytes > segment_->size()) {
    // Small ones, alone in memory of their own, would only waste most of a huge page.
    const size_t wanted = std::max(bytes, segment_bytes_);
    const bool is_large = wanted >= kHugePage;
    segment_ = std::make_shared<const Mapping>(wanted + (is_large ? kHugePage : 0), is_large);
    used_ = is_large ? static_cast<size_t>(huge_page_from(segment_->data()) - segment_->data()) : 0;
  }
  WeightPlace place{segment_, segment_->data() + used_};
  used_ += bytes;
  return place;
}

}  // namespace caudal

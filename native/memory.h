// Large anonymous mappings: reserved at once, touched as they are used.
#pragma once

#include <cstddef>
#include <cstdint>

namespace caudal {

constexpr size_t kHugePage = size_t{2} << 20;

// The first boundary of a huge page from an address on.
inline uint8_t* huge_page_from(uint8_t* p) {
  const size_t past = reinterpret_cast<uintptr_t>(p) % kHugePage;
  return past == 0 ? p : p + (kHugePage - past);
}

class Mapping {
 public:
  Mapping() = default;
  // Zero-filled. Throws std::bad_alloc if the address space cannot be had.
  explicit Mapping(size_t bytes, bool huge_pages = true);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace caudal

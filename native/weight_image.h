// A file of packed weights, mapped so that it can be used at once and moved into huge pages while it is used.
#pragma once

#include <cstddef>
#include <cstdint>

namespace caudal {

class WeightImage {
 public:
  // Maps `size` bytes of an open file, which may be closed then. Throws std::bad_alloc if the address space cannot be
  // had or the file cannot be mapped, and std::invalid_argument if size is 0.
  WeightImage(int file, size_t size);
  ~WeightImage();
  WeightImage(const WeightImage&) = delete;
  WeightImage& operator=(const WeightImage&) = delete;

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  // Copies the image piece by piece into huge pages, each of which takes the place of what it is a copy of: readers
  // notice nothing but speed (weight_memory.h says why). Pages of a file cannot be huge in most systems. Returns how
  // many bytes have moved; what finds no memory stays in the file's pages, as all does where there are no huge pages.
  size_t settle();

 private:
  uint8_t* reserved_ = nullptr;
  size_t reserved_bytes_ = 0;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace caudal

#include "weight_image.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>

#include "memory.h"

namespace caudal {

namespace {

// Copied at once. Every piece remains a mapping of its own, of which systems allow some ten thousand.
constexpr size_t kPiece = size_t{32} << 20;

#if defined(MADV_HUGEPAGE) && defined(MREMAP_FIXED)

// Whether the system gives huge pages to those who ask.
bool has_huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string modes;
  return std::getline(file, modes) && modes.find("[never]") == std::string::npos;
}

// Puts a copy in huge pages in the place of `bytes` at `target`. False if there is no memory for it.
bool replace(uint8_t* target, size_t bytes) {
  const size_t room = bytes + kHugePage;
  void* mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return false;
  auto* begin = static_cast<uint8_t*>(mapped);
  uint8_t* copy = huge_page_from(begin);
  madvise(copy, bytes, MADV_HUGEPAGE);
  std::memcpy(copy, target, bytes);
  // One call, behind which a reader finds the copy and before which it finds the original: one that comes between
  // waits.
  const bool is_done = mprotect(copy, bytes, PROT_READ) == 0 &&
                       mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, target) != MAP_FAILED;
  if (copy != begin) munmap(begin, static_cast<size_t>(copy - begin));
  uint8_t* rest = is_done ? copy + bytes : copy;
  if (rest != begin + room) munmap(rest, static_cast<size_t>(begin + room - rest));
  return is_done;
}

#else

bool has_huge_pages() { return false; }
bool replace(uint8_t*, size_t) { return false; }

#endif

}  // namespace

WeightImage::WeightImage(int file, size_t size) : size_(size) {
  if (size == 0) throw std::invalid_argument("a file of weights: expected at least one byte, got none");
  reserved_bytes_ = size + kHugePage;
  void* reserved = mmap(nullptr, reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) throw std::bad_alloc();
  reserved_ = static_cast<uint8_t*>(reserved);
  data_ = huge_page_from(reserved_);
  if (mmap(data_, size, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    munmap(reserved_, reserved_bytes_);
    throw std::bad_alloc();
  }
  madvise(data_, size, MADV_WILLNEED);
}

WeightImage::~WeightImage() { munmap(reserved_, reserved_bytes_); }

size_t WeightImage::settle() {
  size_t moved = 0;
  if (!has_huge_pages()) return 0;
  while (size_ - moved >= kHugePage) {
    const size_t bytes = std::min(kPiece, (size_ - moved) / kHugePage * kHugePage);
    if (!replace(data_ + moved, bytes)) break;
    moved += bytes;
  }
  return moved;
}

}  // namespace caudal

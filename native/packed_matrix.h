// Weight matrices in the R16 layout (formats/format_info.h), built at load from GGUF rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "formats/format_info.h"
#include "kernels/matmul.h"
#include "weight_memory.h"

namespace caudal {

// Raise it whenever a packed byte changes for any format: images of packed weights on disk carry it, and those of
// another number are made anew. tests/kernels/test_pack_layout.py notices a change.
constexpr int kPackLayoutVersion = 1;

// Kernels prefetch and load a little past the last panel: so many bytes behind it must be readable.
constexpr size_t kPackSlack = 64;

// The format of a GGUF name such as "Q4_K"; throws std::invalid_argument with the known names otherwise.
Format format_from_name(std::string_view name);

// Bytes of a matrix as GGUF stores it: rows one after the other. Throws std::invalid_argument unless rows and cols
// are positive and cols is a multiple of the format's block.
size_t stored_bytes(Format format, int rows, int cols);

// The shape of a packed matrix whose data is not there yet (data is null); same errors as stored_bytes.
PackedView packed_shape(Format format, int rows, int cols);
size_t packed_bytes(const PackedView& view);

// A packed matrix: holds on to its bytes, or reads those of somebody else.
class PackedMatrix {
 public:
  // Takes its place in memory; its values are undefined until every row has been packed. Throws std::bad_alloc, and
  // std::invalid_argument as stored_bytes does.
  PackedMatrix(Format format, int rows, int cols, WeightMemory& memory);

  // In memory of its own.
  PackedMatrix(Format format, int rows, int cols);

  // Reads packed bytes that outlive it: at least packed_bytes + kPackSlack of them, at a multiple of 64. Throws
  // std::invalid_argument if they are fewer or elsewhere, and as stored_bytes does.
  PackedMatrix(Format format, int rows, int cols, const uint8_t* data, size_t size);

  // Packs `count` stored rows, the first of them being row `first`, with `threads` threads. Strips that do not
  // overlap may be packed in any order. Throws std::invalid_argument unless they are whole panels of the matrix, and
  // for a matrix that reads somebody else's bytes.
  void pack(const uint8_t* src, int first, int count, int threads);

  const PackedView& view() const { return view_; }
  size_t bytes() const { return packed_bytes(view_); }

 private:
  PackedView view_;
  std::shared_ptr<const Mapping> memory_;  // null if it is somebody else's
};

}  // namespace caudal

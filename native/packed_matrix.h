// Weight matrices in the R16 layout (formats/format_info.h), built once at load from GGUF rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "formats/format_info.h"
#include "kernels/matmul.h"
#include "memory.h"

namespace caudal {

// The format of a GGUF name such as "Q4_K"; throws std::invalid_argument with the known names otherwise.
Format format_from_name(std::string_view name);

// Bytes of a matrix as GGUF stores it: rows one after the other. Throws std::invalid_argument unless rows and cols
// are positive and cols is a multiple of the format's block.
size_t stored_bytes(Format format, int rows, int cols);

// The shape of a packed matrix whose data is not there yet (data is null); same errors as stored_bytes.
PackedView packed_shape(Format format, int rows, int cols);
size_t packed_bytes(const PackedView& view);

// Writes panels [panel_begin, panel_end) of `view` to dst, its first byte being that of panel 0, from the stored
// rows at src. Ranges are independent, so threads may share a matrix. Rows past the last one become zeros.
void repack_panels(const PackedView& view, const uint8_t* src, uint8_t* dst, int panel_begin, int panel_end);

// Owns the bytes of a packed matrix, in huge pages where the system has them.
class PackedMatrix {
 public:
  // Reserves the memory only; fill it with repack. Throws std::bad_alloc.
  PackedMatrix(Format format, int rows, int cols);
  // Packs src with `threads` threads.
  PackedMatrix(Format format, int rows, int cols, const uint8_t* src, int threads);

  // Packs panels [panel_begin, panel_end) from the matrix's stored rows; any thread, ranges that do not overlap.
  void repack(const uint8_t* src, int panel_begin, int panel_end);

  const PackedView& view() const { return view_; }
  size_t bytes() const { return packed_bytes(view_); }

 private:
  PackedView view_;
  Mapping memory_;
};

}  // namespace caudal

#include "packed_matrix.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "formats/repack.h"

namespace caudal {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// Kernels prefetch and load a little past the last panel.
constexpr size_t kSlack = 64;

// Rows of one panel as the packers want them: null pointers for the rows past the end.
struct PanelRows {
  const uint8_t* rows[kPanelRows];
};

PanelRows panel_rows(const PackedView& view, const uint8_t* src, int panel) {
  const FormatInfo& info = format_info(view.format);
  const size_t row_bytes = static_cast<size_t>(view.cols / info.block_elems) * static_cast<size_t>(info.block_bytes);
  PanelRows result;
  for (int r = 0; r < kPanelRows; ++r) {
    const int row = panel * kPanelRows + r;
    result.rows[r] = row < view.rows ? src + static_cast<size_t>(row) * row_bytes : nullptr;
  }
  return result;
}

}  // namespace

Format format_from_name(std::string_view name) {
  std::string known;
  for (int i = 0; i < kNumFormats; ++i) {
    if (name == kFormatInfo[i].name) {
      return static_cast<Format>(i);
    }
    known += std::string(i == 0 ? "" : ", ") + kFormatInfo[i].name;
  }
  throw std::invalid_argument("unknown weight format '" + std::string(name) + "': expected one of " + known);
}

size_t stored_bytes(Format format, int rows, int cols) {
  const PackedView view = packed_shape(format, rows, cols);
  const FormatInfo& info = format_info(format);
  return static_cast<size_t>(view.rows) * static_cast<size_t>(cols / info.block_elems) *
         static_cast<size_t>(info.block_bytes);
}

PackedView packed_shape(Format format, int rows, int cols) {
  const FormatInfo& info = format_info(format);
  if (rows <= 0 || cols <= 0 || cols % info.block_elems != 0) {
    throw std::invalid_argument("a " + std::string(info.name) + " matrix of " + std::to_string(rows) + " x " +
                                std::to_string(cols) + ": expected positive rows, and columns in multiples of " +
                                std::to_string(info.block_elems));
  }
  PackedView view{};
  view.format = format;
  view.rows = rows;
  view.cols = cols;
  view.num_panels = (rows + kPanelRows - 1) / kPanelRows;
  view.panel_bytes = static_cast<size_t>(cols / info.block_elems) * static_cast<size_t>(info.panel_block_bytes);
  return view;
}

size_t packed_bytes(const PackedView& view) { return static_cast<size_t>(view.num_panels) * view.panel_bytes; }

void repack_panels(const PackedView& view, const uint8_t* src, uint8_t* dst, int panel_begin, int panel_end) {
  const FormatInfo& info = format_info(view.format);
  const std::vector<uint8_t> zeros(static_cast<size_t>(info.block_bytes), 0);
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    const PanelRows from = panel_rows(view, src, panel);
    uint8_t* to = dst + static_cast<size_t>(panel) * view.panel_bytes;
    const uint8_t* blocks[kPanelRows];
    for (int block = 0; block < view.cols / info.block_elems; ++block) {
      for (int r = 0; r < kPanelRows; ++r) {
        const size_t offset = static_cast<size_t>(block) * static_cast<size_t>(info.block_bytes);
        blocks[r] = from.rows[r] != nullptr ? from.rows[r] + offset : zeros.data();
      }
      pack_block(view.format, blocks, to);
      to += info.panel_block_bytes;
    }
  }
}

PackedMatrix::PackedMatrix(Format format, int rows, int cols) : view_(packed_shape(format, rows, cols)) {
  // One huge page more than needed, so that the data can start at the boundary of one.
  const bool is_large = packed_bytes(view_) >= kHugePage;
  memory_ = Mapping(packed_bytes(view_) + kSlack + (is_large ? kHugePage : 0), is_large);
  const size_t past = reinterpret_cast<uintptr_t>(memory_.data()) % kHugePage;
  view_.data = memory_.data() + (is_large && past != 0 ? kHugePage - past : 0);
}

PackedMatrix::PackedMatrix(Format format, int rows, int cols, const uint8_t* src, int threads)
    : PackedMatrix(format, rows, cols) {
  const int count = std::clamp(threads, 1, view_.num_panels);
  const auto share = [&](int i) { return static_cast<int>(static_cast<int64_t>(view_.num_panels) * i / count); };
  std::vector<std::thread> workers;
  for (int i = 1; i < count; ++i) {
    workers.emplace_back([this, src, begin = share(i), end = share(i + 1)] { repack(src, begin, end); });
  }
  repack(src, share(0), share(1));
  for (std::thread& worker : workers) {
    worker.join();
  }
}

void PackedMatrix::repack(const uint8_t* src, int panel_begin, int panel_end) {
  repack_panels(view_, src, const_cast<uint8_t*>(view_.data), panel_begin, panel_end);
}

}  // namespace caudal

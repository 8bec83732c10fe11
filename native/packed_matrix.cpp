#include "packed_matrix.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "formats/repack.h"

namespace caudal {

namespace {

// A strip of stored rows; `first` is the row that src points to.
struct Strip {
  const uint8_t* src;
  int first;
};

// Packs panels [panel_begin, panel_end), whose rows are in the strip. Rows past the matrix's last become zeros.
void pack_panels(const PackedView& view, Strip strip, uint8_t* dst, int panel_begin, int panel_end) {
  const FormatInfo& info = format_info(view.format);
  const auto block_bytes = static_cast<size_t>(info.block_bytes);
  const int num_blocks = view.cols / info.block_elems;
  const std::vector<uint8_t> zeros(block_bytes, 0);
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    uint8_t* to = dst + static_cast<size_t>(panel) * view.panel_bytes;
    for (int block = 0; block < num_blocks; ++block) {
      const uint8_t* blocks[kPanelRows];
      for (int r = 0; r < kPanelRows; ++r) {
        const int row = panel * kPanelRows + r;
        const size_t at = static_cast<size_t>(row - strip.first) * static_cast<size_t>(num_blocks);
        blocks[r] = row < view.rows ? strip.src + (at + static_cast<size_t>(block)) * block_bytes : zeros.data();
      }
      pack_block(view.format, blocks, to);
      to += info.panel_block_bytes;
    }
  }
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

PackedMatrix::PackedMatrix(Format format, int rows, int cols, WeightMemory& memory)
    : view_(packed_shape(format, rows, cols)) {
  WeightPlace place = memory.take(packed_bytes(view_) + kPackSlack);
  view_.data = place.data;
  memory_ = std::move(place.segment);
}

PackedMatrix::PackedMatrix(Format format, int rows, int cols) : view_(packed_shape(format, rows, cols)) {
  WeightPlace place = WeightMemory(0).take(packed_bytes(view_) + kPackSlack);
  view_.data = place.data;
  memory_ = std::move(place.segment);
}

PackedMatrix::PackedMatrix(Format format, int rows, int cols, const uint8_t* data, size_t size)
    : view_(packed_shape(format, rows, cols)) {
  if (size < packed_bytes(view_) + kPackSlack || reinterpret_cast<uintptr_t>(data) % 64 != 0) {
    throw std::invalid_argument("packed bytes: expected at least " + std::to_string(packed_bytes(view_) + kPackSlack) +
                                " at a multiple of 64, got " + std::to_string(size));
  }
  view_.data = data;
}

void PackedMatrix::pack(const uint8_t* src, int first, int count, int threads) {
  if (memory_ == nullptr) {
    throw std::invalid_argument("pack: this matrix reads bytes that are not its own");
  }
  const bool is_inside = first >= 0 && first <= view_.rows && count > 0 && count <= view_.rows - first;
  const bool is_last = is_inside && first + count == view_.rows;
  if (!is_inside || first % kPanelRows != 0 || (count % kPanelRows != 0 && !is_last)) {
    throw std::invalid_argument(std::to_string(count) + " rows from row " + std::to_string(first) + " on, of " +
                                std::to_string(view_.rows) + ": expected whole panels of " +
                                std::to_string(kPanelRows) + " rows inside the matrix");
  }
  const int panel_begin = first / kPanelRows;
  const int num_panels = (count + kPanelRows - 1) / kPanelRows;
  const int num_workers = std::clamp(threads, 1, num_panels);
  const auto share = [&](int i) {
    return panel_begin + static_cast<int>(static_cast<int64_t>(num_panels) * i / num_workers);
  };
  auto* dst = const_cast<uint8_t*>(view_.data);
  std::vector<std::thread> workers;
  for (int i = 1; i < num_workers; ++i) {
    const auto work = [=, this] { pack_panels(view_, {src, first}, dst, share(i), share(i + 1)); };
    try {
      workers.emplace_back(work);
    } catch (const std::system_error&) {  // no more threads: slower, not wrong
      work();
    }
  }
  pack_panels(view_, {src, first}, dst, share(0), share(1));
  for (std::thread& worker : workers) {
    worker.join();
  }
}

}  // namespace caudal

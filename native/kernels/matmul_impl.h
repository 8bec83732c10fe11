// The text of the matmul kernels, compiled once per instruction set: include it after the primitives of that set
// (matmul_simd_*.h). It defines kMatmulKernels, and everything in it has internal linkage.
//
// Per panel of 16 rows, the columns are done tile by tile. Up to one tile the weights are unpacked in registers and
// memory is streamed; for more, a chunk of k is unpacked once to bytes (or to float32 in exact mode) in scratch.
#pragma once

#include "matmul_quants.h"
//
#include "matmul_levels.h"
#include "matmul_low_bits.h"
#include "matmul_records.h"
// (the order matters: each text uses the one before)
#include "matmul_tiles.h"
//
#include "matmul_activations.h"
//
#include "matmul_scratch.h"
//
#include "matmul_outliers.h"

namespace caudal {
namespace {
namespace mm {

// How one format is multiplied with one kind of activations.
struct Path {
  int block_elems;
  int block_bytes;
  int chunk_elems;
  bool exact;              // prepared means float32
  int prepare_from;        // tiles from which on weights are prepared; 0 is never
  const TileFn* direct;    // by width - 1: from packed weights; may be null
  const TileFn* prepared;  // by width - 1: from prepared weights; may be null
  void (*prepare)(const uint8_t* blocks, int count, uint8_t* dst);
  void (*dequantize_columns)(const uint8_t* panel, const int32_t* ks, int count, float* dst);
};

template <class Traits>
void unpack_blocks(const uint8_t* blocks, int count, uint8_t* dst) {
  for (int b = 0; b < count; ++b) {
    prefetch_block<Traits::kBlockBytes>(blocks + kStreamAhead);
    unpack_block<Traits>(blocks, dst);
    blocks += Traits::kBlockBytes;
    dst += Traits::kBlock * 16 * Traits::kPlanes;
  }
}

template <class Traits>
void dequantize_blocks(const uint8_t* blocks, int count, uint8_t* dst) {
  for (int b = 0; b < count; ++b) {
    prefetch_block<Traits::kBlockBytes>(blocks + kStreamAhead);
    dequantize_block<Traits>(blocks, reinterpret_cast<float*>(dst));
    blocks += Traits::kBlockBytes;
    dst += Traits::kBlock * 64;
  }
}

// dst[count][16] = the weights of elements `ks`.
template <class Traits>
void dequantize_columns(const uint8_t* panel, const int32_t* ks, int count, float* dst) {
  for (int i = 0; i < count; ++i) {
    const uint8_t* block = panel + static_cast<size_t>(ks[i] / Traits::kBlock) * Traits::kBlockBytes;
    store_floats(dst + i * 16, dequantize_element<Traits>(block, ks[i] % Traits::kBlock));
  }
}

template <class Load>
void widen_rows(const uint8_t* rows, int count, uint8_t* dst) {
  for (int k = 0; k < count; ++k) {
    store_floats(reinterpret_cast<float*>(dst + k * 64), Load::load(rows + k * Load::kBytes));
  }
}

template <class Traits, int kWidth, bool kUnpacked>
constexpr TileFn tile_function() {
  if constexpr (Traits::kBlock == 32) {
    return tile_32<Traits, kWidth, kUnpacked>;
  } else {
    return tile_256<Traits, kWidth, kUnpacked>;
  }
}

// Tiles of more than one tile's columns are never narrower than half the full width.
template <class Traits, bool kUnpacked, class Sequence>
struct TileTable;
template <class Traits, bool kUnpacked, int... kIs>
struct TileTable<Traits, kUnpacked, std::integer_sequence<int, kIs...>> {
  template <int kWidth>
  static constexpr TileFn pick() {
    if constexpr (kUnpacked && kWidth * 2 < kTileWidth) {
      return nullptr;
    } else {
      return tile_function<Traits, kWidth, kUnpacked>();
    }
  }
  static constexpr TileFn kTable[kTileWidth] = {pick<kIs + 1>()...};
};

template <class Load, class Sequence>
struct FloatTable;
template <class Load, int... kIs>
struct FloatTable<Load, std::integer_sequence<int, kIs...>> {
  static constexpr TileFn kTable[kTileWidth] = {tile_f32<Load, kIs + 1>...};
};

using Widths = std::make_integer_sequence<int, kTileWidth>;

template <Format kFormat>
constexpr Path quantized_path() {
  using Traits = TraitsOf<kFormat>;
  Path path{};
  path.block_elems = Traits::kBlock;
  path.block_bytes = Traits::kBlockBytes;
  path.chunk_elems = kChunk;
  path.dequantize_columns = dequantize_columns<Traits>;
  path.direct = TileTable<Traits, false, Widths>::kTable;
  if constexpr (unpack_from_tiles(Traits::kBitCount) > 0) {
    path.prepare_from = unpack_from_tiles(Traits::kBitCount);
    path.prepared = TileTable<Traits, true, Widths>::kTable;
    path.prepare = unpack_blocks<Traits>;
  }
  return path;
}

template <Format kFormat>
constexpr Path exact_path() {
  using Traits = TraitsOf<kFormat>;
  Path path{};
  path.block_elems = Traits::kBlock;
  path.block_bytes = Traits::kBlockBytes;
  path.chunk_elems = kExactChunk;
  path.exact = true;
  path.prepare_from = 1;
  path.prepared = FloatTable<LoadF32, Widths>::kTable;
  path.prepare = dequantize_blocks<Traits>;
  return path;
}

template <class Load>
constexpr Path float_path(bool widen) {
  Path path{};
  path.block_elems = 1;
  path.block_bytes = Load::kBytes;
  path.chunk_elems = kExactChunk;
  path.exact = true;
  path.direct = FloatTable<Load, Widths>::kTable;
  if (widen) {
    path.prepare_from = 4;
    path.prepared = FloatTable<LoadF32, Widths>::kTable;
    path.prepare = widen_rows<Load>;
  }
  return path;
}

template <Format kFormat>
constexpr Path path_of(bool exact) {
  if constexpr (kFormat == Format::f16) {
    return float_path<LoadF16>(true);
  } else if constexpr (kFormat == Format::bf16) {
    return float_path<LoadBF16>(true);
  } else if constexpr (kFormat == Format::f32) {
    return float_path<LoadF32>(false);
  } else {
    return exact ? exact_path<kFormat>() : quantized_path<kFormat>();
  }
}

struct PathTable {
  Path of[kNumFormats];
};

template <int... kIs>
constexpr PathTable paths_of(bool exact, std::integer_sequence<int, kIs...>) {
  return {{path_of<static_cast<Format>(kIs)>(exact)...}};
}

constexpr PathTable kPaths = paths_of(false, std::make_integer_sequence<int, kNumFormats>{});
constexpr PathTable kExactPaths = paths_of(true, std::make_integer_sequence<int, kNumFormats>{});

// Sixteen results of one activation row: bias first, then what `out` held.
CAUDAL_INLINE void store_result(const MatmulArgs& args, int panel, int row, Floats f) {
  const int first = panel * kPanelRows;
  float* out = args.out + static_cast<size_t>(row) * args.out_stride + first;
  const int valid = args.weights.rows - first;
  if (valid >= kPanelRows) {
    if (args.bias != nullptr) {
      f = add(f, load_floats(args.bias + first));
    }
    store_floats(out, args.accumulate ? add(load_floats(out), f) : f);
    return;
  }
  alignas(64) float result[kPanelRows];
  store_floats(result, f);
  for (int r = 0; r < kPanelRows; ++r) {
    float v = 0.0F;
    if (r < valid) {
      v = args.bias != nullptr ? result[r] + args.bias[first + r] : result[r];
      v = args.accumulate ? out[r] + v : v;
    }
    out[r] = v;
  }
}

// Where a tile's activations are from element k of its rows on.
CAUDAL_INLINE const uint8_t* activations_at(const ActivationView& view, Tile tile, int k) {
  return tile_data(view, tile) + row_bytes(view.kind, k) * static_cast<size_t>(tile.width);
}

// The tiles of one panel, in scratch.carry.
void multiply_tiles(const MatmulArgs& args, const Path& path, const uint8_t* weights, int group,
                    const Scratch& scratch) {
  const ActivationView& x = args.x;
  const int num_tiles = count_tiles(x.num_rows);
  const int tile_begin = group * kGroupTiles;
  const int tile_end = last_tile(x.num_rows, group) + 1;
  const int first_row = tile_at(x.num_rows, tile_begin).first;
  const bool prepare = path.prepare_from > 0 && num_tiles >= path.prepare_from;
  const int num_blocks = x.cols / path.block_elems;
  // As equal as can be: one that is shorter has too little of the next one fetched.
  const int most = path.chunk_elems / path.block_elems;
  const int num_chunks = !prepare && num_tiles == 1 ? 1 : (num_blocks + most - 1) / most;
  const int chunk = (num_blocks + num_chunks - 1) / num_chunks;
  for (int block = 0; block < num_blocks; block += chunk) {
    const int count = num_blocks - block < chunk ? num_blocks - block : chunk;
    const uint8_t* blocks = weights + static_cast<size_t>(block) * static_cast<size_t>(path.block_bytes);
    if (prepare) {
      path.prepare(blocks, count, scratch.prepared);
    }
    TileArgs call{};
    call.panel = prepare && path.exact ? scratch.prepared : blocks;
    call.unpacked = scratch.prepared;
    call.num_blocks = path.exact ? count * path.block_elems : count;
    call.is_first = block == 0;
    // The first tile of several has the next chunk fetched while it computes.
    call.ahead = prepare && path.exact ? 0
                 : num_tiles == 1      ? kStreamAhead
                                       : static_cast<size_t>(count * path.block_bytes);
    for (int index = tile_begin; index < tile_end; ++index) {
      const Tile tile = tile_at(x.num_rows, index);
      call.x = activations_at(x, tile, block * path.block_elems);
      call.carry = scratch.carry + static_cast<size_t>(tile.first - first_row) * 16;
      (prepare ? path.prepared : path.direct)[tile.width - 1](call);
      call.ahead = 0;
    }
  }
}

// What the bytes of outliers leave, after the products of the bytes; the panel is in a near cache by now.
void finish_with_outliers(const MatmulArgs& args, const Path& path, int panel, const uint8_t* weights, RowRange rows,
                          const GroupOutliers& lists, const Scratch& scratch) {
  path.dequantize_columns(weights, lists.ks, lists.num_columns(), scratch.outlier_weights + 16);
  for (int i = 0; i < lists.num_more(); ++i) {
    float* carry = scratch.carry + lists.more_rows[i] * 16;
    store_floats(carry, add_terms(lists.more[i], scratch.outlier_weights, load_floats(carry)));
  }
  for (int i = 0; i < rows.end - rows.first; ++i) {
    const Floats f = load_floats(scratch.carry + i * 16);
    store_result(args, panel, rows.first + i, add_terms(lists.first[i], scratch.outlier_weights, f));
  }
}

void multiply_panel(const MatmulArgs& args, const Path& path, int panel, int group, bool is_exact,
                    const Scratch& scratch) {
  const RowRange rows = rows_of_group(args.x.num_rows, group);
  const uint8_t* weights = args.weights.data + static_cast<size_t>(panel) * args.weights.panel_bytes;
  multiply_tiles(args, path, weights, group, scratch);
  if (!is_exact) {
    const GroupOutliers lists = group_at(scratch, args.x.cols, group);
    if (lists.num_columns() > 0) {
      finish_with_outliers(args, path, panel, weights, rows, lists, scratch);
      return;
    }
  }
  for (int i = 0; i < rows.end - rows.first; ++i) {
    store_result(args, panel, rows.first + i, load_floats(scratch.carry + i * 16));
  }
}

void matmul(const MatmulArgs& args, int panel_begin, int panel_end, void* memory) {
  const int format = static_cast<int>(args.weights.format);
  const bool is_exact = args.x.kind == ActivationKind::f32;
  const Path& path = is_exact ? kExactPaths.of[format] : kPaths.of[format];
  const Scratch scratch = scratch_at(memory, args.x.cols);
  for (int group = 0; group < count_groups(args.x.num_rows); ++group) {
    for (int panel = panel_begin; panel < panel_end; ++panel) {
      multiply_panel(args, path, panel, group, is_exact, scratch);
    }
  }
}

void dequantize_row(const PackedView& weights, int row, float scale, float* out) {
  alignas(64) float block[256 * 16];
  const Path& path = kExactPaths.of[static_cast<int>(weights.format)];
  const uint8_t* panel = weights.data + static_cast<size_t>(row / kPanelRows) * weights.panel_bytes;
  const int lane = row % kPanelRows;
  const bool is_f32 = weights.format == Format::f32;
  const int step = path.block_elems == 1 ? (weights.cols < 256 ? weights.cols : 256) : path.block_elems;
  for (int k = 0; k < weights.cols; k += step) {
    const int count = weights.cols - k < step ? weights.cols - k : step;
    const uint8_t* from = panel + static_cast<size_t>(k / path.block_elems) * static_cast<size_t>(path.block_bytes);
    const float* values = block;
    if (is_f32) {
      values = reinterpret_cast<const float*>(from);
    } else {
      path.prepare(from, count / path.block_elems, reinterpret_cast<uint8_t*>(block));
    }
    for (int i = 0; i < count; ++i) {
      out[k + i] = values[i * 16 + lane] * scale;
    }
  }
}

}  // namespace mm

constexpr MatmulKernels kMatmulKernels{mm::activation_bytes, mm::pack_activations, mm::scratch_bytes,
                                       mm::begin_operand,    mm::matmul,           mm::dequantize_row};

}  // namespace
}  // namespace caudal

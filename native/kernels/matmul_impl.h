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

namespace caudal {
namespace {
namespace mm {

constexpr int kGroupTiles = 32;        // tiles whose results are carried at once
constexpr int kChunk = 1024;           // elements of k unpacked at once
constexpr int kExactChunk = 512;       // and dequantised
constexpr size_t kStreamAhead = 3072;  // bytes of weights prefetched ahead when memory is streamed
constexpr size_t kCarryBytes = static_cast<size_t>(kGroupTiles) * kTileWidth * 64;
constexpr size_t kPreparedBytes = static_cast<size_t>(kChunk) * 16 * (kSplitQ8 ? 2 : 1);
constexpr size_t kExactBytes = static_cast<size_t>(kExactChunk) * 64;
constexpr size_t kScratchBytes = kCarryBytes + (kPreparedBytes > kExactBytes ? kPreparedBytes : kExactBytes);

// What the bytes of one outlier leave, to be multiplied: the row's results += weights[weight..] * rest.
struct OutlierTerm {
  uint32_t weight;
  float rest;
};
constexpr int kTermsAtOnce = 4;

// The outliers of a group of rows. Their elements of k are listed once each, so that a panel's weights are dequantised
// once. A row's terms are filled up with zeros to a multiple of kTermsAtOnce: loops over a few terms each would end at
// a surprise every time.
struct OutlierTerms {
  float* weights;   // [1 + num_columns][16], of the panel at hand; the first are zeros
  int32_t* ks;      // [num_columns]
  uint32_t* place;  // [cols]: where element k is among them, if ks says so; otherwise anything
  int32_t* counts;  // of each row
  OutlierTerm* terms;
  uint32_t num_columns;
};

inline size_t outlier_scratch_bytes(int cols) {
  const size_t rows = static_cast<size_t>(kGroupTiles) * kTileWidth;
  const size_t terms = static_cast<size_t>(max_outliers(cols) + kTermsAtOnce);
  return 64 + static_cast<size_t>(cols) * (64 + 2 * sizeof(int32_t)) +
         rows * (sizeof(int32_t) + terms * sizeof(OutlierTerm));
}

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
  void (*dequantize_columns)(const uint8_t* panel, const int32_t* ks, uint32_t count, float* dst);
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
void dequantize_columns(const uint8_t* panel, const int32_t* ks, uint32_t count, float* dst) {
  for (uint32_t i = 0; i < count; ++i) {
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
CAUDAL_INLINE void store_result(const MatmulArgs& args, int panel, int row, const float* result) {
  const int first = panel * kPanelRows;
  float* out = args.out + static_cast<size_t>(row) * args.out_stride + first;
  const int valid = args.weights.rows - first;
  Floats f = load_floats(result);
  if (valid >= kPanelRows) {
    if (args.bias != nullptr) {
      f = add(f, load_floats(args.bias + first));
    }
    store_floats(out, args.accumulate ? add(load_floats(out), f) : f);
    return;
  }
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

// Collects the outliers of rows [first_row, end_row), in scratch. Terms of a row are in order of k.
OutlierTerms collect_outliers(const ActivationView& x, int first_row, int end_row, uint8_t* scratch) {
  const size_t cols = static_cast<size_t>(x.cols);
  OutlierTerms all{};
  all.weights = reinterpret_cast<float*>(scratch);
  all.ks = reinterpret_cast<int32_t*>(scratch + 64 + cols * 64);
  all.place = reinterpret_cast<uint32_t*>(all.ks + cols);
  all.counts = reinterpret_cast<int32_t*>(all.place + cols);
  all.terms = reinterpret_cast<OutlierTerm*>(all.counts + kGroupTiles * kTileWidth);
  store_floats(all.weights, zeros());
  OutlierTerm* next = all.terms;
  for (int row = first_row; row < end_row; ++row) {
    const OutlierList list = outliers_of(x, row);
    for (int i = 0; i < *list.count; ++i) {
      const int32_t k = list.items[i].k;
      uint32_t place = all.place[k];
      if (place >= all.num_columns || all.ks[place] != k) {
        place = all.place[k] = all.num_columns++;
        all.ks[place] = k;
      }
      *next++ = {(place + 1) * 16, list.items[i].rest};
    }
    const int padded = (*list.count + kTermsAtOnce - 1) / kTermsAtOnce * kTermsAtOnce;
    for (int i = *list.count; i < padded; ++i) {
      *next++ = {0, 0.0F};
    }
    all.counts[row - first_row] = padded;
  }
  return all;
}

// Adds what the bytes of outliers leave to results[num_rows][16]. The panel is in the near cache by now.
void add_outliers(const OutlierTerms& all, const Path& path, const uint8_t* panel, int num_rows, float* results) {
  path.dequantize_columns(panel, all.ks, all.num_columns, all.weights + 16);
  const OutlierTerm* terms = all.terms;
  for (int row = 0; row < num_rows; ++row) {
    Floats f = load_floats(results + row * 16);
    for (int i = 0; i < all.counts[row]; i += kTermsAtOnce) {
      unroll<kTermsAtOnce>([&](auto j) CAUDAL_LAMBDA {
        f = fma(load_floats(all.weights + terms[j].weight), broadcast(&terms[j].rest), f);
      });
      terms += kTermsAtOnce;
    }
    store_floats(results + row * 16, f);
  }
}

// Tiles [tile_begin, tile_end) of one panel. The bytes' products are added along k, then what outliers leave.
void multiply_panel(const MatmulArgs& args, const Path& path, int panel, int tile_begin, int tile_end,
                    const OutlierTerms& outliers, uint8_t* scratch) {
  const ActivationView& x = args.x;
  const int num_tiles = count_tiles(x.num_rows);
  const bool prepare = path.prepare_from > 0 && num_tiles >= path.prepare_from;
  const int num_blocks = x.cols / path.block_elems;
  const int chunk = !prepare && num_tiles == 1 ? num_blocks : path.chunk_elems / path.block_elems;
  const uint8_t* weights = args.weights.data + static_cast<size_t>(panel) * args.weights.panel_bytes;
  float* carry = reinterpret_cast<float*>(scratch);
  uint8_t* prepared = scratch + kCarryBytes;
  const int first_row = tile_at(x.num_rows, tile_begin).first;
  const Tile last = tile_at(x.num_rows, tile_end - 1);
  const int end_row = last.first + last.width;
  std::memset(carry, 0, static_cast<size_t>(end_row - first_row) * 64);
  for (int block = 0; block < num_blocks; block += chunk) {
    const int count = num_blocks - block < chunk ? num_blocks - block : chunk;
    const uint8_t* blocks = weights + static_cast<size_t>(block) * static_cast<size_t>(path.block_bytes);
    if (prepare) {
      path.prepare(blocks, count, prepared);
    }
    TileArgs call{};
    call.panel = prepare && path.exact ? prepared : blocks;
    call.unpacked = prepared;
    call.num_blocks = path.exact ? count * path.block_elems : count;
    // The first tile of several has the next chunk fetched while it computes.
    call.ahead = prepare && path.exact ? 0
                 : num_tiles == 1      ? kStreamAhead
                                       : static_cast<size_t>(count * path.block_bytes);
    for (int index = tile_begin; index < tile_end; ++index) {
      const Tile tile = tile_at(x.num_rows, index);
      call.x = activations_at(x, tile, block * path.block_elems);
      call.carry = carry + static_cast<size_t>(tile.first - first_row) * 16;
      (prepare ? path.prepared : path.direct)[tile.width - 1](call);
      call.ahead = 0;
    }
  }
  if (outliers.num_columns > 0) {
    add_outliers(outliers, path, weights, end_row - first_row, carry);
  }
  for (int row = first_row; row < end_row; ++row) {
    store_result(args, panel, row, carry + static_cast<size_t>(row - first_row) * 16);
  }
}

size_t scratch_bytes(int max_cols) { return kScratchBytes + outlier_scratch_bytes(max_cols); }

void matmul(const MatmulArgs& args, int panel_begin, int panel_end, void* scratch) {
  const int format = static_cast<int>(args.weights.format);
  const bool is_exact = args.x.kind == ActivationKind::f32;
  const Path& path = is_exact ? kExactPaths.of[format] : kPaths.of[format];
  const int num_tiles = count_tiles(args.x.num_rows);
  uint8_t* memory = static_cast<uint8_t*>(scratch);
  for (int tile = 0; tile < num_tiles; tile += kGroupTiles) {
    const int end = tile + kGroupTiles < num_tiles ? tile + kGroupTiles : num_tiles;
    OutlierTerms outliers{};
    if (!is_exact) {
      const Tile last = tile_at(args.x.num_rows, end - 1);
      outliers = collect_outliers(args.x, tile_at(args.x.num_rows, tile).first, last.first + last.width,
                                  memory + kScratchBytes);
    }
    for (int panel = panel_begin; panel < panel_end; ++panel) {
      multiply_panel(args, path, panel, tile, end, outliers, memory);
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

constexpr MatmulKernels kMatmulKernels{mm::activation_bytes, mm::pack_activations, mm::scratch_bytes, mm::matmul,
                                       mm::dequantize_row};

}  // namespace
}  // namespace caudal

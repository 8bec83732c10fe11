// The left operand: float32 rows packed into column tiles: part of matmul_impl.h.
//
// T rows become ceil(T / kTileWidth) tiles of nearly equal width w. A tile holds [k / 4][w][4] int8, then per
// block [w] float scales, then the sums that remove zero points and minima. With kind f32 it is float [k][w].
//
// Outliers: one large value makes the scale of its block coarse for all the others. So a block whose largest value
// stands out from its row is kept as two int8 terms: the rounded values, and what rounding took away, with a scale of
// its own. The second terms of all tiles follow the first ones in the same layout (only those of outlier blocks are
// filled in; the others have scale 0), and then come the flags, a byte per block and row.
#pragma once

namespace caudal {
namespace {
namespace mm {

struct Tile {
  int first;
  int width;
};

CAUDAL_INLINE int count_tiles(int num_rows) { return (num_rows + kTileWidth - 1) / kTileWidth; }

CAUDAL_INLINE Tile tile_at(int num_rows, int index) {
  const int tiles = count_tiles(num_rows);
  const int base = num_rows / tiles;
  const int wide = num_rows % tiles;  // the first `wide` tiles have one more
  return {index * base + (index < wide ? index : wide), base + (index < wide ? 1 : 0)};
}

CAUDAL_INLINE Tile tile_of_row(int num_rows, int row) {
  const int tiles = count_tiles(num_rows);
  const int base = num_rows / tiles;
  const int wide = num_rows % tiles;
  const int in_wide = wide * (base + 1);
  return tile_at(num_rows, row < in_wide ? row / (base + 1) : wide + (row - in_wide) / base);
}

CAUDAL_INLINE size_t row_bytes(ActivationKind kind, int cols) {
  const size_t k = static_cast<size_t>(cols);
  switch (kind) {
    case ActivationKind::q8_32:
      return k + k / 32 * 12;
    case ActivationKind::q8_256:
      return k + k / 256 * 52;
    default:
      return k * 4;
  }
}

// A block is an outlier if its largest value is more than so many times the root mean square of its row. Measured on
// SmolLM2 and Gemma 3: a tenth to a third of the blocks, and a divergence from the float32 model three to four times
// smaller. Among 256 values the largest is larger by chance.
constexpr float kOutlier32 = 5.0F;
constexpr float kOutlier256 = 10.0F;

constexpr int kFirstTerm = 0;
constexpr int kSecondTerm = 1;

CAUDAL_INLINE int scale_elems(ActivationKind kind) { return kind == ActivationKind::q8_32 ? 32 : 256; }

CAUDAL_INLINE size_t term_bytes(ActivationKind kind, int cols, int num_rows) {
  return row_bytes(kind, cols) * static_cast<size_t>(num_rows);
}

// Where the parts of a tile are.
struct TileParts {
  int8_t* x;
  float* scales;
  float* sums_f;
  int32_t* sums;
  int16_t* sums16;
  int16_t* sums32;
};

CAUDAL_INLINE TileParts tile_parts(const ActivationView& view, Tile tile, int term) {
  const size_t k = static_cast<size_t>(view.cols);
  const size_t w = static_cast<size_t>(tile.width);
  uint8_t* base = view.data + term_bytes(view.kind, view.cols, term * view.num_rows + tile.first);
  TileParts parts{};
  parts.x = reinterpret_cast<int8_t*>(base);
  parts.scales = reinterpret_cast<float*>(base + k * w);
  if (view.kind == ActivationKind::q8_32) {
    parts.sums_f = parts.scales + k / 32 * w;
    parts.sums = reinterpret_cast<int32_t*>(parts.sums_f + k / 32 * w);
  } else if (view.kind == ActivationKind::q8_256) {
    parts.sums16 = reinterpret_cast<int16_t*>(parts.scales + k / 256 * w);
    parts.sums32 = parts.sums16 + k / 16 * w;
  }
  return parts;
}

// Whether a block is an outlier, [block][w].
CAUDAL_INLINE uint8_t* outlier_flags(const ActivationView& view, Tile tile) {
  const int blocks = view.cols / scale_elems(view.kind);
  return view.data + term_bytes(view.kind, view.cols, 2 * view.num_rows) +
         static_cast<size_t>(blocks) * static_cast<size_t>(tile.first);
}

// The scale of a block whose largest magnitude is `largest`, and its inverse; both 0 when there is nothing to keep.
CAUDAL_INLINE float block_scale(float largest, float& inverse) {
  if (largest < 1.5e-36F) {  // 127 / largest would overflow
    inverse = 0.0F;
    return 0.0F;
  }
  inverse = 127.0F / largest;
  return largest / 127.0F;
}

struct QuantizedBlock {
  alignas(64) int8_t q[256];
  int32_t sums16[16];  // of each 16 elements
  float scale;
  float largest;  // magnitude
};

// Quantises kCount elements with one scale.
template <int kCount>
CAUDAL_INLINE void quantize_block(const float* x, QuantizedBlock& block) {
  Floats largest = zeros();
  for (int i = 0; i < kCount; i += 16) {
    largest = max_abs(largest, load_floats(x + i));
  }
  alignas(64) float inverse[16];
  block.largest = max_lane(largest);
  block.scale = block_scale(block.largest, inverse[0]);
  const Floats factor = broadcast(inverse);
  for (int i = 0; i < kCount; i += 16) {
    block.sums16[i / 16] = store_rounded(block.q + i, mul(load_floats(x + i), factor));
  }
}

// Replaces a block by what its rounding took away.
template <int kCount>
CAUDAL_INLINE void quantize_rest(const float* x, QuantizedBlock& block) {
  alignas(64) float rest[kCount];
  for (int i = 0; i < kCount; ++i) {
    rest[i] = __builtin_fmaf(-block.scale, static_cast<float>(block.q[i]), x[i]);
  }
  quantize_block<kCount>(rest, block);
}

// The largest magnitude that is not yet an outlier in this row. The sum runs in the same order everywhere.
CAUDAL_INLINE float outlier_limit(const float* x, int cols, float times) {
  Floats sum = zeros();
  for (int i = 0; i < cols; i += 16) {
    const Floats v = load_floats(x + i);
    sum = fma(v, v, sum);
  }
  alignas(64) float lanes[16];
  store_floats(lanes, sum);
  float total = 0.0F;
  for (const float lane : lanes) {
    total += lane;
  }
  return times * __builtin_sqrtf(total / static_cast<float>(cols));
}

CAUDAL_INLINE bool all_finite(const float* x, int count) {
  float sum = 0.0F;
  for (int i = 0; i < count; ++i) {
    sum += x[i] * 0.0F;
  }
  return sum == 0.0F;
}

CAUDAL_INLINE void scatter_quads(const int8_t* q, int count, int width, int8_t* dst) {
  for (int i = 0; i < count; i += 4) {
    std::memcpy(dst + static_cast<size_t>(i) * static_cast<size_t>(width), q + i, 4);
  }
}

// Where block b of a row goes: `place` is b * width + column.
struct Blocks32 {
  static constexpr int kElems = 32;
  static constexpr float kOutlier = kOutlier32;

  CAUDAL_INLINE static void store(const TileParts& tile, int place, int, const QuantizedBlock& block) {
    const int32_t sum = block.sums16[0] + block.sums16[1];
    tile.scales[place] = block.scale;
    tile.sums[place] = sum;
    tile.sums_f[place] = block.scale * static_cast<float>(sum);
  }
  CAUDAL_INLINE static void clear(const TileParts& tile, int place) {
    tile.scales[place] = 0.0F;
    tile.sums_f[place] = 0.0F;
  }
};

struct Blocks256 {
  static constexpr int kElems = 256;
  static constexpr float kOutlier = kOutlier256;

  CAUDAL_INLINE static void store(const TileParts& tile, int place, int width, const QuantizedBlock& block) {
    const int column = place % width;
    int16_t* sums16 = tile.sums16 + (place - column) * 16 + column * 2;
    int16_t* sums32 = tile.sums32 + (place - column) * 8 + column * 2;
    tile.scales[place] = block.scale;
    for (int i = 0; i < 16; ++i) {
      sums16[i / 2 * width * 2 + i % 2] = static_cast<int16_t>(block.sums16[i]);
    }
    for (int i = 0; i < 8; ++i) {
      const int32_t sum = block.sums16[2 * i] + block.sums16[2 * i + 1];
      sums32[i / 2 * width * 2 + i % 2] = static_cast<int16_t>(sum);
    }
  }
  CAUDAL_INLINE static void clear(const TileParts& tile, int place) { tile.scales[place] = 0.0F; }
};

template <class Blocks>
CAUDAL_INLINE void pack_row(const ActivationView& dst, const float* x, int row) {
  constexpr int kElems = Blocks::kElems;
  const Tile tile = tile_of_row(dst.num_rows, row);
  const TileParts first = tile_parts(dst, tile, kFirstTerm);
  const TileParts second = tile_parts(dst, tile, kSecondTerm);
  uint8_t* flags = outlier_flags(dst, tile);
  const float limit = outlier_limit(x, dst.cols, Blocks::kOutlier);
  const bool is_suspect = !(limit < __builtin_inff());
  const int column = row - tile.first;
  QuantizedBlock block;
  for (int b = 0; b < dst.cols / kElems; ++b) {
    const int place = b * tile.width + column;
    const int quads = b * kElems * tile.width + column * 4;
    quantize_block<kElems>(x + b * kElems, block);
    if (is_suspect && !all_finite(x + b * kElems, kElems)) {
      block.scale = __builtin_nanf("");  // a NaN or an infinity must not become a number
    }
    scatter_quads(block.q, kElems, tile.width, first.x + quads);
    Blocks::store(first, place, tile.width, block);
    const bool is_outlier = block.largest > limit;
    flags[place] = is_outlier ? 1 : 0;
    if (is_outlier) {
      quantize_rest<kElems>(x + b * kElems, block);
      scatter_quads(block.q, kElems, tile.width, second.x + quads);
      Blocks::store(second, place, tile.width, block);
    } else {
      Blocks::clear(second, place);
    }
  }
}

CAUDAL_INLINE void pack_row_f32(const ActivationView& dst, const float* x, int row) {
  const Tile tile = tile_of_row(dst.num_rows, row);
  float* to = reinterpret_cast<float*>(tile_parts(dst, tile, kFirstTerm).x) + (row - tile.first);
  for (int k = 0; k < dst.cols; ++k) {
    to[static_cast<size_t>(k) * static_cast<size_t>(tile.width)] = x[k];
  }
}

size_t activation_bytes(ActivationKind kind, int cols, int num_rows) {
  size_t bytes = term_bytes(kind, cols, num_rows);
  if (kind != ActivationKind::f32) {
    bytes = 2 * bytes + static_cast<size_t>(cols / scale_elems(kind)) * static_cast<size_t>(num_rows);
  }
  return (bytes + 63) / 64 * 64;
}

void pack_activations(const ActivationView& dst, const float* x, size_t x_stride, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* from = x + static_cast<size_t>(row) * x_stride;
    if (dst.kind == ActivationKind::q8_32) {
      pack_row<Blocks32>(dst, from, row);
    } else if (dst.kind == ActivationKind::q8_256) {
      pack_row<Blocks256>(dst, from, row);
    } else {
      pack_row_f32(dst, from, row);
    }
  }
}

}  // namespace mm
}  // namespace
}  // namespace caudal

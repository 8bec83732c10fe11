// The left operand: float32 rows packed into column tiles: part of matmul_impl.h.
//
// T rows become ceil(T / kTileWidth) tiles of nearly equal width w. A tile holds [k / 4][w][4] int8, then per
// block [w] float scales, then the sums that remove zero points and minima. With kind f32 it is float [k][w].
//
// Outliers: one large value would make the scale of its block coarse for all the others. So a value that stands out
// from its row does not count for the scale: its byte is clamped, and what is left of it is kept as a float. A list per
// row of such rests follows the tiles: [T] counts, then [T][max_outliers] of them, by rising k.
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

// A value is an outlier if its magnitude is more than so many times the root mean square of its row. At most one of the
// square of that many can be one.
constexpr float kOutlier = 4.0F;

CAUDAL_INLINE int max_outliers(int cols) { return cols / static_cast<int>(kOutlier * kOutlier) + 1; }

// What the byte of element k leaves of its value.
struct Outlier {
  int32_t k;
  float rest;
};

CAUDAL_INLINE int scale_elems(ActivationKind kind) { return kind == ActivationKind::q8_32 ? 32 : 256; }

CAUDAL_INLINE size_t tiles_bytes(ActivationKind kind, int cols, int num_rows) {
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

CAUDAL_INLINE TileParts tile_parts(const ActivationView& view, Tile tile) {
  const size_t k = static_cast<size_t>(view.cols);
  const size_t w = static_cast<size_t>(tile.width);
  uint8_t* base = view.data + tiles_bytes(view.kind, view.cols, tile.first);
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

struct OutlierList {
  int32_t* count;
  Outlier* items;
};

CAUDAL_INLINE OutlierList outliers_of(const ActivationView& view, int row) {
  uint8_t* base = view.data + tiles_bytes(view.kind, view.cols, view.num_rows);
  auto* counts = reinterpret_cast<int32_t*>(base);
  auto* items = reinterpret_cast<Outlier*>(base + static_cast<size_t>(view.num_rows) * sizeof(int32_t));
  return {counts + row, items + static_cast<size_t>(row) * static_cast<size_t>(max_outliers(view.cols))};
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
};

// Quantises kCount elements for a largest magnitude; larger ones are clamped.
template <int kCount>
CAUDAL_INLINE void quantize_block(const float* x, float largest, QuantizedBlock& block) {
  alignas(64) float inverse[16];
  block.scale = block_scale(largest, inverse[0]);
  const Floats factor = broadcast(inverse);
  for (int i = 0; i < kCount; i += 16) {
    block.sums16[i / 16] = store_rounded(block.q + i, mul(load_floats(x + i), factor));
  }
}

// Writes the largest magnitude of every block, `stride` apart, and returns that which is not yet an outlier in this
// row. The sum runs in the same order everywhere.
template <int kCount>
CAUDAL_INLINE float measure_row(const float* x, int cols, float* largest, int stride) {
  Floats sum = zeros();
  for (int k = 0; k < cols; k += kCount) {
    Floats most = zeros();
    for (int i = k; i < k + kCount; i += 16) {
      const Floats v = load_floats(x + i);
      most = max_abs(most, v);
      sum = fma(v, v, sum);
    }
    *largest = max_lane(most);
    largest += stride;
  }
  alignas(64) float lanes[16];
  store_floats(lanes, sum);
  float total = 0.0F;
  for (const float lane : lanes) {
    total += lane;
  }
  return kOutlier * __builtin_sqrtf(total / static_cast<float>(cols));
}

// Lists the outliers of a block that has some, and returns the largest magnitude of its other values. When squares are
// too small for a float the list may be full: what finds no place is no outlier.
CAUDAL_INLINE float list_outliers(const float* x, int count, float limit, int first_k, int capacity, OutlierList list) {
  float largest = 0.0F;
  for (int i = 0; i < count; ++i) {
    const float magnitude = __builtin_fabsf(x[i]);
    if (magnitude > limit && *list.count < capacity) {
      list.items[(*list.count)++].k = first_k + i;
    } else {
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  return largest;
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

  CAUDAL_INLINE static void store(const TileParts& tile, int place, int, const QuantizedBlock& block) {
    const int32_t sum = block.sums16[0] + block.sums16[1];
    tile.scales[place] = block.scale;
    tile.sums[place] = sum;
    tile.sums_f[place] = block.scale * static_cast<float>(sum);
  }
};

struct Blocks256 {
  static constexpr int kElems = 256;

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
};

template <class Blocks>
CAUDAL_INLINE void pack_row(const ActivationView& dst, const float* x, int row) {
  constexpr int kElems = Blocks::kElems;
  const Tile tile = tile_of_row(dst.num_rows, row);
  const TileParts parts = tile_parts(dst, tile);
  const OutlierList list = outliers_of(dst, row);
  const int column = row - tile.first;
  // The place of the scales serves for the magnitudes that they are made of.
  const float limit = measure_row<kElems>(x, dst.cols, parts.scales + column, tile.width);
  const bool is_suspect = !(limit < __builtin_inff());
  *list.count = 0;
  QuantizedBlock block;
  for (int b = 0; b < dst.cols / kElems; ++b) {
    const float* from = x + b * kElems;
    const int place = b * tile.width + column;
    float largest = parts.scales[place];
    const int before = *list.count;
    if (largest > limit) {
      largest = list_outliers(from, kElems, limit, b * kElems, max_outliers(dst.cols), list);
    }
    quantize_block<kElems>(from, largest, block);
    if (is_suspect && !all_finite(from, kElems)) {
      block.scale = __builtin_nanf("");  // a NaN or an infinity must not become a number
    }
    for (int i = before; i < *list.count; ++i) {
      Outlier& outlier = list.items[i];
      outlier.rest = __builtin_fmaf(-block.scale, static_cast<float>(block.q[outlier.k - b * kElems]), x[outlier.k]);
    }
    scatter_quads(block.q, kElems, tile.width, parts.x + b * kElems * tile.width + column * 4);
    Blocks::store(parts, place, tile.width, block);
  }
}

CAUDAL_INLINE void pack_row_f32(const ActivationView& dst, const float* x, int row) {
  const Tile tile = tile_of_row(dst.num_rows, row);
  float* to = reinterpret_cast<float*>(tile_parts(dst, tile).x) + (row - tile.first);
  for (int k = 0; k < dst.cols; ++k) {
    to[static_cast<size_t>(k) * static_cast<size_t>(tile.width)] = x[k];
  }
}

size_t activation_bytes(ActivationKind kind, int cols, int num_rows) {
  size_t bytes = tiles_bytes(kind, cols, num_rows);
  if (kind != ActivationKind::f32) {
    const size_t row_outliers = sizeof(int32_t) + static_cast<size_t>(max_outliers(cols)) * sizeof(Outlier);
    bytes += static_cast<size_t>(num_rows) * row_outliers;
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

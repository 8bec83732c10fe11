// The left operand: float32 rows packed into column tiles: part of matmul_impl.h.
//
// T rows become ceil(T / kTileWidth) tiles of nearly equal width, as matmul_records.h says; with kind f32 a tile is
// float [k][w].
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
      return k / 32 * Cursor32::kBytes;
    case ActivationKind::q8_256:
      return k / 256 * Cursor256::kBytes;
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

CAUDAL_INLINE size_t tiles_bytes(ActivationKind kind, int cols, int num_rows) {
  return row_bytes(kind, cols) * static_cast<size_t>(num_rows);
}

CAUDAL_INLINE uint8_t* tile_data(const ActivationView& view, Tile tile) {
  return view.data + tiles_bytes(view.kind, view.cols, tile.first);
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

// Quantises a row's block; elements whose magnitude exceeds that which the scale is for are clamped.
template <class Cursor>
CAUDAL_INLINE void quantize_block(const float* x, float scale, float inverse, const Cursor& to) {
  alignas(64) const float lanes[16] = {inverse};
  const Floats factor = broadcast(lanes);
  int32_t sums16[Cursor::kElems / 16];
  for (int i = 0; i < Cursor::kElems; i += 16) {
    sums16[i / 16] = store_rounded(to.q(i), mul(load_floats(x + i), factor));
  }
  to.sums().scale = scale;
  set_sums(to.sums(), sums16);
}

// Writes the largest magnitude of every block in the place of its scale, and returns that which is not yet an outlier
// in this row. The sum runs in the same order everywhere.
template <class Cursor>
CAUDAL_INLINE float measure_row(const float* x, int cols, Cursor to) {
  Floats sum = zeros();
  for (int k = 0; k < cols; k += Cursor::kElems) {
    Floats most = zeros();
    for (int i = k; i < k + Cursor::kElems; i += 16) {
      const Floats v = load_floats(x + i);
      most = max_abs(most, v);
      sum = fma(v, v, sum);
    }
    to.sums().scale = max_lane(most);
    to.next();
  }
  alignas(64) float lanes[16];
  store_floats(lanes, sum);
  float total = 0.0F;
  for (const float lane : lanes) {
    total += lane;
  }
  return kOutlier * __builtin_sqrtf(total / static_cast<float>(cols));
}

// Lists the outliers among elements [k, k + count) of a row, `num_listed` of which there are already, and leaves in
// `largest` the largest magnitude of the others. Returns how many there are then. When squares are too small for a
// float the list may be full: what finds no place is no outlier.
CAUDAL_INLINE int list_outliers(const float* x, int k, int count, float limit, int capacity, Outlier* items,
                                int num_listed, float& largest) {
  alignas(64) float lanes[16] = {limit};
  const Floats limits = broadcast(lanes);
  Floats most = zeros();
  float unlisted = 0.0F;
  for (int i = k; i < k + count; i += 16) {
    const Floats v = load_floats(x + i);
    most = max_abs(most, zero_above(v, limits));
    for (uint32_t above = lanes_above(v, limits); above != 0; above &= above - 1) {
      const int at = i + __builtin_ctz(above);
      if (num_listed < capacity) {
        items[num_listed++].k = at;
      } else {
        unlisted = __builtin_fabsf(x[at]) > unlisted ? __builtin_fabsf(x[at]) : unlisted;
      }
    }
  }
  largest = max_lane(most);
  largest = unlisted > largest ? unlisted : largest;
  return num_listed;
}

CAUDAL_INLINE bool all_finite(const float* x, int count) {
  float sum = 0.0F;
  for (int i = 0; i < count; ++i) {
    sum += x[i] * 0.0F;
  }
  return sum == 0.0F;
}

template <class Cursor>
CAUDAL_INLINE void pack_row(const ActivationView& dst, const float* x, int row) {
  constexpr int kElems = Cursor::kElems;
  const Tile tile = tile_of_row(dst.num_rows, row);
  const OutlierList list = outliers_of(dst, row);
  const int capacity = max_outliers(dst.cols);
  Cursor to(tile_data(dst, tile), row - tile.first, tile.width);
  const float limit = measure_row(x, dst.cols, to);
  const bool is_suspect = !(limit < __builtin_inff());
  int num_listed = 0;
  for (int k = 0; k < dst.cols; k += kElems) {
    float largest = to.sums().scale;
    const int before = num_listed;
    if (largest > limit) {
      num_listed = list_outliers(x, k, kElems, limit, capacity, list.items, num_listed, largest);
    }
    float inverse = 0.0F;
    float scale = block_scale(largest, inverse);
    if (is_suspect && !all_finite(x + k, kElems)) {
      scale = __builtin_nanf("");  // a NaN or an infinity must not become a number
    }
    quantize_block(x + k, scale, inverse, to);
    for (int i = before; i < num_listed; ++i) {
      Outlier& outlier = list.items[i];
      outlier.rest = __builtin_fmaf(-scale, static_cast<float>(*to.q(outlier.k - k)), x[outlier.k]);
    }
    to.next();
  }
  *list.count = num_listed;
}

CAUDAL_INLINE void pack_row_f32(const ActivationView& dst, const float* x, int row) {
  const Tile tile = tile_of_row(dst.num_rows, row);
  float* to = reinterpret_cast<float*>(tile_data(dst, tile)) + (row - tile.first);
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
      pack_row<Cursor32>(dst, from, row);
    } else if (dst.kind == ActivationKind::q8_256) {
      pack_row<Cursor256>(dst, from, row);
    } else {
      pack_row_f32(dst, from, row);
    }
  }
}

}  // namespace mm
}  // namespace
}  // namespace caudal

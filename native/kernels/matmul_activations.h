// The left operand: float32 rows packed into column tiles: part of matmul_impl.h.
//
// T rows become ceil(T / kTileWidth) tiles of nearly equal width w. A tile holds [k / 4][w][4] int8, then per
// block [w] float scales, then the sums that remove zero points and minima. With kind f32 it is float [k][w].
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
  uint8_t* base = view.data + row_bytes(view.kind, view.cols) * static_cast<size_t>(tile.first);
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

// The scale of a block whose largest magnitude is `largest`, and its inverse; both 0 when there is nothing to keep.
CAUDAL_INLINE float block_scale(float largest, float& inverse) {
  if (largest < 1.5e-36F) {  // 127 / largest would overflow
    inverse = 0.0F;
    return 0.0F;
  }
  inverse = 127.0F / largest;
  return largest / 127.0F;
}

// Quantises `count` elements (a multiple of 32) with one scale; q gets the int8, sums16 the sum of each 16.
CAUDAL_INLINE float quantize_block(const float* x, int count, int8_t* q, int32_t* sums16) {
  Floats largest = zeros();
  for (int i = 0; i < count; i += 16) {
    largest = max_abs(largest, load_floats(x + i));
  }
  alignas(64) float inverse[16];
  const float scale = block_scale(max_lane(largest), inverse[0]);
  const Floats factor = broadcast(inverse);
  for (int i = 0; i < count; i += 16) {
    sums16[i / 16] = store_rounded(q + i, mul(load_floats(x + i), factor));
  }
  return scale;
}

CAUDAL_INLINE void scatter_quads(const int8_t* q, int count, int width, int8_t* dst) {
  for (int i = 0; i < count; i += 4) {
    std::memcpy(dst + static_cast<size_t>(i) * static_cast<size_t>(width), q + i, 4);
  }
}

CAUDAL_INLINE void pack_row_32(const TileParts& tile, int width, int column, const float* x, int cols) {
  alignas(64) int8_t q[32];
  for (int b = 0; b < cols / 32; ++b) {
    int32_t sums[2];
    const float scale = quantize_block(x + b * 32, 32, q, sums);
    scatter_quads(q, 32, width, tile.x + (b * 32 * width + column * 4));
    const int at = b * width + column;
    const int32_t sum = sums[0] + sums[1];
    tile.scales[at] = scale;
    tile.sums[at] = sum;
    tile.sums_f[at] = scale * static_cast<float>(sum);
  }
}

CAUDAL_INLINE void pack_row_256(const TileParts& tile, int width, int column, const float* x, int cols) {
  alignas(64) int8_t q[256];
  for (int b = 0; b < cols / 256; ++b) {
    int32_t sums[16];
    tile.scales[b * width + column] = quantize_block(x + b * 256, 256, q, sums);
    scatter_quads(q, 256, width, tile.x + (b * 256 * width + column * 4));
    int16_t* sums16 = tile.sums16 + b * 16 * width + column * 2;
    int16_t* sums32 = tile.sums32 + b * 8 * width + column * 2;
    for (int i = 0; i < 16; ++i) {
      sums16[i / 2 * width * 2 + i % 2] = static_cast<int16_t>(sums[i]);
    }
    for (int i = 0; i < 8; ++i) {
      sums32[i / 2 * width * 2 + i % 2] = static_cast<int16_t>(sums[2 * i] + sums[2 * i + 1]);
    }
  }
}

size_t activation_bytes(ActivationKind kind, int cols, int num_rows) {
  return (row_bytes(kind, cols) * static_cast<size_t>(num_rows) + 63) / 64 * 64;
}

void pack_activations(const ActivationView& dst, const float* x, size_t x_stride, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const Tile tile = tile_of_row(dst.num_rows, row);
    const TileParts parts = tile_parts(dst, tile);
    const int column = row - tile.first;
    const float* from = x + static_cast<size_t>(row) * x_stride;
    if (dst.kind == ActivationKind::q8_32) {
      pack_row_32(parts, tile.width, column, from, dst.cols);
    } else if (dst.kind == ActivationKind::q8_256) {
      pack_row_256(parts, tile.width, column, from, dst.cols);
    } else {
      float* to = reinterpret_cast<float*>(parts.x) + column;
      for (int k = 0; k < dst.cols; ++k) {
        to[static_cast<size_t>(k) * static_cast<size_t>(tile.width)] = from[k];
      }
    }
  }
}

}  // namespace mm
}  // namespace
}  // namespace caudal

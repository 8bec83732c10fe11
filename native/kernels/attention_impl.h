// Text of attention.h, once per instruction set. Included after simd/vec_*.h and simd/vec_math.h.
//
// A column is one query head of one query token. Columns of a tile share each load of K and V, so the heads of a
// group and the neighbours of a prompt cost little more than one. Scores have tokens in lanes, outputs have
// dimensions in lanes; both are sums of products in a fixed order.
#pragma once

#include "attention.h"

namespace caudal {
namespace {

// Accumulators that fit the registers beside the operands: columns x vectors.
constexpr int kAccumulators = kVectorRegisters == 32 ? 24 : 12;
constexpr int kMaxColumns = kVectorRegisters == 32 ? 12 : 6;

struct F16 {
  using Element = uint16_t;
  static VecF get(const Element* p) { return load_half(p); }
};

struct F32 {
  using Element = float;
  static VecF get(const Element* p) { return load(p); }
};

// out[c][v] (+)= sum over i of left[i][c] * right[i][v]; `left` has `left_stride` floats from i to i+1.
template <class T, int C, int V, bool Accumulate>
inline void outer_products(const float* left, int left_stride, int left_step, const typename T::Element* right,
                           int right_stride, int count, float* out, int out_stride) {
  VecF s[C][V];
  for (int c = 0; c < C; ++c) {
    for (int v = 0; v < V; ++v) s[c][v] = Accumulate ? load(out + c * out_stride + v * kLanes) : set1(0.0f);
  }
  for (int i = 0; i < count; ++i) {
    VecF r[V];
    for (int v = 0; v < V; ++v) r[v] = T::get(right + v * kLanes);
#pragma GCC unroll 12
    for (int c = 0; c < C; ++c) {
      VecF x = set1(left[c * left_step]);
      for (int v = 0; v < V; ++v) s[c][v] = fma(x, r[v], s[c][v]);
    }
    left += left_stride;
    right += right_stride;
  }
  for (int c = 0; c < C; ++c) {
    for (int v = 0; v < V; ++v) store(out + c * out_stride + v * kLanes, s[c][v]);
  }
}

template <int C>
constexpr int vectors_for() {
  return C * 4 <= kAccumulators ? 4 : (C * 2 <= kAccumulators ? 2 : 1);
}

// The product over `width` columns of `right` (a multiple of kLanes), in the widest strips that registers allow.
template <class T, int C, bool Accumulate>
inline void product(const float* left, int left_stride, int left_step, const typename T::Element* right,
                    int right_stride, int count, float* out, int out_stride, int width) {
  constexpr int V = vectors_for<C>();
  int j = 0;
  for (; j + V * kLanes <= width; j += V * kLanes) {
    outer_products<T, C, V, Accumulate>(left, left_stride, left_step, right + j, right_stride, count, out + j,
                                        out_stride);
  }
  for (; j < width; j += kLanes) {
    outer_products<T, C, 1, Accumulate>(left, left_stride, left_step, right + j, right_stride, count, out + j,
                                        out_stride);
  }
}

// Where the columns of a tile stand, and what they have gathered so far.
struct Tile {
  float* q;       // [head_size][columns], scaled
  float* scores;  // [columns][block_size]
  float* acc;     // [columns][head_size]
  float max[kMaxColumns];
  float sum[kMaxColumns];
  int position[kMaxColumns];
};

inline int window_begin(int position, int window) {
  return window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
}

// Turns one column's scores of a page into weights, and makes room for a new maximum. Tokens outside [begin, end)
// of the page get weight 0.
inline void softmax_page(Tile& tile, int c, int begin, int end, const AttentionArgs& a) {
  const int size = a.pages.block_size, d = a.pages.head_size;
  float* s = tile.scores + c * size;
  if (begin >= end) {
    for (int t = 0; t < size; t += kLanes) store(s + t, set1(0.0f));
    return;
  }
  if (a.softcap > 0.0f) {
    VecF in = set1(1.0f / a.softcap), back = set1(a.softcap);
    for (int t = 0; t < size; t += kLanes) store(s + t, mul(back, tanh(mul(load(s + t), in))));
  }
  for (int t = 0; t < begin; ++t) s[t] = -__builtin_inff();
  for (int t = end; t < size; ++t) s[t] = -__builtin_inff();
  VecF m = load(s);
  for (int t = kLanes; t < size; t += kLanes) m = max(load(s + t), m);
  float page_max = reduce_max(m);
  if (page_max > tile.max[c]) {
    float shrink[kLanes];
    store(shrink, exp(set1(tile.max[c] - page_max)));
    tile.sum[c] *= shrink[0];
    float* acc = tile.acc + c * d;
    VecF k = set1(shrink[0]);
    for (int i = 0; i < d; i += kLanes) store(acc + i, mul(load(acc + i), k));
    tile.max[c] = page_max;
  }
  VecF shift = set1(tile.max[c]), total = set1(0.0f);
  for (int t = 0; t < size; t += kLanes) {
    VecF e = exp(sub(load(s + t), shift));
    store(s + t, e);
    total = add(total, e);
  }
  tile.sum[c] += reduce_add(total);
}

template <class T, int C>
void attend_tile(const AttentionArgs& a, Tile& tile) {
  const int size = a.pages.block_size, d = a.pages.head_size;
  int last = tile.position[0], first = window_begin(tile.position[0], a.window);
  for (int c = 0; c < C; ++c) {
    last = tile.position[c] > last ? tile.position[c] : last;
    int begin = window_begin(tile.position[c], a.window);
    first = begin < first ? begin : first;
    tile.max[c] = -1e30f;
    tile.sum[c] = 0.0f;
  }
  for (int i = 0; i < C * d; i += kLanes) store(tile.acc + i, set1(0.0f));
  for (int page = first / size; page <= last / size; ++page) {
    const uint8_t* base =
        a.pages.base + static_cast<size_t>(a.block_table[page]) * a.pages.block_bytes + a.kv_head * a.pages.head_bytes;
    const auto* k = reinterpret_cast<const typename T::Element*>(base);
    product<T, C, false>(tile.q, C, 1, k, size, d, tile.scores, size, size);
    for (int c = 0; c < C; ++c) {
      int begin = window_begin(tile.position[c], a.window) - page * size;
      int end = tile.position[c] + 1 - page * size;
      softmax_page(tile, c, begin > 0 ? begin : 0, end < size ? end : size, a);
    }
    product<T, C, true>(tile.scores, 1, size, k + static_cast<size_t>(d) * size, d, size, tile.acc, d, d);
  }
}

template <class T>
void attend_columns(const AttentionArgs& a, int columns, Tile& tile) {
  switch (columns) {
#define CAUDAL_CASE(C) \
  case C:              \
    return attend_tile<T, C>(a, tile)
    CAUDAL_CASE(1);
    CAUDAL_CASE(2);
    CAUDAL_CASE(3);
    CAUDAL_CASE(4);
    CAUDAL_CASE(5);
    CAUDAL_CASE(6);
#undef CAUDAL_CASE
    default:
      break;
  }
  if constexpr (kMaxColumns > 6) {
    switch (columns) {
      case 7:
        return attend_tile<T, 7>(a, tile);
      case 8:
        return attend_tile<T, 8>(a, tile);
      case 9:
        return attend_tile<T, 9>(a, tile);
      case 10:
        return attend_tile<T, 10>(a, tile);
      case 11:
        return attend_tile<T, 11>(a, tile);
      case 12:
        return attend_tile<T, 12>(a, tile);
      default:
        break;
    }
  }
}

// Copies the queries of columns [begin, begin + count) into the tile, transposed and scaled.
void load_queries(const AttentionArgs& a, int group, int begin, int count, Tile& tile) {
  for (int c = 0; c < count; ++c) {
    int query = (begin + c) / group, head = a.kv_head * group + (begin + c) % group;
    const float* q = a.q + query * a.q_stride + static_cast<size_t>(head) * a.pages.head_size;
    tile.position[c] = a.first_position + query;
    for (int i = 0; i < a.pages.head_size; ++i) tile.q[i * count + c] = q[i] * a.scale;
  }
}

void store_outputs(const AttentionArgs& a, int group, int begin, int count, const Tile& tile) {
  const int d = a.pages.head_size;
  for (int c = 0; c < count; ++c) {
    int query = (begin + c) / group, head = a.kv_head * group + (begin + c) % group;
    float* out = a.out + query * a.out_stride + static_cast<size_t>(head) * d;
    VecF scale = set1(1.0f / tile.sum[c]);
    for (int i = 0; i < d; i += kLanes) store(out + i, mul(load(tile.acc + c * d + i), scale));
  }
}

size_t attention_scratch_bytes(int, int, int head_size, int block_size) {
  return sizeof(float) * kMaxColumns * (2 * static_cast<size_t>(head_size) + static_cast<size_t>(block_size)) + 192;
}

void attend(const AttentionArgs& a, void* scratch) {
  const int d = a.pages.head_size, group = a.num_heads / a.pages.num_kv_heads;
  auto* f = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~static_cast<uintptr_t>(63));
  Tile tile;
  tile.acc = f;
  tile.scores = f + kMaxColumns * d;
  tile.q = tile.scores + kMaxColumns * a.pages.block_size;
  const int columns = a.num_queries * group;
  for (int begin = 0; begin < columns;) {
    int count = columns - begin < kMaxColumns ? columns - begin : kMaxColumns;
    load_queries(a, group, begin, count, tile);
    if (a.pages.is_f32) {
      attend_columns<F32>(a, count, tile);
    } else {
      attend_columns<F16>(a, count, tile);
    }
    store_outputs(a, group, begin, count, tile);
    begin += count;
  }
}

// What float16 cannot hold becomes its largest value, and NaN becomes finite: a slot's old content meets weight 0
// later, and 0 times infinity would poison another sequence.
inline VecF finite_half(VecF x) { return min(max(x, set1(-65504.0f)), set1(65504.0f)); }
inline VecF finite_float(VecF x) { return min(max(x, set1(-1e30f)), set1(1e30f)); }

void write_head(const KVPages& pages, uint8_t* base, int offset, const float* k, const float* v) {
  const int d = pages.head_size, size = pages.block_size;
  if (pages.is_f32) {
    auto* keys = reinterpret_cast<float*>(base);
    float lane[kLanes];
    for (int i = 0; i < d; i += kLanes) {
      store(lane, finite_float(load(k + i)));
      for (int j = 0; j < kLanes; ++j) keys[(i + j) * size + offset] = lane[j];
      store(keys + d * size + offset * d + i, finite_float(load(v + i)));
    }
    return;
  }
  auto* keys = reinterpret_cast<uint16_t*>(base);
  uint16_t lane[kLanes];
  for (int i = 0; i < d; i += kLanes) {
    store_half(lane, finite_half(load(k + i)));
    for (int j = 0; j < kLanes; ++j) keys[(i + j) * size + offset] = lane[j];
    store_half(keys + d * size + offset * d + i, finite_half(load(v + i)));
  }
}

void write_kv(const KVWriteArgs& a, int row_begin, int row_end) {
  for (int t = row_begin; t < row_end; ++t) {
    int block = a.slots[t] / a.pages.block_size, offset = a.slots[t] % a.pages.block_size;
    uint8_t* base = a.pages.base + static_cast<size_t>(block) * a.pages.block_bytes;
    for (int h = 0; h < a.pages.num_kv_heads; ++h, base += a.pages.head_bytes) {
      size_t column = static_cast<size_t>(h) * a.pages.head_size;
      write_head(a.pages, base, offset, a.k + t * a.k_stride + column, a.v + t * a.v_stride + column);
    }
  }
}

constexpr AttentionKernels kAttentionKernels{attention_scratch_bytes, attend, write_kv};

}  // namespace
}  // namespace caudal

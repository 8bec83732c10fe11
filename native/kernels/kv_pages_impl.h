// How a KV page is written and read: the text of attention.h's layout, once per instruction set.
#pragma once

#include "attention.h"

namespace caudal {
namespace {

struct F16 {
  using Element = uint16_t;
  static VecF get(const Element* p) { return load_half(p); }
  static const Element* keys(const uint8_t* page) { return reinterpret_cast<const Element*>(page); }
  static const Element* values(const uint8_t* page, int block_size, int head_size) {
    return keys(page) + block_size * head_size;
  }
};

struct F32 {
  using Element = float;
  static VecF get(const Element* p) { return load(p); }
  static const Element* keys(const uint8_t* page) { return reinterpret_cast<const Element*>(page); }
  static const Element* values(const uint8_t* page, int block_size, int head_size) {
    return keys(page) + block_size * head_size;
  }
};

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

}  // namespace
}  // namespace caudal

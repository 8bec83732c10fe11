// How a KV page is written and read: the text of attention.h's layout, once per instruction set.
#pragma once

#include "attention.h"

namespace caudal {
namespace {

// Where a page has what, for one type of element.
template <class E>
struct PageOf {
  using Element = E;
  static Element* keys(uint8_t* page) { return reinterpret_cast<Element*>(page); }
  static const Element* keys(const uint8_t* page) { return reinterpret_cast<const Element*>(page); }
  static Element* values(uint8_t* page, int block_size, int head_size) { return keys(page) + block_size * head_size; }
  static const Element* values(const uint8_t* page, int block_size, int head_size) {
    return keys(page) + block_size * head_size;
  }
};

// What float16 cannot hold becomes its largest value, and NaN becomes finite: a slot's old content meets weight 0
// later, and 0 times infinity would poison another sequence.
inline VecF finite_half(VecF x) { return min(max(x, set1(-65504.0f)), set1(65504.0f)); }
inline VecF finite_float(VecF x) { return min(max(x, set1(-1e30f)), set1(1e30f)); }

struct F16 : PageOf<uint16_t> {
  static constexpr bool kHasScales = false;
  static VecF get(const uint16_t* p) { return load_half(p); }
  static void put(uint16_t* p, VecF x) { store_half(p, finite_half(x)); }
};

struct F32 : PageOf<float> {
  static constexpr bool kHasScales = false;
  static VecF get(const float* p) { return load(p); }
  static void put(float* p, VecF x) { store(p, finite_float(x)); }
};

struct Int8 : PageOf<int8_t> {
  static constexpr bool kHasScales = true;
  static VecF get(const int8_t* p) { return load_int8(p); }
  static const uint16_t* key_scales(const uint8_t* page, int block_size, int head_size) {
    return reinterpret_cast<const uint16_t*>(page + 2 * block_size * head_size);
  }
  static const uint16_t* value_scales(const uint8_t* page, int block_size, int head_size) {
    return key_scales(page, block_size, head_size) + head_size / kKeyScaleDims * block_size;
  }
};

template <class T>
void write_head(const KVPages& pages, uint8_t* page, int offset, const float* k, const float* v) {
  const int d = pages.head_size, size = pages.block_size;
  auto* keys = T::keys(page);
  auto* value = T::values(page, size, d) + offset * d;
  typename T::Element lane[kLanes];
  for (int i = 0; i < d; i += kLanes) {
    T::put(lane, load(k + i));
    for (int j = 0; j < kLanes; ++j) keys[(i + j) * size + offset] = lane[j];
    T::put(value + i, load(v + i));
  }
}

// Heads are quantised in pieces of this many values: a multiple of every vector, and of a scale's dimensions.
constexpr int kPiece = 16;

inline VecF magnitude(const float* x) {
  VecF value = finite_half(load(x));
  return max(value, sub(set1(0.0f), value));
}

// Writes the scale of values up to `largest`, and returns what they are to be multiplied by.
inline float put_scale(float largest, uint16_t* scale) {
  uint16_t half[kLanes];
  float lane[kLanes];
  store_half(half, set1(largest / 127.0f));
  store(lane, load_half(half));
  *scale = half[0];
  return lane[0] > 0.0f ? 1.0f / lane[0] : 0.0f;
}

inline void put_piece(const float* x, const float* inverse, int8_t* out, int stride) {
  float lane[kPiece];
  for (int i = 0; i < kPiece; i += kLanes) {
    VecF whole = round_even(mul(finite_half(load(x + i)), load(inverse + i)));
    // The scale may have been rounded down.
    store(lane + i, max(min(whole, set1(127.0f)), set1(-127.0f)));
  }
  for (int i = 0; i < kPiece; ++i) out[i * stride] = static_cast<int8_t>(lane[i]);
}

template <>
void write_head<Int8>(const KVPages& pages, uint8_t* page, int offset, const float* k, const float* v) {
  const int d = pages.head_size, size = pages.block_size;
  auto* scales = reinterpret_cast<uint16_t*>(page + 2 * size * d) + offset;
  float inverse[kPiece], size_of[kPiece];
  VecF largest = set1(0.0f);
  for (int i = 0; i < d; i += kPiece) {
    for (int j = 0; j < kPiece; j += kLanes) {
      store(size_of + j, magnitude(k + i + j));
      largest = max(largest, magnitude(v + i + j));
    }
    for (int j = 0; j < kPiece; j += kKeyScaleDims, scales += size) {
      float most = 0.0f;
      for (int n = j; n < j + kKeyScaleDims; ++n) most = size_of[n] > most ? size_of[n] : most;
      most = put_scale(most, scales);
      for (int n = j; n < j + kKeyScaleDims; ++n) inverse[n] = most;
    }
    put_piece(k + i, inverse, Int8::keys(page) + i * size + offset, size);
  }
  const float of_values = put_scale(reduce_max(largest), scales);
  for (float& x : inverse) x = of_values;
  for (int i = 0; i < d; i += kPiece) put_piece(v + i, inverse, Int8::values(page, size, d) + offset * d + i, 1);
}

template <class T>
void write_rows(const KVWriteArgs& a, int row_begin, int row_end) {
  for (int t = row_begin; t < row_end; ++t) {
    int block = a.slots[t] / a.pages.block_size, offset = a.slots[t] % a.pages.block_size;
    uint8_t* page = a.pages.base + static_cast<size_t>(block) * a.pages.block_bytes;
    for (int h = 0; h < a.pages.num_kv_heads; ++h, page += a.pages.head_bytes) {
      size_t column = static_cast<size_t>(h) * a.pages.head_size;
      write_head<T>(a.pages, page, offset, a.k + t * a.k_stride + column, a.v + t * a.v_stride + column);
    }
  }
}

void write_kv(const KVWriteArgs& a, int row_begin, int row_end) {
  switch (a.pages.type) {
    case KVType::f16:
      return write_rows<F16>(a, row_begin, row_end);
    case KVType::f32:
      return write_rows<F32>(a, row_begin, row_end);
    case KVType::int8:
      return write_rows<Int8>(a, row_begin, row_end);
  }
}

}  // namespace
}  // namespace caudal

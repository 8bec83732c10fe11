// Text of attention.h, once per instruction set. Included after simd/vec_*.h and simd/vec_math.h.
//
// A column is one query head of one query token. Columns of a tile share each load of K and V, so the heads of a
// group and the neighbours of a prompt cost little more than one. Scores have tokens in lanes, outputs have
// dimensions in lanes; both are sums of products in an order that no tile, page or vector width changes.
#pragma once

#include "attention.h"
#include "kv_pages_impl.h"

namespace caudal {
namespace {

// Accumulators that fit the registers beside the operands: columns x vectors.
constexpr int kAccumulators = kVectorRegisters == 32 ? 24 : 12;
constexpr int kMaxColumns = kVectorRegisters == 32 ? 12 : 6;
// Tokens of a part are looked at in groups of this many, whatever the width of a vector.
constexpr int kTokenGroup = 16;
constexpr int kGroupVectors = kTokenGroup / kLanes;

// What the columns of a tile have gathered, from one part or from all parts so far. A column that saw nothing has sum
// 0, and its acc means nothing.
struct Gathered {
  float* acc;  // [columns][head_size]
  float max[kMaxColumns];
  float sum[kMaxColumns];
};

// Tokens of a sequence or of a part, counted from its first.
struct TokenRange {
  int begin;
  int end;
};

// Columns, what they see of their sequence and what they gather.
struct Tile {
  int first_column;  // of the call
  float* q;          // [head_size][columns], scaled
  float* scores;     // [columns][kPartTokens]; later the weights
  TokenRange seen[kMaxColumns];
  Gathered part;
  Gathered total;
};

// Asks for what is read `ahead` bytes after `row`, a strip of `bytes`.
inline void prefetch_strip(const void* row, ptrdiff_t ahead, int bytes) {
  const uint8_t* p = static_cast<const uint8_t*>(row) + ahead;
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

// s[c][v] += sum over i of left[i][c] * right[i][v]; `left` has `left_stride` floats from i to i+1. What there is
// less of, columns or vectors, stays in registers. `ahead` is how far from `right` in memory the page is that will be
// read next: pages lie anywhere, and the processor does not guess where. If Scaled, right[i][v] is times scale[v].
template <class T, int C, int V, bool Scaled = false>
inline __attribute__((always_inline)) void accumulate(VecF (&s)[C][V], const float* left, int left_stride,
                                                      int left_step, const typename T::Element* right, int right_stride,
                                                      int count, ptrdiff_t ahead, const VecF* scale = nullptr) {
  for (int i = 0; i < count; ++i) {
    prefetch_strip(right, ahead, V * kLanes * static_cast<int>(sizeof(typename T::Element)));
    if constexpr (C < V) {
      VecF x[C];
#pragma GCC unroll 12
      for (int c = 0; c < C; ++c) x[c] = set1(left[c * left_step]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        VecF r = T::get(right + v * kLanes);
        if constexpr (Scaled) r = mul(r, scale[v]);
#pragma GCC unroll 12
        for (int c = 0; c < C; ++c) s[c][v] = fma(x[c], r, s[c][v]);
      }
    } else {
      VecF r[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        r[v] = T::get(right + v * kLanes);
        if constexpr (Scaled) r[v] = mul(r[v], scale[v]);
      }
#pragma GCC unroll 12
      for (int c = 0; c < C; ++c) {
        VecF x = set1(left[c * left_step]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) s[c][v] = fma(x, r[v], s[c][v]);
      }
    }
    left += left_stride;
    right += right_stride;
  }
}

template <int C, int V>
inline void store_strip(const VecF (&s)[C][V], float* out, int out_stride) {
#pragma GCC unroll 12
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(out + c * out_stride + v * kLanes, s[c][v]);
  }
}

// The pages of a part that its tile needs.
struct PartPages {
  const uint8_t* page[kPartTokens / kTokenGroup];
  TokenRange tokens;    // that some column sees
  TokenRange groups;    // the same in whole groups
  const uint8_t* next;  // the first page of what comes after this part, by a guess
  int block_size;
  int head_size;

  int first() const { return tokens.begin / block_size; }
  int last() const { return (tokens.end - 1) / block_size; }
  int begin_of(int index, const TokenRange& range) const {
    return range.begin > index * block_size ? range.begin : index * block_size;
  }
  int end_of(int index, const TokenRange& range) const {
    return range.end < (index + 1) * block_size ? range.end : (index + 1) * block_size;
  }
};

template <class T, int C, int V>
inline void score_strip(const Tile& tile, const PartPages& pages, int index, int token) {
  VecF s[C][V];
  for (auto& column : s) {
    for (VecF& x : column) x = set1(0.0f);
  }
  const auto* k = T::keys(pages.page[index]) + (token - index * pages.block_size);
  const uint8_t* page = pages.page[index];
  const uint8_t* ahead =
      index < pages.last()
          ? pages.page[index + 1]
          : reinterpret_cast<const uint8_t*>(T::values(pages.page[pages.first()], pages.block_size, pages.head_size));
  if constexpr (T::kHasScales) {
    const auto* scales = T::key_scales(page, pages.block_size, pages.head_size) + (token - index * pages.block_size);
    const ptrdiff_t to_next = index < pages.last() ? ahead - page : 0;
    prefetch_strip(T::value_scales(page, pages.block_size, pages.head_size), to_next, 1);
    for (int i = 0; i < pages.head_size; i += kKeyScaleDims) {
      prefetch_strip(scales + i / kKeyScaleDims * pages.block_size, to_next, 1);
      VecF scale[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) scale[v] = load_half(scales + i / kKeyScaleDims * pages.block_size + v * kLanes);
      accumulate<T, C, V, true>(s, tile.q + i * C, C, 1, k + i * pages.block_size, pages.block_size, kKeyScaleDims,
                                ahead - page, scale);
    }
  } else {
    accumulate<T, C, V>(s, tile.q, C, 1, k, pages.block_size, pages.head_size, ahead - page);
  }
  store_strip<C, V>(s, tile.scores + token, kPartTokens);
}

template <class T, int C, int V>
inline void value_strip(const Tile& tile, const PartPages& pages, float* out, int dim) {
  VecF s[C][V];
  for (auto& column : s) {
    for (VecF& x : column) x = set1(0.0f);
  }
  for (int index = pages.first(); index <= pages.last(); ++index) {
    const int begin = pages.begin_of(index, pages.tokens), end = pages.end_of(index, pages.tokens);
    const auto* v = T::values(pages.page[index], pages.block_size, pages.head_size) +
                    (begin - index * pages.block_size) * pages.head_size + dim;
    const uint8_t* page = pages.page[index];
    const uint8_t* ahead = index < pages.last() ? pages.page[index + 1] : pages.next;
    accumulate<T, C, V>(s, tile.scores + begin, 1, kPartTokens, v, pages.head_size, end - begin, ahead - page);
  }
  store_strip<C, V>(s, out + dim, pages.head_size);
}

// Vectors in a strip of C columns: as many as registers allow, and few enough that strips of `elements` come out even.
template <int C>
constexpr int strip_vectors(int elements) {
  int vectors = C * 4 <= kAccumulators ? 4 : (C * 2 <= kAccumulators ? 2 : 1);
  while (vectors > 1 && vectors * kLanes > elements) vectors /= 2;
  return vectors;
}

template <class T, int C>
inline void score_page(const Tile& tile, const PartPages& pages, int index) {
  constexpr int V = strip_vectors<C>(2 * kTokenGroup);  // pages have one group or two
  int token = pages.begin_of(index, pages.groups);
  const int end = pages.end_of(index, pages.groups);
  for (; token + V * kLanes <= end; token += V * kLanes) score_strip<T, C, V>(tile, pages, index, token);
  for (; token < end; token += kLanes) score_strip<T, C, 1>(tile, pages, index, token);
}

// Multiplies the weights of tokens by the scales of their values.
template <class T>
inline void scale_weights(const Tile& tile, const PartPages& pages, int columns) {
  for (int index = pages.first(); index <= pages.last(); ++index) {
    const auto* scales = T::value_scales(pages.page[index], pages.block_size, pages.head_size);
    for (int t = pages.begin_of(index, pages.groups); t < pages.end_of(index, pages.groups); t += kLanes) {
      VecF scale = load_half(scales + (t - index * pages.block_size));
      for (int c = 0; c < columns; ++c) {
        float* weights = tile.scores + c * kPartTokens + t;
        store(weights, mul(load(weights), scale));
      }
    }
  }
}

template <class T, int C>
inline void weigh_values(const Tile& tile, const PartPages& pages, float* out) {
  constexpr int V = strip_vectors<C>(4 * kLanes);
  int dim = 0;
  for (; dim + V * kLanes <= pages.head_size; dim += V * kLanes) value_strip<T, C, V>(tile, pages, out, dim);
  for (; dim < pages.head_size; dim += kLanes) value_strip<T, C, 1>(tile, pages, out, dim);
}

// What a query sees of its sequence: always itself, at least.
inline TokenRange seen_from(int position, int window, int context_len) {
  const int begin = window > 0 && position >= window ? position - window + 1 : 0;
  if (context_len == 0) return {begin, position + 1};
  return {begin, window > 0 && window < context_len - position ? position + window : context_len};
}

// The least range that holds what each column sees.
inline TokenRange seen_by_any(const Tile& tile, int columns) {
  TokenRange any = tile.seen[0];
  for (int c = 1; c < columns; ++c) {
    any.begin = tile.seen[c].begin < any.begin ? tile.seen[c].begin : any.begin;
    any.end = tile.seen[c].end > any.end ? tile.seen[c].end : any.end;
  }
  return any;
}

// What of a range lies in a part; empty ranges have begin >= end.
inline TokenRange within_part(const TokenRange& seen, int part) {
  const int begin = seen.begin - part * kPartTokens, end = seen.end - part * kPartTokens;
  return {begin > 0 ? begin : 0, end < kPartTokens ? end : kPartTokens};
}

inline void fill(float* s, int begin, int end, float x) {
  for (int t = begin; t < end; ++t) s[t] = x;
}

// Sums a group's lanes in the same order on every instruction set.
inline float sum_of_group(const VecF (&total)[kGroupVectors]) {
  float lane[kTokenGroup];
  for (int j = 0; j < kGroupVectors; ++j) store(lane + j * kLanes, total[j]);
  for (int half = kTokenGroup / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
  }
  return lane[0];
}

// Turns a column's scores of the groups of a part into weights; tokens that it does not see get 0.
inline void softmax(float* s, const TokenRange& seen, const TokenRange& groups, float softcap, float& column_max,
                    float& column_sum) {
  if (seen.begin >= seen.end) {
    fill(s, groups.begin, groups.end, 0.0f);
    column_sum = 0.0f;
    return;
  }
  const int begin = seen.begin / kTokenGroup * kTokenGroup;
  const int end = (seen.end + kTokenGroup - 1) / kTokenGroup * kTokenGroup;
  fill(s, groups.begin, begin, 0.0f);
  fill(s, end, groups.end, 0.0f);
  if (softcap > 0.0f) {
    VecF in = set1(1.0f / softcap), back = set1(softcap);
    for (int t = begin; t < end; t += kLanes) store(s + t, mul(back, tanh(mul(load(s + t), in))));
  }
  fill(s, begin, seen.begin, -__builtin_inff());
  fill(s, seen.end, end, -__builtin_inff());
  VecF m = load(s + begin);
  for (int t = begin + kLanes; t < end; t += kLanes) m = max(load(s + t), m);
  column_max = reduce_max(m);
  VecF shift = set1(column_max), total[kGroupVectors];
  for (VecF& x : total) x = set1(0.0f);
  for (int t = begin; t < end; t += kTokenGroup) {
    for (int j = 0; j < kGroupVectors; ++j) {
      VecF e = exp(sub(load(s + t + j * kLanes), shift));
      store(s + t + j * kLanes, e);
      total[j] = add(total[j], e);
    }
  }
  column_sum = sum_of_group(total);
}

// Adds a later part's result to that of the parts before it.
inline void merge_part(float* acc, float& max, float& sum, const float* part_acc, float part_max, float part_sum,
                       int head_size) {
  if (part_sum == 0.0f) return;
  if (sum == 0.0f) {
    for (int i = 0; i < head_size; i += kLanes) store(acc + i, load(part_acc + i));
    max = part_max;
    sum = part_sum;
    return;
  }
  const float top = part_max > max ? part_max : max;
  VecF keep = exp(set1(max - top)), take = exp(set1(part_max - top));
  for (int i = 0; i < head_size; i += kLanes) {
    store(acc + i, fma(load(part_acc + i), take, mul(load(acc + i), keep)));
  }
  float lane[kLanes];
  store(lane, fma(set1(part_sum), take, mul(set1(sum), keep)));
  sum = lane[0];
  max = top;
}

template <class T, int C>
void attend_part(const AttentionArgs& a, Tile& tile, int part, Gathered& out) {
  TokenRange seen[C];
  PartPages pages{};
  pages.block_size = a.pages.block_size;
  pages.head_size = a.pages.head_size;
  pages.tokens = {kPartTokens, 0};
  for (int c = 0; c < C; ++c) {
    seen[c] = within_part(tile.seen[c], part);
    out.sum[c] = 0.0f;
    if (seen[c].begin >= seen[c].end) continue;
    if (seen[c].begin < pages.tokens.begin) pages.tokens.begin = seen[c].begin;
    if (seen[c].end > pages.tokens.end) pages.tokens.end = seen[c].end;
  }
  if (pages.tokens.begin >= pages.tokens.end) return;
  pages.groups.begin = pages.tokens.begin / kTokenGroup * kTokenGroup;
  pages.groups.end = (pages.tokens.end + kTokenGroup - 1) / kTokenGroup * kTokenGroup;
  const int32_t* table = a.block_table + part * (kPartTokens / pages.block_size);
  for (int i = pages.first(); i <= pages.last(); ++i) {
    pages.page[i] = a.pages.base + static_cast<size_t>(table[i]) * a.pages.block_bytes + a.kv_head * a.pages.head_bytes;
  }
  pages.next = pages.page[pages.first()] + a.pages.head_bytes;
  for (int i = pages.first(); i <= pages.last(); ++i) score_page<T, C>(tile, pages, i);
  for (int c = 0; c < C; ++c) {
    softmax(tile.scores + c * kPartTokens, seen[c], pages.groups, a.softcap, out.max[c], out.sum[c]);
  }
  if constexpr (T::kHasScales) scale_weights<T>(tile, pages, C);
  weigh_values<T, C>(tile, pages, out.acc);
}

void store_part(const AttentionArgs& a, const Tile& tile, int columns, int part) {
  const int d = a.pages.head_size, group = a.num_heads / a.pages.num_kv_heads;
  for (int c = 0; c < columns; ++c) {
    const int query = (tile.first_column + c) / group, head = a.kv_head * group + (tile.first_column + c) % group;
    float* slot = a.results.data + static_cast<size_t>(query * a.results.num_parts + part) * a.results.slot;
    slot[a.num_heads * (d + 1) + head] = tile.part.sum[c];
    if (tile.part.sum[c] == 0.0f) continue;
    slot[a.num_heads * d + head] = tile.part.max[c];
    for (int i = 0; i < d; i += kLanes) store(slot + head * d + i, load(tile.part.acc + c * d + i));
  }
}

void store_outputs(const AttentionArgs& a, const Tile& tile, int columns) {
  const int d = a.pages.head_size, group = a.num_heads / a.pages.num_kv_heads;
  for (int c = 0; c < columns; ++c) {
    const int query = (tile.first_column + c) / group, head = a.kv_head * group + (tile.first_column + c) % group;
    float* out = a.out + query * a.out_stride + static_cast<size_t>(head) * d;
    VecF scale = set1(1.0f / tile.total.sum[c]);
    for (int i = 0; i < d; i += kLanes) store(out + i, mul(load(tile.total.acc + c * d + i), scale));
  }
}

template <class T, int C>
void attend_tile(const AttentionArgs& a, Tile& tile) {
  if (a.results.data) {
    for (int part = a.part_begin; part < a.part_end; ++part) {
      attend_part<T, C>(a, tile, part, tile.part);
      store_part(a, tile, C, part);
    }
    return;
  }
  const TokenRange any = seen_by_any(tile, C);
  int part = any.begin / kPartTokens;
  attend_part<T, C>(a, tile, part, tile.total);
  for (const int last = (any.end - 1) / kPartTokens; ++part <= last;) {
    attend_part<T, C>(a, tile, part, tile.part);
    for (int c = 0; c < C; ++c) {
      merge_part(tile.total.acc + c * a.pages.head_size, tile.total.max[c], tile.total.sum[c],
                 tile.part.acc + c * a.pages.head_size, tile.part.max[c], tile.part.sum[c], a.pages.head_size);
    }
  }
  store_outputs(a, tile, C);
}

template <class T, int C = kMaxColumns>
void attend_columns(const AttentionArgs& a, int columns, Tile& tile) {
  if constexpr (C > 1) {
    if (columns < C) return attend_columns<T, C - 1>(a, columns, tile);
  }
  attend_tile<T, C>(a, tile);
}

// Copies the queries of the next `count` columns into the tile, transposed and scaled.
void load_queries(const AttentionArgs& a, int count, Tile& tile) {
  const int group = a.num_heads / a.pages.num_kv_heads;
  for (int c = 0; c < count; ++c) {
    int query = (tile.first_column + c) / group, head = a.kv_head * group + (tile.first_column + c) % group;
    const float* q = a.q + query * a.q_stride + static_cast<size_t>(head) * a.pages.head_size;
    tile.seen[c] = seen_from(a.first_position + query, a.window, a.context_len);
    for (int i = 0; i < a.pages.head_size; ++i) tile.q[i * count + c] = q[i] * a.scale;
  }
}

size_t attention_scratch_bytes(int head_size) {
  return sizeof(float) * kMaxColumns * (3 * static_cast<size_t>(head_size) + kPartTokens) + 64;
}

void attend(const AttentionArgs& a, void* scratch) {
  const int columns = a.num_queries * (a.num_heads / a.pages.num_kv_heads);
  Tile tile;
  tile.scores = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~static_cast<uintptr_t>(63));
  tile.total.acc = tile.scores + kMaxColumns * kPartTokens;
  tile.part.acc = tile.total.acc + kMaxColumns * a.pages.head_size;
  tile.q = tile.part.acc + kMaxColumns * a.pages.head_size;
  for (tile.first_column = 0; tile.first_column < columns;) {
    const int left = columns - tile.first_column, count = left < kMaxColumns ? left : kMaxColumns;
    load_queries(a, count, tile);
    switch (a.pages.type) {
      case KVType::f16:
        attend_columns<F16>(a, count, tile);
        break;
      case KVType::f32:
        attend_columns<F32>(a, count, tile);
        break;
      case KVType::int8:
        attend_columns<Int8>(a, count, tile);
        break;
    }
    tile.first_column += count;
  }
}

void merge_parts(const MergeArgs& a) {
  const int d = a.head_size;
  for (int head = 0; head < a.num_heads; ++head) {
    float* out = a.out + static_cast<size_t>(head) * d;
    float max = 0.0f, sum = 0.0f;
    for (int part = 0; part < a.results.num_parts; ++part) {
      const float* slot = a.results.data + static_cast<size_t>(part) * a.results.slot;
      merge_part(out, max, sum, slot + head * d, slot[a.num_heads * d + head], slot[a.num_heads * (d + 1) + head], d);
    }
    VecF scale = set1(1.0f / sum);
    for (int i = 0; i < d; i += kLanes) store(out + i, mul(load(out + i), scale));
  }
}

constexpr AttentionKernels kAttentionKernels{attention_scratch_bytes, attend, merge_parts, write_kv};

}  // namespace
}  // namespace caudal

// Paged attention over a KV cache. The contract; attention_impl.h is the text.
//
// A KV page holds one block of tokens of one layer and one KV head: keys as [key_size][block_size]
// (token-minor), then values as [block_size][value_size]. Elements are float16, or float32 in exact
// mode. Unused slots hold zeros or old finite values, never NaN.
//
// Determinism: a query's result depends on the query, its own keys and values and its position, and on
// nothing else: pages are visited in order of position, and what lies outside the window is skipped by a
// rule of the position alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace caudal {

struct KVPages {
  uint8_t* base;       // page of block 0, head 0
  size_t block_bytes;  // from one block to the next
  size_t head_bytes;   // from one KV head to the next, inside a block
  int num_kv_heads;
  int head_size;
  int block_size;
  bool is_f32;
};

struct AttentionArgs {
  KVPages pages;
  const int32_t* block_table;  // of this row
  const float* q;              // [num_queries][q_stride], the row's first query of this call
  float* out;                  // [num_queries][out_stride]
  size_t q_stride;
  size_t out_stride;
  int num_heads;
  int first_position;  // position of the first query
  int num_queries;
  int kv_head;  // the KV head to attend with; query heads of its group are computed
  float scale;
  float softcap;  // 0 is off
  int window;     // 0 is unlimited
};

struct KVWriteArgs {
  KVPages pages;
  const float* k;  // [T][k_stride]
  const float* v;
  size_t k_stride;
  size_t v_stride;
  const int32_t* slots;  // [T]
};

struct AttentionKernels {
  size_t (*scratch_bytes)(int num_heads, int num_kv_heads, int head_size, int block_size);
  void (*attend)(const AttentionArgs& args, void* scratch);
  void (*write_kv)(const KVWriteArgs& args, int row_begin, int row_end);
};

}  // namespace caudal

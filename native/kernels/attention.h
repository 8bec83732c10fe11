// Paged attention over a KV cache. The contract; attention_impl.h is the text.
//
// A KV page holds one block of tokens of one layer and one KV head: keys as [key_size][block_size]
// (token-minor), then values as [block_size][value_size]. Elements are float16, float32 or int8. A page
// of int8 goes on with float16 scales: of the keys [key_size / kKeyScaleDims][block_size], and of the values
// [block_size]. An element is its int8 times its scale, which is the largest magnitude over 127 among those
// that share it: kKeyScaleDims dimensions of a token's key, or a token's whole value. Keys need it finer:
// some models have a few dimensions that are far larger than the others. Unused slots hold zeros or old
// finite values, never NaN.
//
// A query attends to its context in parts of kPartTokens positions: each part has a softmax of its own
// (largest score, sum of weights, weighted sum of values), and parts are merged in order of position.
//
// Determinism: a query's result depends on the query, its own keys and values and its position, and on
// nothing else: parts begin at fixed positions, what a query does not see is skipped by a rule of its position
// and its sequence alone, and whether one task attends to all parts or several share them changes no bit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace caudal {

// A multiple of every block size. Small enough that a few parts can be shared out evenly.
constexpr int kPartTokens = 256;
// Divides every head size.
constexpr int kKeyScaleDims = 8;

enum class KVType { f16, f32, int8 };

struct KVPages {
  uint8_t* base;       // page of block 0, head 0
  size_t block_bytes;  // from one block to the next
  size_t head_bytes;   // from one KV head to the next, inside a block
  int num_kv_heads;
  int head_size;
  int block_size;
  KVType type;
};

// Where results of single parts wait to be merged. The slot of query i and part p begins `slot` floats after that of
// part p - 1, and num_parts slots after that of query i - 1. It holds [num_heads][head_size] weighted sums of values,
// then [num_heads] largest scores, then [num_heads] sums of weights; a sum of 0 says that the query sees nothing of
// the part, and then the rest is not written.
struct PartResults {
  float* data;
  size_t slot;
  int num_parts;
};

struct AttentionArgs {
  KVPages pages;
  const int32_t* block_table;  // of this row
  const float* q;              // [num_queries][q_stride], the row's first query of this call
  float* out;                  // [num_queries][out_stride]
  size_t q_stride;
  size_t out_stride;
  int num_heads;
  int first_position;  // of the first query; the others follow it
  int num_queries;
  int context_len;  // 0: a query sees itself and what is before it; else both ways, a sequence of so many tokens
  int kv_head;      // the KV head to attend with; query heads of its group are computed
  float scale;
  float softcap;        // 0 is off
  int window;           // a query sees tokens that are less than this away; 0 is unlimited
  PartResults results;  // without data: `out` gets what all parts give
  int part_begin;       // with data: the parts to attend to
  int part_end;
};

struct MergeArgs {
  PartResults results;  // of one query
  int num_heads;
  int head_size;
  float* out;  // [num_heads][head_size]
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
  size_t (*scratch_bytes)(int head_size);
  void (*attend)(const AttentionArgs& args, void* scratch);
  void (*merge)(const MergeArgs& args);
  void (*write_kv)(const KVWriteArgs& args, int row_begin, int row_end);
};

}  // namespace caudal

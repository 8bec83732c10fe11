// A step program is a list of phases, each a step of the model for all rows at hand.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/table.h"

namespace caudal {

// What the rows of a value are: tokens of the step, or rows of logits.
enum class Domain { tokens, logits };

constexpr int round_up_16(int n) { return (n + 15) / 16 * 16; }

// A matrix of activations, [rows of the domain][width], each row padded with zeros to a multiple of 16.
struct Value {
  int width = 0;
  int stride = 0;  // width rounded up to 16, or more
  Domain domain = Domain::tokens;
  float* data = nullptr;
  int first_phase = -1;
  int last_phase = -1;

  float* row(int i) const { return data + static_cast<size_t>(i) * static_cast<size_t>(stride); }
};

// Some queries of one sequence and the parts of its context that they attend to: the unit of attention, with a KV head.
struct QueryChunk {
  int row;          // of the batch
  int first_token;  // index among the step's tokens
  int num_queries;
  int part_begin;
  int part_end;
  int num_parts;     // of the whole context
  int first_result;  // index of the chunk's first PartResults slot, or -1 where one task attends to all parts
};

// A token whose attention was shared by several tasks.
struct PartMerge {
  int token;
  int num_parts;
  int first_result;
};

// One step's input. Arrays belong to the caller and live until the step ends.
struct Step {
  uint64_t number = 0;  // of the program's runs
  int num_tokens = 0;
  int num_rows = 0;
  int num_logits = 0;
  const int32_t* token_ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* query_starts = nullptr;
  const int32_t* context_lens = nullptr;
  const int32_t* logit_rows = nullptr;
  std::vector<const int32_t*> block_tables;  // per KV group, [num_rows][table_widths[g]]
  std::vector<int> table_widths;
  std::vector<const int32_t*> slots;  // per KV group, [num_tokens]
  bool is_causal = true;              // false: queries see their sequence both ways
  std::vector<QueryChunk> chunks;
  std::vector<PartMerge> merges;  // in order of token

  // The last position that a chunk of queries, which begins with this token, sees.
  int last_seen(int row, int first_token, int num_queries) const {
    return is_causal ? positions[first_token] + num_queries - 1 : context_lens[row] - 1;
  }
  int rows_of(Domain domain) const { return domain == Domain::tokens ? num_tokens : num_logits; }
};

// What one thread works with, from step to step; on a cache line of its own.
struct alignas(64) ThreadScratch {
  uint8_t* matmul = nullptr;
  uint8_t* attention = nullptr;
  // What scratch of the products was begun for: an operand, which is the phase that packs it, of a step.
  const void* operand = nullptr;
  uint64_t step = 0;
};

class Phase {
 public:
  virtual ~Phase() = default;

  // True: `work` is given ranges of the domain's rows, and phases of one domain that follow each other are done for a
  // range before another is begun. False: `work` is given ranges of tasks, all done before the next phase begins.
  virtual bool by_rows() const = 0;
  virtual Domain domain() const { return Domain::tokens; }
  virtual int num_tasks(const Step&) const { return 0; }
  virtual void work(const Step& step, int begin, int end, ThreadScratch& scratch) const = 0;
};

}  // namespace caudal

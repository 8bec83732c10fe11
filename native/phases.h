// The phases that a decoder's step is made of. Each says what it reads and writes by plain pointers to Values.
#pragma once

#include <vector>

#include "kv_cache.h"
#include "phase.h"

namespace caudal {

// Which row of a table a token gets.
enum class EmbeddingSource { tokens, positions, first_row };

struct EmbeddingPhase final : Phase {
  const KernelTable* kernels;
  PackedView matrix;
  EmbeddingSource source;
  float scale;
  const Value* out;
  bool by_rows() const override { return true; }
  void work(const Step&, int begin, int end, ThreadScratch&) const override;

 private:
  int index_of(const Step& step, int token) const;
};

struct LayerNormPhase final : Phase {
  const KernelTable* kernels;
  const Value* x;
  const Value* out;
  const float* weight;
  const float* bias;
  float eps;
  bool by_rows() const override { return true; }
  Domain domain() const override { return x->domain; }
  void work(const Step&, int begin, int end, ThreadScratch&) const override;
};

struct ActivatePhase final : Phase {
  const KernelTable* kernels;
  const Value* x;
  const Value* out;
  GluActivation activation;
  bool by_rows() const override { return true; }
  Domain domain() const override { return x->domain; }
  void work(const Step&, int begin, int end, ThreadScratch&) const override;
};

struct RmsNormPhase final : Phase {
  const KernelTable* kernels;
  const Value* x;
  const Value* out;
  const float* weight;
  int group;
  float eps;
  bool by_rows() const override { return true; }
  Domain domain() const override { return x->domain; }
  void work(const Step&, int begin, int end, ThreadScratch&) const override;
};

// Writes cos and sin of every token's angles: [cos, padded to 16][sin].
struct RopeAnglesPhase final : Phase {
  std::vector<double> inv_freq;
  float attention_factor;
  const Value* out;
  bool by_rows() const override { return true; }
  void work(const Step&, int begin, int end, ThreadScratch&) const override;
};

struct RopePhase final : Phase {
  const KernelTable* kernels;
  const Value* x;
  const Value* out;
  const Value* angles;
  int head_size;
  int rotary;
  bool interleaved;
  bool by_rows() const override { return true; }
  void work(const Step&, int begin, int end, ThreadScratch&) const override;
};

// Packs the left operand of the products that follow.
struct PackPhase final : Phase {
  const KernelTable* kernels;
  const Value* x;
  ActivationKind kind;
  uint8_t* const* buffer;
  bool by_rows() const override { return true; }
  Domain domain() const override { return x->domain; }
  void work(const Step&, int begin, int end, ThreadScratch&) const override;
  ActivationView view(const Step& step) const { return {kind, step.rows_of(x->domain), x->width, *buffer}; }
};

struct LinearPart {
  PackedView matrix;
  const float* bias;
  const PackPhase* operand;
  const Value* out;
  int panels_per_task;
  int first_task;
};

// Where a row of logits keeps the maxima of its blocks, which whoever writes the last of the logits finds on the way:
// they are in a near cache then.
struct BlockMaxima {
  const Value* logits = nullptr;  // null: nobody wants them
  int at = 0;                     // floats from the beginning of a row

  float* of(int row) const { return logits->row(row) + at; }
};

struct LinearPhase final : Phase {
  const KernelTable* kernels;
  Domain rows;
  int total_tasks;
  std::vector<LinearPart> parts;
  BlockMaxima maxima;  // only where there is one part, of whole blocks a task
  bool by_rows() const override { return false; }
  Domain domain() const override { return rows; }
  int num_tasks(const Step&) const override { return total_tasks; }
  void work(const Step&, int begin, int end, ThreadScratch& scratch) const override;
};

struct KVWritePhase final : Phase {
  const KernelTable* kernels;
  const Value* k;
  const Value* v;
  KVPages pages;
  int group;
  bool by_rows() const override { return true; }
  void work(const Step&, int begin, int end, ThreadScratch&) const override;
};

// Memory for the results of single parts, shared by all layers.
struct PartResultsBuffer {
  float* data = nullptr;
  size_t slot = 0;  // floats
  size_t num_slots = 0;

  PartResults at(int index, int num_parts) const { return {data + static_cast<size_t>(index) * slot, slot, num_parts}; }
};

struct AttentionPhase final : Phase {
  const KernelTable* kernels;
  const PartResultsBuffer* results;
  const Value* q;
  const Value* out;
  KVPages pages;
  int group;
  int num_heads;
  float scale;
  float softcap;
  int window;
  bool by_rows() const override { return false; }
  int num_tasks(const Step& step) const override { return static_cast<int>(step.chunks.size()) * pages.num_kv_heads; }
  void work(const Step&, int begin, int end, ThreadScratch& scratch) const override;
};

// Puts together what tasks that shared a token's context have found.
struct MergePartsPhase final : Phase {
  const KernelTable* kernels;
  const PartResultsBuffer* results;
  const Value* out;
  int num_heads;
  int head_size;
  bool by_rows() const override { return true; }
  void work(const Step&, int begin, int end, ThreadScratch&) const override;
};

struct GluPhase final : Phase {
  const KernelTable* kernels;
  const Value* gate;
  const Value* up;
  const Value* out;
  GluActivation activation;
  bool by_rows() const override { return true; }
  Domain domain() const override { return gate->domain; }
  void work(const Step&, int begin, int end, ThreadScratch&) const override;
};

struct AddPhase final : Phase {
  const KernelTable* kernels;
  const Value* x;
  const Value* y;
  const Value* out;
  bool by_rows() const override { return true; }
  Domain domain() const override { return x->domain; }
  void work(const Step&, int begin, int end, ThreadScratch&) const override;
};

struct SoftcapPhase final : Phase {
  const KernelTable* kernels;
  const Value* x;
  const Value* out;
  float cap;
  BlockMaxima maxima;
  bool by_rows() const override { return true; }
  Domain domain() const override { return x->domain; }
  void work(const Step&, int begin, int end, ThreadScratch&) const override;
};

// Gathers the rows whose logits are wanted; from here on rows are logits.
struct LogitRowsPhase final : Phase {
  const Value* x;
  const Value* out;
  bool by_rows() const override { return true; }
  Domain domain() const override { return Domain::logits; }
  void work(const Step&, int begin, int end, ThreadScratch&) const override;
};

// The mean of every sequence's rows, summed in order in double precision; from here on rows are sequences.
struct SequenceMeansPhase final : Phase {
  const Value* x;
  const Value* out;
  bool by_rows() const override { return true; }
  Domain domain() const override { return Domain::logits; }
  void work(const Step&, int begin, int end, ThreadScratch&) const override;
};

}  // namespace caudal

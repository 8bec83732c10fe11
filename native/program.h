// A step program: a model's forward pass recorded once as phases, run every step by a pool of threads. Phases that work
// row by row are done one after another without a wait; such chains, and phases made of tasks, are the pool's stages.
//
// Building methods mirror the backend's operations: they take and return indices of values. finish() lays the values
// out in memory, sharing it between values that are never alive at once.
#pragma once

#include <memory>
#include <vector>

#include "kv_cache.h"
#include "phases.h"
#include "thread_pool.h"

namespace caudal {

struct RopeTable {
  std::vector<double> inv_freq;
  int rotary;
  bool interleaved;
  float attention_factor;
};

struct AttentionShape {
  int layer;
  int num_heads;
  float scale;
  float softcap;  // 0 is off
  int window;     // tokens less than this away are seen; 0 is unlimited
  bool is_causal;
};

class Program {
 public:
  // `exact` multiplies float32 activations instead of int8 ones. The kernels, matrices and cache outlive the program.
  Program(const KernelTable& kernels, ThreadPool& pool, const KVCache& cache, int max_tokens, bool exact);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int embedding(const PackedView& matrix, EmbeddingSource source, float scale);
  std::vector<int> linear(const std::vector<PackedView>& matrices, const std::vector<const float*>& biases, int x);
  int rms_norm(int x, const float* weight, int group, float eps);
  int layer_norm(int x, const float* weight, const float* bias, float eps);
  int rope(int x, const RopeTable* table, int head_size);
  int attention(int q, int k, int v, const AttentionShape& shape);
  int glu(int gate, int up, GluActivation activation);
  int activate(int x, GluActivation activation);
  int add(int x, int y);
  int softcap(int x, float cap);
  int logit_rows(int x);
  int sequence_means(int x);
  void finish(int logits);

  // The matrix [num_logits][logits_stride], valid until the next run. The step must have passed check().
  const float* run(Step& step);
  // Throws std::invalid_argument if a step would read or write outside its buffers.
  void check(const Step& step) const;

  int logits_width() const { return value(logits_).width; }
  int logits_stride() const { return value(logits_).stride; }
  // Where a row of logits has the maxima of its blocks of kBlockLogits, in floats from its beginning; 0: nowhere.
  int maxima_at() const { return maxima_at_; }
  int max_tokens() const { return max_tokens_; }
  size_t buffer_bytes() const;
  int width(int index) const { return value(index).width; }

 private:
  static constexpr int kNumKinds = 3;

  // Phases that need no wait between them: one that has tasks, or a chain of them that work by rows.
  struct Stage {
    size_t begin;
    size_t end;
    int row_elems;  // that its phases write for a row
  };
  class StepJob;

  Value& value(int index) const { return *values_.at(static_cast<size_t>(index)); }
  int make_value(int width, Domain domain);
  template <class P>
  P& append(std::vector<int> reads, std::vector<int> writes);
  const PackPhase* pack(int x, ActivationKind kind);
  void keep_block_maxima();
  void find_stages();
  void place_values();
  void place_part_results();
  void place_scratch();
  void check_pages(const Step& step, int group, int window) const;
  void expect_width(int index, int width, const char* what) const;

  const KernelTable& kernels_;
  ThreadPool& pool_;
  const KVCache& cache_;
  int max_tokens_;
  bool exact_;
  int logits_ = -1;
  int maxima_at_ = 0;
  int vocabulary_ = 0;
  int num_positions_ = 0;  // that a table has rows for; 0: no table of positions
  bool is_causal_ = true;
  bool has_means_ = false;
  std::vector<std::unique_ptr<Value>> values_;
  std::vector<std::unique_ptr<Phase>> phases_;
  std::vector<int> phase_elems_;  // that a phase writes for a row
  std::vector<Stage> stages_;
  std::vector<std::pair<const RopeTable*, int>> angles_;
  std::vector<std::pair<int, int>> kv_uses_;  // (group, window) of the attention phases, each once
  std::vector<Mapping> memory_;
  size_t pack_bytes_[kNumKinds] = {};
  uint8_t* pack_buffers_[kNumKinds] = {};
  int packed_value_[kNumKinds] = {-1, -1, -1};
  const PackPhase* packers_[kNumKinds] = {};
  int max_columns_ = 0;
  size_t attention_scratch_ = 0;
  PartResultsBuffer part_results_;
  int min_kv_heads_ = 0;  // of the attention phases
  std::vector<ThreadScratch> scratch_;
  uint64_t num_runs_ = 0;
};

}  // namespace caudal

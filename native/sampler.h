// Chooses the next token of each row of logits.
//
// A row's choice depends on its logits, its parameters and (seed, position), never on the other rows.
#pragma once

#include <cstdint>
#include <vector>

#include "candidates.h"
#include "kernels/table.h"
#include "spread_draw.h"
#include "thread_pool.h"

namespace caudal {

// Parameters of `num_rows` rows, as arrays; the meanings are those of SamplingBatch in backends/base.py.
struct SamplingArgs {
  int num_rows;
  int vocabulary;
  const float* logits;
  size_t logits_stride;
  size_t maxima_at;     // where a row has the maxima of its blocks of kBlockLogits logits; 0: nowhere
  const int32_t* rows;  // [num_rows], which row of the logits
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const float* typical_p;
  const float* repetition_penalty;
  const float* presence_penalty;
  const float* frequency_penalty;
  const uint64_t* seeds;
  const int64_t* positions;
  const int32_t* history_starts;
  const int32_t* num_prompt;
  const int32_t* history_ids;
  const int32_t* bias_starts;
  const int32_t* bias_ids;
  const float* bias_values;
  const int32_t* num_logprobs;
  int max_logprobs;
  const int32_t* mask_rows;  // [num_rows], which mask says what a row may choose; -1: anything. Null: no row has one.
  const uint32_t* masks;     // [masks][mask_words], bit i % 32 of word i / 32: whether token i may be chosen
  size_t mask_words;
};

struct SamplingResult {
  int32_t* token_ids;   // [num_rows]; -1 for a row without a finite logit
  float* logprobs;      // [num_rows]
  int32_t* ranks;       // [num_rows]
  int32_t* top_ids;     // [num_rows][max_logprobs]
  float* top_logprobs;  // [num_rows][max_logprobs]
};

// What a distribution has: the sum of its weights and its entropy in nats.
struct Mass {
  double total;
  double entropy;
};

class Sampler {
 public:
  Sampler(const KernelTable& kernels, ThreadPool& pool);

  // Ids in history and bias must lie in the vocabulary (the caller checks).
  void sample(const SamplingArgs& args, const SamplingResult& result);

  // The random number in [0, 1) of a position: splitmix64's finaliser twice over seed and position.
  // Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
  static double uniform(uint64_t seed, int64_t position);

 private:
  struct Workspace {
    std::vector<float> logits;
    std::vector<int32_t> counts;
    std::vector<Candidate> candidates;
    std::vector<float> maxima;  // of every kBlockLogits logits
    std::vector<float> sorted_maxima;
    SpreadBuffers spread;
    double whole_mass = 0.0;  // of the row that was drawn from, relative to its best, at its temperature; 0: not summed
  };

  void sample_row(const SamplingArgs& args, const SamplingResult& result, int row, Workspace& w) const;
  const float* edited_logits(const SamplingArgs& args, int row, Workspace& w) const;
  int32_t choose(const SamplingArgs& args, int row, const float* logits, Workspace& w) const;
  int32_t draw(const SamplingArgs& args, int row, const float* logits, float best, Workspace& w) const;
  int32_t draw_spread(const SamplingArgs& args, int row, const float* logits, float best, Workspace& w) const;
  float lowest_of_top(int k, Workspace& w) const;
  Mass whole_mass(const float* logits, int vocabulary, float scale, float best) const;
  float find_maxima(const SamplingArgs& args, int row, const float* logits, Workspace& w) const;
  void report(const SamplingArgs& args, int row, const SamplingResult& result, bool maxima_are_known,
              Workspace& w) const;

  const KernelTable& kernels_;
  ThreadPool& pool_;
  std::vector<Workspace> workspaces_;
};

}  // namespace caudal

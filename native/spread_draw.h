// A draw from a distribution that very many tokens share, without sorting them.
//
// The mass of the vocabulary is found by ranges of logits, as a histogram, whose unlikelier ranges are filled only if
// the likelier ones do not decide. Where a cut or the random number falls is then the matter of one range, and only its
// tokens are looked at one by one.
#pragma once

#include <cstdint>
#include <vector>

#include "candidates.h"
#include "kernels/sampling.h"

namespace caudal {

// Memory that draws use again and again.
struct SpreadBuffers {
  std::vector<double> masses, moments, mass_before;
  std::vector<int32_t> counts, found;
  std::vector<float> sample;
};

// What is wanted of the histogram: the first of these that is above 0 says how far it must reach; more is filled if
// that was not enough.
struct SpreadNeeds {
  int count;            // for keep_first: so many tokens
  double least_weight;  // all tokens with this weight, 1 being the likeliest's
  double mass;          // tokens with so much of the mass
  bool moments;         // for keep_typical after another cut
};

class SpreadDraw {
 public:
  // The row, its largest logit, which is finite, and a temperature above 0. All of it outlives the draw.
  SpreadDraw(const SamplingKernels& kernels, const float* logits, int vocabulary, float best, float temperature,
             SpreadNeeds needs, SpreadBuffers& buffers);

  // The mass of all that is kept, in units of the likeliest token's.
  double total() const;

  // Each of these keeps a part of the tokens kept so far, as SamplingParams has it; the likeliest is always kept, or of
  // keep_typical the most typical.
  void keep_first(int k);
  void keep_mass(double top_p);
  void keep_likely(double min_p);
  void keep_typical(double typical_p);

  // The token on which a number in [0, 1) falls.
  int32_t pick(double number);

 private:
  // A range whose tokens were looked at: those of them that are kept, in no order.
  struct Opened {
    int bucket;
    std::vector<Weighted> items;
  };

  int bucket_of(float logit) const;
  double exponent(float logit) const;
  int guess_end() const;
  void fill_to(int end);
  void fill(int end);
  void share_out(double known, int first);
  double mass_between(int first, int end) const;
  double moment() const;
  int find_reaching(double& mass);
  std::vector<Weighted>* find(int bucket);
  std::vector<Weighted>& open(int bucket);
  void open_range(int first, int last);
  void weigh(int bucket, const std::vector<Weighted>& items);
  void drop_from(int bucket);
  int32_t last_token();

  const SamplingKernels& kernels_;
  const float* logits_;
  int vocabulary_;
  float best_;
  float temperature_;
  float buckets_per_logit_;
  SpreadNeeds needs_;
  SpreadBuffers& buffers_;
  double whole_moment_ = 0.0;  // of the logits as they came, unless moments are kept
  std::vector<Opened> opened_;
  int filled_ = 0;  // buckets
  Tail tail_{};     // what lies behind those
  int end_;         // of the buckets in which tokens are kept
};

}  // namespace caudal

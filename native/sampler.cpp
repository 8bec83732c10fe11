#include "sampler.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <new>

namespace caudal {

namespace {

// At first only candidates within e^-8 are looked at, for most draws need no more.
constexpr float kNearBehind = 8.0f;
// Most draws fall on the likeliest few, so only these are sorted at first.
constexpr size_t kSortedAtFirst = 256;
// The most that is found by sorting alone.
constexpr int kMostSorted = 2048;

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// Calls fn(first, end) for the blocks of logits whose largest reaches `lowest`, in order, until it returns true.
template <class Fn>
void for_blocks_reaching(float lowest, const std::vector<float>& maxima, int vocabulary, const Fn& fn) {
  for (size_t b = 0; b < maxima.size(); ++b) {
    const int first = static_cast<int>(b) * kBlockLogits;
    if (maxima[b] >= lowest && fn(first, std::min(first + kBlockLogits, vocabulary))) return;
  }
}

int32_t first_index_of(const float* x, int n, float value, const std::vector<float>& maxima) {
  int32_t found = kNoToken;
  for_blocks_reaching(value, maxima, n, [&](int first, int end) {
    found = static_cast<int32_t>(std::find(x + first, x + end, value) - x);
    return true;
  });
  return found;
}

// Candidates in order of likelihood, sorted only as far as they are asked for.
class Ranking {
 public:
  explicit Ranking(std::vector<Candidate>& candidates) : candidates_(&candidates) {}

  const Candidate& operator[](size_t i) {
    if (i >= sorted_) sort_to(std::max(i + 1, sorted_ * 8));
    return (*candidates_)[i];
  }
  size_t size() const { return candidates_->size(); }
  void truncate(size_t n) {
    sort_to(n);
    candidates_->resize(std::min(n, candidates_->size()));
    sorted_ = std::min(sorted_, candidates_->size());
  }

 private:
  void sort_to(size_t n) {
    n = std::min(std::max(n, kSortedAtFirst), candidates_->size());
    if (n <= sorted_) return;
    auto begin = candidates_->begin() + static_cast<std::ptrdiff_t>(sorted_);
    auto end = candidates_->begin() + static_cast<std::ptrdiff_t>(n);
    if (n < candidates_->size()) std::nth_element(begin, end - 1, candidates_->end(), likelier);
    std::sort(begin, end, likelier);
    sorted_ = n;
  }

  std::vector<Candidate>* candidates_;
  size_t sorted_ = 0;
};

// Adds to a heap of the likeliest so far, the least of them on top.
void keep_likeliest(Candidate c, size_t wanted, std::vector<Candidate>& heap) {
  if (heap.size() == wanted) {
    if (!likelier(c, heap.front())) return;
    std::pop_heap(heap.begin(), heap.end(), likelier);
    heap.pop_back();
  }
  heap.push_back(c);
  std::push_heap(heap.begin(), heap.end(), likelier);
}

// Makes the logits of tokens whose bit is not set -inf. Most words of a mask are all ones or all zeros.
void ban_masked(const uint32_t* mask, std::vector<float>& logits) {
  constexpr size_t kBits = 32;
  for (size_t first = 0; first < logits.size(); first += kBits) {
    const uint32_t word = mask[first / kBits];
    if (word == ~uint32_t{0}) continue;
    const size_t count = std::min(kBits, logits.size() - first);
    if (word == 0) {
      std::fill_n(logits.begin() + static_cast<std::ptrdiff_t>(first), count, -HUGE_VALF);
      continue;
    }
    for (size_t bit = 0; bit < count; ++bit) {
      if ((word >> bit & 1U) == 0) logits[first + bit] = -HUGE_VALF;
    }
  }
}

// Whether so many blocks of the vocabulary reach a logit that sorting those who do would take long.
bool is_spread(float lowest, const std::vector<float>& maxima) {
  constexpr size_t kFewBlocks = 16;
  const auto reaches = [&](float largest) { return largest >= lowest; };
  return maxima.size() >= kFewBlocks &&
         static_cast<size_t>(std::count_if(maxima.begin(), maxima.end(), reaches)) > maxima.size() / 2;
}

}  // namespace

Sampler::Sampler(const KernelTable& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), workspaces_(static_cast<size_t>(pool.size())) {}

double Sampler::uniform(uint64_t seed, int64_t position) {
  uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (static_cast<uint64_t>(position) + 1);
  return static_cast<double>(mix(mix(x)) >> 40) * 0x1p-24;
}

// Penalties in the order repetition, presence and frequency, then the bias, then the mask.
const float* Sampler::edited_logits(const SamplingArgs& a, int row, Workspace& w) const {
  const float* raw = a.logits + static_cast<size_t>(a.rows[row]) * a.logits_stride;
  const int history_begin = a.history_starts[row], history_end = a.history_starts[row + 1];
  const int mask = a.mask_rows == nullptr ? -1 : a.mask_rows[row];
  if (history_begin == history_end && a.bias_starts[row] == a.bias_starts[row + 1] && mask < 0) return raw;
  const auto size = static_cast<size_t>(a.vocabulary);
  w.logits.assign(raw, raw + size);
  if (history_begin != history_end) w.counts.assign(size, -1);  // -1 unseen, else how often in the answer
  for (int i = history_begin; i < history_end; ++i) {
    const auto id = static_cast<size_t>(a.history_ids[i]);
    if (w.counts[id] < 0) {
      w.counts[id] = 0;
      float& logit = w.logits[id];
      logit = logit > 0 ? logit / a.repetition_penalty[row] : logit * a.repetition_penalty[row];
    }
    if (i - history_begin >= a.num_prompt[row]) ++w.counts[id];
  }
  for (int i = history_begin; i < history_end; ++i) {
    const auto id = static_cast<size_t>(a.history_ids[i]);
    if (w.counts[id] > 0) {
      w.logits[id] -= a.frequency_penalty[row] * static_cast<float>(w.counts[id]);
      w.logits[id] -= a.presence_penalty[row];
      w.counts[id] = 0;
    }
  }
  for (int i = a.bias_starts[row]; i < a.bias_starts[row + 1]; ++i) {
    w.logits[static_cast<size_t>(a.bias_ids[i])] += a.bias_values[i];
  }
  if (mask >= 0) ban_masked(a.masks + static_cast<size_t>(mask) * a.mask_words, w.logits);
  return w.logits.data();
}

namespace {

// Draws from one row's distribution: candidates with their weights relative to the likeliest.
class Draw {
 public:
  Draw(const SamplingArgs& args, int row, float best, std::vector<Candidate>& candidates)
      : a_(args), row_(row), best_(best), candidates_(candidates), ranking_(candidates) {}

  double exponent(const Candidate& c) const {
    return (static_cast<double>(c.logit) - static_cast<double>(best_)) / static_cast<double>(a_.temperature[row_]);
  }
  double weight(const Candidate& c) const { return std::exp(exponent(c)); }

  // `total` is the weight of the whole vocabulary; `are_all` says that no token was left out but for e^-30. Returns
  // false if the tokens that were left out could make a difference: no cut fell inside the candidates.
  bool truncate(double total, bool are_all) {
    const auto k = static_cast<size_t>(std::max(a_.top_k[row_], 0));
    if (k > ranking_.size() && !are_all) return false;
    bool is_cut = k > 0 && k <= ranking_.size();
    if (k > 0) {
      if (is_cut) ranking_.truncate(k);
      total = sum();
    }
    size_t keep = ranking_.size();
    if (a_.top_p[row_] < 1.0f) {
      double mass = 0.0, wanted = static_cast<double>(a_.top_p[row_]) * total;
      for (keep = 0; keep < ranking_.size() && (keep == 0 || mass < wanted);) mass += weight(ranking_[keep++]);
    }
    if (a_.min_p[row_] > 0.0f) {
      size_t likely = 1;
      while (likely < keep && weight(ranking_[likely]) >= static_cast<double>(a_.min_p[row_])) ++likely;
      keep = std::min(keep, likely);
    }
    is_cut = is_cut || keep < ranking_.size();
    if (keep < ranking_.size()) ranking_.truncate(keep);
    return is_cut || are_all;
  }

  // The distribution of the candidates alone.
  Mass mass() const {
    double total = 0.0, moment = 0.0;
    for (const Candidate& c : candidates_) {
      const double w = weight(c);
      total += w;
      if (w > 0.0) moment += w * exponent(c);
    }
    return {total, std::log(total) - moment / total};
  }

  // Locally typical sampling: keeps those whose surprise is nearest to the entropy, until their mass reaches typical_p.
  // Returns false if tokens that are not candidates, all more surprising than by `behind` of the likeliest, could be
  // nearer than some that it would keep.
  // Source: Meister et al., "Locally typical sampling", 2022.
  bool keep_typical(const Mass& mass, double behind) {
    const double log_total = std::log(mass.total), reach = log_total + behind - mass.entropy;
    std::vector<Weighted> near;
    for (const Candidate& c : candidates_) {
      const double distance = std::abs(log_total - exponent(c) - mass.entropy);
      if (distance <= reach) near.push_back({c, weight(c), distance});
    }
    double wanted = static_cast<double>(a_.typical_p[row_]) * mass.total;
    const size_t kept = bring_to_front(near, wanted, more_typical);
    if (wanted > 0.0 && std::isfinite(behind)) return false;
    candidates_.clear();
    for (size_t i = 0; i < kept; ++i) candidates_.push_back(near[i].candidate);
    ranking_ = Ranking(candidates_);
    return true;
  }

  // The candidate that the random number falls on, of a distribution of weight `total`; kNoToken if it falls on none.
  int32_t pick(double total) {
    const double target = Sampler::uniform(a_.seeds[row_], a_.positions[row_]) * total;
    double running = 0.0;
    for (size_t i = 0; i < ranking_.size(); ++i) {
      running += weight(ranking_[i]);
      if (running > target) return ranking_[i].id;
    }
    return kNoToken;
  }

  // The same for the candidates alone; the last one if rounding leaves none.
  int32_t pick_of_all() {
    const int32_t found = pick(sum());
    return found != kNoToken || ranking_.size() == 0 ? found : ranking_[ranking_.size() - 1].id;
  }

  double sum() const {
    double total = 0.0;
    for (const Candidate& c : candidates_) total += weight(c);
    return total;
  }

 private:
  const SamplingArgs& a_;
  int row_;
  float best_;
  std::vector<Candidate>& candidates_;
  Ranking ranking_;
};

}  // namespace

// Of a row as it came, its maxima may be known.
float Sampler::find_maxima(const SamplingArgs& a, int row, const float* logits, Workspace& w) const {
  w.maxima.resize(static_cast<size_t>((a.vocabulary + kBlockLogits - 1) / kBlockLogits));
  const float* raw = a.logits + static_cast<size_t>(a.rows[row]) * a.logits_stride;
  if (a.maxima_at == 0 || logits != raw) return kernels_.sampling.max_values(logits, a.vocabulary, w.maxima.data());
  std::copy_n(raw + a.maxima_at, w.maxima.size(), w.maxima.begin());
  return *std::max_element(w.maxima.begin(), w.maxima.end());
}

Mass Sampler::whole_mass(const float* logits, int vocabulary, float scale, float best) const {
  double moment = 0.0;
  const double total = kernels_.sampling.exp_moment(logits, vocabulary, scale, best, &moment);
  return {total, std::log(total) - moment / total};
}

int32_t Sampler::choose(const SamplingArgs& a, int row, const float* logits, Workspace& w) const {
  const float best = find_maxima(a, row, logits, w);
  if (!std::isfinite(best)) return kNoToken;
  if (a.temperature[row] <= 0.0f) return first_index_of(logits, a.vocabulary, best, w.maxima);
  return draw(a, row, logits, best, w);
}

// A logit that at least the k likeliest reach, for k up to the number of blocks: the k-th largest of their maxima.
float Sampler::lowest_of_top(int k, Workspace& w) const {
  if (k <= 0 || static_cast<size_t>(k) > w.maxima.size()) return HUGE_VALF;
  w.sorted_maxima = w.maxima;
  const auto kth = w.sorted_maxima.begin() + k - 1;
  std::nth_element(w.sorted_maxima.begin(), kth, w.sorted_maxima.end(), std::greater<>());
  return *kth;
}

// Sorts the likeliest, if they decide; else the distribution is drawn from as one that many tokens share.
int32_t Sampler::draw(const SamplingArgs& a, int row, const float* logits, float best, Workspace& w) const {
  const float temperature = a.temperature[row];
  const int k = a.top_k[row];
  const bool sorts_top = k > 0 && k <= kMostSorted && static_cast<size_t>(k) <= w.maxima.size();
  // top_p counts the mass of all top_k tokens, also of those that min_p will drop.
  const bool need_all = k > 0 && a.top_p[row] < 1.0f;
  const bool is_limited = a.min_p[row] > 0.0f && !need_all;
  const float behind = is_limited ? std::min(kFarBehind, -std::log(a.min_p[row])) : kNearBehind;
  // A hair lower than min_p's own limit; the exact comparison follows on the few that are left.
  const float lowest = sorts_top ? lowest_of_top(k, w) : best - behind * temperature * 1.0001f - 1e-6f;
  if (!sorts_top && (k > 0 || is_spread(lowest, w.maxima))) return draw_spread(a, row, logits, best, w);
  const bool is_whole = k <= 0 && a.min_p[row] <= 0.0f && a.top_p[row] >= 1.0f;
  const bool is_typical = a.typical_p[row] < 1.0f;
  double total = 0.0;
  Mass whole{};
  if (is_whole && is_typical) {
    whole = whole_mass(logits, a.vocabulary, 1.0f / temperature, best);
  } else if (k <= 0 && (is_whole || a.top_p[row] < 1.0f)) {
    total = kernels_.sampling.exp_sum(logits, a.vocabulary, 1.0f / temperature, best);
  }
  w.whole_mass = is_whole && is_typical ? whole.total : total;
  w.candidates.clear();
  for_blocks_reaching(lowest, w.maxima, a.vocabulary, [&](int first, int end) {
    for (int i = first; i < end; ++i) {
      if (logits[i] >= lowest) w.candidates.push_back({logits[i], i});
    }
    return false;
  });
  Draw draw(a, row, best, w.candidates);
  const bool are_all = sorts_top || is_limited;
  if (draw.truncate(total, are_all) || is_whole) {
    if (is_typical) {
      const double reach = is_whole && !are_all ? static_cast<double>(behind) : HUGE_VAL;
      if (draw.keep_typical(is_whole ? whole : draw.mass(), reach)) return draw.pick_of_all();
    } else if (is_whole) {
      // A total summed in float32 may be a little too large; then the candidates' own sum decides.
      const int32_t found = draw.pick(total);
      if (found != kNoToken) return found;
      if (are_all) return draw.pick_of_all();
    } else {
      return draw.pick_of_all();
    }
  }
  return draw_spread(a, row, logits, best, w);
}

int32_t Sampler::draw_spread(const SamplingArgs& a, int row, const float* logits, float best, Workspace& w) const {
  const double number = uniform(a.seeds[row], a.positions[row]);
  const bool is_cut = a.top_k[row] > 0 || a.top_p[row] < 1.0f || a.min_p[row] > 0.0f;
  SpreadNeeds needs{std::max(a.top_k[row], 0), 0.0, number, is_cut && a.typical_p[row] < 1.0f};
  if (a.typical_p[row] < 1.0f) needs.mass = 1.0 - (1.0 - static_cast<double>(a.typical_p[row])) / 4;
  if (a.min_p[row] > 0.0f) needs.least_weight = static_cast<double>(a.min_p[row]);
  if (a.top_p[row] < 1.0f) {
    needs.least_weight = 0.0;
    needs.mass = static_cast<double>(a.top_p[row]);
  }
  SpreadDraw draw(kernels_.sampling, logits, a.vocabulary, best, a.temperature[row], needs, w.spread);
  w.whole_mass = draw.total();
  if (a.top_k[row] > 0) draw.keep_first(a.top_k[row]);
  if (a.top_p[row] < 1.0f) draw.keep_mass(static_cast<double>(a.top_p[row]));
  if (a.min_p[row] > 0.0f) draw.keep_likely(static_cast<double>(a.min_p[row]));
  if (a.typical_p[row] < 1.0f) draw.keep_typical(static_cast<double>(a.typical_p[row]));
  return draw.pick(number);
}

// `maxima_are_known`: the workspace has those of the row as it came.
void Sampler::report(const SamplingArgs& a, int row, const SamplingResult& result, bool maxima_are_known,
                     Workspace& w) const {
  const float* raw = a.logits + static_cast<size_t>(a.rows[row]) * a.logits_stride;
  const float best =
      maxima_are_known ? *std::max_element(w.maxima.begin(), w.maxima.end()) : find_maxima(a, row, raw, w);
  // The draw has summed the same, if it was of these logits at temperature 1.
  const bool is_known = maxima_are_known && a.temperature[row] == 1.0f && w.whole_mass > 0.0;
  const double log_total = std::log(is_known ? w.whole_mass : kernels_.sampling.exp_sum(raw, a.vocabulary, 1.0f, best));
  const auto logprob = [&](float logit) {
    return static_cast<float>((static_cast<double>(logit) - static_cast<double>(best)) - log_total);
  };
  const float chosen = raw[result.token_ids[row]];
  result.logprobs[row] = logprob(chosen);
  result.ranks[row] = 1 + kernels_.sampling.count_above(raw, a.vocabulary, chosen);
  const auto wanted = static_cast<size_t>(std::min(a.num_logprobs[row], a.vocabulary));
  w.candidates.clear();
  for_blocks_reaching(-HUGE_VALF, w.maxima, a.vocabulary, [&](int first, int end) {
    if (wanted == 0) return true;
    const bool is_full = w.candidates.size() == wanted;
    const float largest = w.maxima[static_cast<size_t>(first / kBlockLogits)];
    if (is_full && !(largest > w.candidates.front().logit)) return false;  // later ids lose against equals
    for (int i = first; i < end; ++i)
      keep_likeliest({std::isnan(raw[i]) ? -HUGE_VALF : raw[i], i}, wanted, w.candidates);
    return false;
  });
  std::sort(w.candidates.begin(), w.candidates.end(), likelier);
  const size_t base = static_cast<size_t>(row) * static_cast<size_t>(a.max_logprobs);
  for (size_t i = 0; i < w.candidates.size(); ++i) {
    result.top_ids[base + i] = w.candidates[i].id;
    result.top_logprobs[base + i] = logprob(w.candidates[i].logit);
  }
}

void Sampler::sample_row(const SamplingArgs& args, const SamplingResult& result, int row, Workspace& w) const {
  try {
    const float* logits = edited_logits(args, row, w);
    w.whole_mass = 0.0;
    result.token_ids[row] = choose(args, row, logits, w);
    const bool is_edited = logits == w.logits.data();
    if (args.num_logprobs[row] >= 0 && result.token_ids[row] != kNoToken) report(args, row, result, !is_edited, w);
  } catch (const std::bad_alloc&) {  // must not leave the pool: this row has no token
    result.token_ids[row] = kNoToken;
  }
}

void Sampler::sample(const SamplingArgs& args, const SamplingResult& result) {
  struct Rows final : Job {
    Sampler& sampler;
    const SamplingArgs& args;
    const SamplingResult& result;
    Rows(Sampler& s, const SamplingArgs& a, const SamplingResult& r) : sampler(s), args(a), result(r) {}
    int num_stages() const override { return 1; }
    int num_tasks(int) override { return args.num_rows; }
    void work(int, int row, int thread) override {
      sampler.sample_row(args, result, row, sampler.workspaces_[static_cast<size_t>(thread)]);
    }
  };
  Rows rows(*this, args, result);
  pool_.run(rows);
}

}  // namespace caudal

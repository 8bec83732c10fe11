#include "sampler.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <new>

namespace caudal {

namespace {

// Candidates less likely than e^-30 of the likeliest are left out: their mass together is below the random number's
// resolution.
constexpr float kFarBehind = 30.0f;
// Most draws fall on the likeliest few, so only these are sorted at first.
constexpr size_t kSortedAtFirst = 256;
// What a row without a finite logit gives.
constexpr int32_t kNoToken = -1;

bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

int32_t first_index_of(const float* x, int n, float value) {
  for (int i = 0; i < n; ++i) {
    if (x[i] == value) return i;
  }
  return kNoToken;
}

// Candidates in order of likelihood, sorted only as far as they are asked for.
class Ranking {
 public:
  explicit Ranking(std::vector<Candidate>& candidates) : candidates_(candidates) {}

  const Candidate& operator[](size_t i) {
    if (i >= sorted_) sort_to(std::max(i + 1, sorted_ * 8));
    return candidates_[i];
  }
  size_t size() const { return candidates_.size(); }
  void truncate(size_t n) {
    sort_to(n);
    candidates_.resize(std::min(n, candidates_.size()));
    sorted_ = std::min(sorted_, candidates_.size());
  }

 private:
  void sort_to(size_t n) {
    n = std::min(std::max(n, kSortedAtFirst), candidates_.size());
    if (n <= sorted_) return;
    auto begin = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(n);
    if (n < candidates_.size()) std::nth_element(begin, end - 1, candidates_.end(), likelier);
    std::sort(begin, end, likelier);
    sorted_ = n;
  }

  std::vector<Candidate>& candidates_;
  size_t sorted_ = 0;
};

// Locally typical sampling: keep those whose surprise is nearest to the entropy, until their mass reaches p.
// Source: Meister et al., "Locally typical sampling", 2022.
void keep_typical(std::vector<Candidate>& candidates, double temperature, double p) {
  std::vector<double> weights;
  double total = 0.0;
  for (const Candidate& c : candidates) {
    weights.push_back(
        std::exp((static_cast<double>(c.logit) - static_cast<double>(candidates[0].logit)) / temperature));
    total += weights.back();
  }
  double entropy = 0.0;
  for (double w : weights) entropy -= w > 0 ? w / total * std::log(w / total) : 0.0;
  std::vector<size_t> order(candidates.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  auto distance = [&](size_t i) { return std::abs(-std::log(weights[i] / total) - entropy); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return distance(a) < distance(b); });
  std::vector<Candidate> kept;
  double mass = 0.0;
  for (size_t i : order) {
    kept.push_back(candidates[i]);
    mass += weights[i];
    if (mass >= p * total) break;
  }
  std::sort(kept.begin(), kept.end(), likelier);
  candidates = std::move(kept);
}

}  // namespace

Sampler::Sampler(const KernelTable& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), workspaces_(static_cast<size_t>(pool.size())) {}

double Sampler::uniform(uint64_t seed, int64_t position) {
  uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (static_cast<uint64_t>(position) + 1);
  return static_cast<double>(mix(mix(x)) >> 40) * 0x1p-24;
}

// Penalties in the order repetition, presence and frequency, then the bias.
const float* Sampler::edited_logits(const SamplingArgs& a, int row, Workspace& w) const {
  const float* raw = a.logits + static_cast<size_t>(a.rows[row]) * a.logits_stride;
  const int history_begin = a.history_starts[row], history_end = a.history_starts[row + 1];
  if (history_begin == history_end && a.bias_starts[row] == a.bias_starts[row + 1]) return raw;
  const auto size = static_cast<size_t>(a.vocabulary);
  w.logits.assign(raw, raw + size);
  w.counts.assign(size, -1);  // -1 unseen, else how often in the answer
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
  return w.logits.data();
}

namespace {

// Draws from one row's distribution: candidates with their weights relative to the likeliest.
class Draw {
 public:
  Draw(const SamplingArgs& args, int row, float best, std::vector<Candidate>& candidates)
      : a_(args), row_(row), best_(best), candidates_(candidates), ranking_(candidates) {}

  double weight(const Candidate& c) const {
    return std::exp((static_cast<double>(c.logit) - static_cast<double>(best_)) /
                    static_cast<double>(a_.temperature[row_]));
  }

  // `total` is the weight of the whole vocabulary.
  void truncate(double total) {
    if (a_.top_k[row_] > 0) {
      if (static_cast<size_t>(a_.top_k[row_]) < ranking_.size()) ranking_.truncate(static_cast<size_t>(a_.top_k[row_]));
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
    if (keep < ranking_.size()) ranking_.truncate(keep);
    if (a_.typical_p[row_] < 1.0f) {
      ranking_.truncate(ranking_.size());
      keep_typical(candidates_, static_cast<double>(a_.temperature[row_]), static_cast<double>(a_.typical_p[row_]));
    }
  }

  // `total` is the weight of the candidates that are left.
  int32_t pick(double total) {
    const double u = Sampler::uniform(a_.seeds[row_], a_.positions[row_]);
    // A total that was summed in float32 may be a little too large; then the candidates' own sum decides.
    for (int attempt = 0; attempt < 2; ++attempt) {
      double running = 0.0;
      for (size_t i = 0; i < ranking_.size(); ++i) {
        running += weight(ranking_[i]);
        if (running > u * total) return ranking_[i].id;
      }
      total = running;
    }
    return ranking_.size() == 0 ? kNoToken : ranking_[ranking_.size() - 1].id;
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

int32_t Sampler::choose(const SamplingArgs& a, int row, const float* logits, Workspace& w) const {
  const float best = kernels_.elementwise.max_value(logits, a.vocabulary);
  const float temperature = a.temperature[row];
  if (!std::isfinite(best)) return kNoToken;
  if (temperature <= 0.0f) return first_index_of(logits, a.vocabulary, best);
  // top_p counts the mass of all top_k tokens, also of those that min_p will drop.
  const bool need_all = a.top_k[row] > 0 && a.top_p[row] < 1.0f;
  const float behind = a.min_p[row] > 0.0f && !need_all ? std::min(kFarBehind, -std::log(a.min_p[row])) : kFarBehind;
  // A hair lower than min_p's own limit; the exact comparison follows on the few that are left.
  const float lowest = best - behind * temperature * 1.0001f - 1e-6f;
  w.candidates.clear();
  for (int i = 0; i < a.vocabulary; ++i) {
    if (logits[i] >= lowest) w.candidates.push_back({logits[i], i});
  }
  Draw draw(a, row, best, w.candidates);
  const bool whole = a.top_k[row] <= 0 && a.min_p[row] <= 0.0f;
  double total = 0.0;
  if (whole || (a.top_k[row] <= 0 && a.top_p[row] < 1.0f)) {
    total = kernels_.elementwise.exp_sum(logits, a.vocabulary, 1.0f / temperature, best);
  }
  draw.truncate(total);
  const bool truncated = !whole || a.top_p[row] < 1.0f || a.typical_p[row] < 1.0f;
  return draw.pick(truncated ? draw.sum() : total);
}

void Sampler::report(const SamplingArgs& a, int row, const SamplingResult& result, Workspace& w) const {
  const float* raw = a.logits + static_cast<size_t>(a.rows[row]) * a.logits_stride;
  const float best = kernels_.elementwise.max_value(raw, a.vocabulary);
  const double log_total = std::log(kernels_.elementwise.exp_sum(raw, a.vocabulary, 1.0f, best));
  const auto logprob = [&](float logit) {
    return static_cast<float>((static_cast<double>(logit) - static_cast<double>(best)) - log_total);
  };
  const float chosen = raw[result.token_ids[row]];
  int32_t rank = 1;
  for (int i = 0; i < a.vocabulary; ++i) rank += raw[i] > chosen ? 1 : 0;
  result.logprobs[row] = logprob(chosen);
  result.ranks[row] = rank;
  const auto wanted = static_cast<size_t>(std::min(a.num_logprobs[row], a.vocabulary));
  // A heap of the likeliest so far, the least of them on top.
  w.candidates.clear();
  for (int i = 0; i < a.vocabulary && wanted > 0; ++i) {
    const Candidate c{std::isnan(raw[i]) ? -HUGE_VALF : raw[i], i};
    if (w.candidates.size() == wanted) {
      if (!likelier(c, w.candidates.front())) continue;
      std::pop_heap(w.candidates.begin(), w.candidates.end(), likelier);
      w.candidates.pop_back();
    }
    w.candidates.push_back(c);
    std::push_heap(w.candidates.begin(), w.candidates.end(), likelier);
  }
  std::sort(w.candidates.begin(), w.candidates.end(), likelier);
  const size_t base = static_cast<size_t>(row) * static_cast<size_t>(a.max_logprobs);
  for (size_t i = 0; i < w.candidates.size(); ++i) {
    result.top_ids[base + i] = w.candidates[i].id;
    result.top_logprobs[base + i] = logprob(w.candidates[i].logit);
  }
}

void Sampler::sample(const SamplingArgs& args, const SamplingResult& result) {
  std::atomic<int> next{0};
  auto work = [&](int thread) {
    Workspace& w = workspaces_[static_cast<size_t>(thread)];
    for (int row; (row = next.fetch_add(1)) < args.num_rows;) {
      try {
        result.token_ids[row] = choose(args, row, edited_logits(args, row, w), w);
        if (args.num_logprobs[row] >= 0 && result.token_ids[row] != kNoToken) report(args, row, result, w);
      } catch (const std::bad_alloc&) {  // must not leave the pool: this row has no token
        result.token_ids[row] = kNoToken;
      }
    }
  };
  if (args.num_rows == 1) return work(0);
  pool_.run(work);
}

}  // namespace caudal

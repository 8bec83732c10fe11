#include "sampler.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

namespace caudal {

namespace {

// Candidates less likely than e^-30 of the likeliest are left out: their mass together is below the random number's
// resolution.
constexpr float kFarBehind = 30.0f;
// Most draws fall on the likeliest few, so only these are sorted at first.
constexpr size_t kSortedAtFirst = 256;

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
  return 0;  // all NaN
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
void keep_typical(std::vector<Candidate>& candidates, float inverse_temperature, float p) {
  std::vector<double> weights;
  double total = 0.0;
  for (const Candidate& c : candidates) {
    weights.push_back(std::exp(static_cast<double>((c.logit - candidates[0].logit) * inverse_temperature)));
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
    if (mass >= static_cast<double>(p) * total) break;
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
      w.logits[id] -= a.presence_penalty[row] + a.frequency_penalty[row] * static_cast<float>(w.counts[id]);
      w.counts[id] = 0;
    }
  }
  for (int i = a.bias_starts[row]; i < a.bias_starts[row + 1]; ++i) {
    w.logits[static_cast<size_t>(a.bias_ids[i])] += a.bias_values[i];
  }
  return w.logits.data();
}

int32_t Sampler::choose(const SamplingArgs& a, int row, const float* logits, Workspace& w) const {
  const float best = kernels_.elementwise.max_value(logits, a.vocabulary);
  const float temperature = a.temperature[row];
  if (temperature <= 0.0f || !std::isfinite(best)) return first_index_of(logits, a.vocabulary, best);
  const float inverse = 1.0f / temperature;
  const float behind = a.min_p[row] > 0.0f ? std::min(kFarBehind, -std::log(a.min_p[row])) : kFarBehind;
  // A hair lower than min_p's own limit; the exact comparison follows on the few that are left.
  const float lowest = best - behind * temperature * 1.00001f - 1e-6f;
  w.candidates.clear();
  for (int i = 0; i < a.vocabulary; ++i) {
    if (logits[i] >= lowest) w.candidates.push_back({logits[i], i});
  }
  Ranking ranking(w.candidates);
  auto weight = [&](const Candidate& c) { return std::exp((c.logit - best) * inverse); };

  if (a.top_k[row] > 0) ranking.truncate(static_cast<size_t>(a.top_k[row]));
  size_t keep = ranking.size();
  if (a.top_p[row] < 1.0f) {
    double total = 0.0;
    if (a.top_k[row] > 0) {
      for (const Candidate& c : w.candidates) total += static_cast<double>(weight(c));
    } else {
      total = static_cast<double>(kernels_.elementwise.exp_sum(logits, a.vocabulary, inverse, best * inverse));
    }
    double mass = 0.0;
    for (keep = 0; keep < ranking.size();) {
      mass += static_cast<double>(weight(ranking[keep++]));
      if (mass >= static_cast<double>(a.top_p[row]) * total) break;
    }
  }
  if (a.min_p[row] > 0.0f) {
    size_t likely = 0;
    while (likely < keep && weight(ranking[likely]) >= a.min_p[row]) ++likely;
    keep = std::max<size_t>(likely, 1);
  }
  if (keep < ranking.size()) ranking.truncate(keep);
  if (a.typical_p[row] < 1.0f) {
    ranking.truncate(ranking.size());
    keep_typical(w.candidates, inverse, a.typical_p[row]);
  }
  double total = 0.0;
  for (const Candidate& c : w.candidates) total += static_cast<double>(weight(c));
  double target = uniform(a.seeds[row], a.positions[row]) * total, running = 0.0;
  for (size_t i = 0; i < ranking.size(); ++i) {
    const Candidate& c = ranking[i];
    running += static_cast<double>(weight(c));
    if (running > target) return c.id;
  }
  return ranking[ranking.size() - 1].id;
}

void Sampler::report(const SamplingArgs& a, int row, const SamplingResult& result, Workspace& w) const {
  const float* raw = a.logits + static_cast<size_t>(a.rows[row]) * a.logits_stride;
  const float best = kernels_.elementwise.max_value(raw, a.vocabulary);
  const float log_total = best + std::log(kernels_.elementwise.exp_sum(raw, a.vocabulary, 1.0f, best));
  const float chosen = raw[result.token_ids[row]];
  int32_t rank = 1;
  for (int i = 0; i < a.vocabulary; ++i) rank += raw[i] > chosen ? 1 : 0;
  result.logprobs[row] = chosen - log_total;
  result.ranks[row] = rank;
  const auto wanted = static_cast<size_t>(std::min(a.num_logprobs[row], a.vocabulary));
  // A heap of the likeliest so far, the least of them on top.
  w.candidates.clear();
  for (int i = 0; i < a.vocabulary && wanted > 0; ++i) {
    Candidate c{raw[i], i};
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
    result.top_logprobs[base + i] = w.candidates[i].logit - log_total;
  }
}

void Sampler::sample(const SamplingArgs& args, const SamplingResult& result) {
  std::atomic<int> next{0};
  auto work = [&](int thread) {
    Workspace& w = workspaces_[static_cast<size_t>(thread)];
    for (int row; (row = next.fetch_add(1)) < args.num_rows;) {
      result.token_ids[row] = choose(args, row, edited_logits(args, row, w), w);
      if (args.num_logprobs[row] >= 0) report(args, row, result, w);
    }
  };
  if (args.num_rows == 1) return work(0);
  pool_.run(work);
}

}  // namespace caudal

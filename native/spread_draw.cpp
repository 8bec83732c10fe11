#include "spread_draw.h"

#include <cmath>
#include <limits>

namespace caudal {

namespace {

constexpr int kBuckets = 2048;
constexpr double kBucketExponents = static_cast<double>(kFarBehind) / kBuckets;  // the width of one
constexpr float kSteepest = 1e30f;  // so that no bucket of a difference of zero is NaN

// How many logits are looked at to guess which buckets will be needed, in runs of so many; and how much further than
// the guess is filled, for a guess that falls short costs a second pass.
constexpr int kSampled = 4096, kSampledRun = 16;
constexpr int kGuessMargin = kBuckets / 60;

// In buckets, how far rounding can move a logit.
constexpr double kRounding = 0.01;

// The smallest mass that is more than this.
double above(double mass) { return std::nextafter(mass, std::numeric_limits<double>::infinity()); }

}  // namespace

SpreadDraw::SpreadDraw(const SamplingKernels& kernels, const float* logits, int vocabulary, float best,
                       float temperature, SpreadNeeds needs, SpreadBuffers& buffers)
    : kernels_(kernels),
      logits_(logits),
      vocabulary_(vocabulary),
      best_(best),
      temperature_(temperature),
      buckets_per_logit_(std::min(kBuckets / (kFarBehind * temperature), kSteepest)),
      needs_(needs),
      buffers_(buffers),
      end_(kBuckets) {
  buffers_.masses.assign(kBuckets, 0.0);
  buffers_.moments.assign(needs.moments ? kBuckets : 0, 0.0);
  buffers_.counts.assign(needs.count > 0 ? kBuckets : 0, 0);
  fill(guess_end());
}

// The end of the buckets that the draw will need, by a sample of the logits. A few heavy tokens that the sample lacks
// make it guess too far, which costs little.
int SpreadDraw::guess_end() const {
  if (needs_.count == 0 && needs_.least_weight > 0.0) {
    return static_cast<int>(std::min(-std::log(needs_.least_weight) / kBucketExponents, kBuckets - 1.0)) + 1;
  }
  const int stride = std::max(vocabulary_ / kSampled, 1) * kSampledRun;
  std::vector<float>& sample = buffers_.sample;
  sample.clear();
  for (int i = 0; i + kSampledRun <= vocabulary_; i += stride) {
    sample.insert(sample.end(), logits_ + i, logits_ + i + kSampledRun);
  }
  std::vector<double> masses(kBuckets);
  std::vector<int32_t> counts(kBuckets);
  kernels_.exp_histogram(sample.data(), static_cast<int>(sample.size()), 1.0f / temperature_, best_,
                         {buckets_per_logit_, 0, kBuckets, masses.data(), nullptr, counts.data()});
  double wanted_mass = 0.0, wanted_count = 0.0;
  if (needs_.count > 0) {
    wanted_count = static_cast<double>(needs_.count) * static_cast<double>(sample.size()) / vocabulary_;
  } else {
    for (double mass : masses) wanted_mass += mass * needs_.mass;
  }
  int end = 0;
  for (; end < kBuckets && (wanted_mass > 0.0 || wanted_count > 0.0); ++end) {
    wanted_mass -= masses[static_cast<size_t>(end)];
    wanted_count -= counts[static_cast<size_t>(end)];
  }
  return std::min(end + kGuessMargin, kBuckets);
}

// Sees to it that these buckets, as many as are in use of them, are filled.
void SpreadDraw::fill_to(int end) {
  if (filled_ < std::min(end, end_)) fill(kBuckets);
}

void SpreadDraw::fill(int end) {
  const int first = filled_;
  filled_ = end;
  const double known = tail_.mass;
  const float scale = 1.0f / temperature_;
  tail_ = kernels_.exp_histogram(
      logits_, vocabulary_, scale, best_,
      {buckets_per_logit_, first, filled_, buffers_.masses.data(), needs_.moments ? buffers_.moments.data() : nullptr,
       needs_.count > 0 ? buffers_.counts.data() : nullptr});
  // What rounding the scale has done to all exponents alike; of the tail's, which are not known, next to nothing.
  const double excess = 1.0 / (static_cast<double>(temperature_) * static_cast<double>(scale)) - 1.0;
  const double step = std::exp(-kBucketExponents * excess);
  double factor = std::exp(-kBucketExponents * excess * (first + 0.5));
  for (int b = first; b < filled_ && excess != 0.0; ++b, factor *= step) {
    buffers_.masses[static_cast<size_t>(b)] *= factor;
    if (needs_.moments) buffers_.moments[static_cast<size_t>(b)] *= factor * (1.0 + excess);
  }
  if (first > 0) {
    share_out(known, first);
  } else {
    whole_moment_ = tail_.moment * (1.0 + excess);
  }
}

// Makes the buckets from `first` on and the tail weigh together what they weighed when all of them was tail, so that
// rounding does not move the numbers that were drawn from the total.
void SpreadDraw::share_out(double known, int first) {
  const double found = mass_between(first, filled_) + tail_.mass;
  if (found <= 0.0) return;
  const double factor = known / found;
  for (int b = first; b < filled_; ++b) buffers_.masses[static_cast<size_t>(b)] *= factor;
  tail_.mass *= factor;
}

double SpreadDraw::mass_between(int first, int end) const {
  double sum = 0.0;
  for (int b = first; b < end; ++b) sum += buffers_.masses[static_cast<size_t>(b)];
  return sum;
}

// As exp_histogram has it.
int SpreadDraw::bucket_of(float logit) const {
  const float bucket = (best_ - logit) * buckets_per_logit_;
  return bucket < static_cast<float>(kBuckets) ? static_cast<int>(bucket) : kBuckets;
}

double SpreadDraw::exponent(float logit) const {
  return (static_cast<double>(logit) - static_cast<double>(best_)) / static_cast<double>(temperature_);
}

double SpreadDraw::total() const {
  return end_ <= filled_ ? mass_between(0, end_) : mass_between(0, filled_) + tail_.mass;
}

// Of exp(y) * y over all that is kept.
double SpreadDraw::moment() const {
  if (!needs_.moments) return whole_moment_;
  double sum = end_ <= filled_ ? 0.0 : tail_.moment;
  for (int b = 0; b < std::min(end_, filled_); ++b) sum += buffers_.moments[static_cast<size_t>(b)];
  return sum;
}

// Goes through the buckets until they hold a mass, and leaves in it what is wanted of the last. kBuckets if they do
// not.
int SpreadDraw::find_reaching(double& mass) {
  for (int b = 0; b < end_; ++b) {
    fill_to(b + 1);
    const double here = buffers_.masses[static_cast<size_t>(b)];
    if (here >= mass) return b;
    mass -= here;
  }
  return kBuckets;
}

std::vector<Weighted>* SpreadDraw::find(int bucket) {
  for (Opened& opened : opened_) {
    if (opened.bucket == bucket) return &opened.items;
  }
  return nullptr;
}

std::vector<Weighted>& SpreadDraw::open(int bucket) {
  open_range(bucket, bucket);
  return *find(bucket);
}

// Looks at all tokens of the buckets [first, last] that have not been opened.
void SpreadDraw::open_range(int first, int last) {
  while (first <= last && find(first) != nullptr) ++first;
  while (first <= last && find(last) != nullptr) --last;
  if (first > last) return;
  const size_t known = opened_.size();
  for (int b = first; b <= last; ++b) {
    if (find(b) == nullptr) opened_.push_back({b, {}});
  }
  // A little more than the range, for both ends are rounded; bucket_of decides.
  const float width = 1.0f / buckets_per_logit_, slack = width * 0.01f + std::abs(best_) * 1e-6f;
  const float highest = best_ - static_cast<float>(first) * width + slack;
  const float lowest = best_ - static_cast<float>(last + 1) * width - slack;
  buffers_.found.resize(static_cast<size_t>(vocabulary_));
  const int count = kernels_.find_in_range(logits_, vocabulary_, lowest, highest, buffers_.found.data());
  for (int i = 0; i < count; ++i) {
    const int32_t id = buffers_.found[static_cast<size_t>(i)];
    const int bucket = bucket_of(logits_[id]);
    for (size_t o = known; o < opened_.size(); ++o) {
      if (opened_[o].bucket != bucket) continue;
      opened_[o].items.push_back({{logits_[id], id}, std::exp(exponent(logits_[id])), 0.0});
    }
  }
}

// Makes a bucket weigh what these of its tokens do.
void SpreadDraw::weigh(int bucket, const std::vector<Weighted>& items) {
  double mass = 0.0, moment = 0.0;
  for (const Weighted& item : items) {
    mass += item.weight;
    if (item.weight > 0.0) moment += item.weight * exponent(item.candidate.logit);
  }
  buffers_.masses[static_cast<size_t>(bucket)] = mass;
  if (!buffers_.moments.empty()) buffers_.moments[static_cast<size_t>(bucket)] = moment;
}

void SpreadDraw::drop_from(int bucket) { end_ = std::min(end_, bucket); }

void SpreadDraw::keep_first(int k) {
  int before = 0;
  for (int b = 0; b < end_; ++b) {
    fill_to(b + 1);
    const int count = buffers_.counts[static_cast<size_t>(b)];
    if (before + count < k) {
      before += count;
      continue;
    }
    std::vector<Weighted>& items = open(b);
    const auto kept = static_cast<std::ptrdiff_t>(k - before);
    std::nth_element(items.begin(), items.begin() + kept - 1, items.end(), weighs_more);
    items.resize(static_cast<size_t>(kept));
    weigh(b, items);
    drop_from(b + 1);
    return;
  }
}

void SpreadDraw::keep_mass(double top_p) {
  double rest = std::max(above(0.0), top_p * total());
  const int bucket = find_reaching(rest);
  if (bucket == kBuckets) return;
  std::vector<Weighted>& items = open(bucket);
  items.resize(bring_to_front(items, rest, weighs_more));
  weigh(bucket, items);
  drop_from(bucket + 1);
}

void SpreadDraw::keep_likely(double min_p) {
  const double edge = -std::log(min_p) / kBucketExponents;
  if (edge >= kBuckets) return;
  const int first = std::max(0, static_cast<int>(edge - kRounding));
  const int last = std::min(end_ - 1, static_cast<int>(edge + kRounding));
  fill_to(last + 1);
  open_range(first, last);
  for (int b = first; b <= last; ++b) {
    std::vector<Weighted>& items = open(b);
    items.erase(std::remove_if(items.begin(), items.end(), [&](const Weighted& w) { return w.weight < min_p; }),
                items.end());
    weigh(b, items);
  }
  drop_from(last + 1);
}

// Source: Meister et al., "Locally typical sampling", 2022. The surprise of a token is log(total) - exponent, and the
// entropy is the mean of that: what counts is how far an exponent is from the mean exponent.
void SpreadDraw::keep_typical(double typical_p) {
  const double sum = total();
  const double mean = moment() / sum;
  std::vector<double>& before = buffers_.mass_before;
  before.assign(1, 0.0);
  const auto mass_before = [&](int bucket) {
    fill_to(bucket);
    for (size_t b = before.size() - 1; b < static_cast<size_t>(bucket); ++b) {
      before.push_back(before.back() + buffers_.masses[b]);
    }
    return before[static_cast<size_t>(bucket)];
  };
  const double wanted = std::max(above(0.0), typical_p * sum), centre = -mean / kBucketExponents;  // in buckets
  const auto clamp = [&](double bucket) {
    return static_cast<int>(std::min(std::max(bucket, 0.0), static_cast<double>(end_)));
  };
  // In buckets, how far from the centre whole buckets reach that hold the mass.
  int reach = 1;
  for (; reach < 2 * kBuckets; ++reach) {
    const int first = clamp(std::ceil(centre - reach)), end = clamp(std::floor(centre + reach));
    if (end > first && mass_before(end) - mass_before(first) >= wanted) break;
  }
  // The last token that is kept is nearer than that, by less than two buckets: whole ones that reach as far as the
  // first token in reach does would have been enough. Its distance leads to three buckets or four on either side; those
  // between them are kept whole.
  const double outer = reach + kRounding, inner = reach - 2 - kRounding;
  const int first = clamp(std::floor(centre - outer)), end = clamp(std::floor(centre + outer) + 1);
  int whole_first = clamp(std::floor(centre - inner) + 1), whole_end = clamp(std::floor(centre + inner));
  if (whole_first >= whole_end) whole_first = whole_end = end;
  fill_to(end);
  open_range(first, whole_first - 1);
  open_range(whole_end, end - 1);
  std::vector<Weighted> near;
  for (Opened& opened : opened_) {
    const bool is_near = opened.bucket >= first && opened.bucket < end;
    if (is_near && (opened.bucket < whole_first || opened.bucket >= whole_end)) {
      for (Weighted item : opened.items) {
        item.distance = std::abs(exponent(item.candidate.logit) - mean);
        near.push_back(item);
      }
      opened.items.clear();
    }
  }
  double rest = wanted - (mass_before(whole_end) - mass_before(whole_first));
  near.resize(bring_to_front(near, rest, more_typical));
  for (const Weighted& item : near) find(bucket_of(item.candidate.logit))->push_back(item);
  const std::vector<Weighted> nothing;
  drop_from(end);
  for (int b = 0; b < end_; ++b) {
    if (b >= whole_first && b < whole_end) continue;
    weigh(b, b >= first ? *find(b) : nothing);
  }
}

int32_t SpreadDraw::pick(double number) {
  double rest = above(number * total());
  const int bucket = find_reaching(rest);
  if (bucket == kBuckets) return last_token();
  std::vector<Weighted>& items = open(bucket);
  const size_t count = bring_to_front(items, rest, weighs_more);
  return count > 0 ? items[count - 1].candidate.id : last_token();
}

// The least likely of those that are kept: what rounding leaves at the end.
int32_t SpreadDraw::last_token() {
  fill_to(end_);
  for (int b = end_ - 1; b >= 0; --b) {
    if (buffers_.masses[static_cast<size_t>(b)] <= 0.0) continue;
    const std::vector<Weighted>& items = open(b);
    if (!items.empty()) return std::max_element(items.begin(), items.end(), weighs_more)->candidate.id;
  }
  return kNoToken;
}

}  // namespace caudal

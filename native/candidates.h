// Tokens that may be drawn, and the order in which they are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace caudal {

// Candidates less likely than e^-30 of the likeliest are left out: their mass together is below the random number's
// resolution.
constexpr float kFarBehind = 30.0f;
// What a row without a finite logit gives.
constexpr int32_t kNoToken = -1;

struct Candidate {
  float logit;
  int32_t id;
};

// A candidate whose probability is `weight` times the likeliest's.
struct Weighted {
  Candidate candidate;
  double weight;
  double distance;  // of its surprise from the entropy, where that counts
};

inline bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}
inline bool weighs_more(const Weighted& a, const Weighted& b) { return likelier(a.candidate, b.candidate); }
inline bool more_typical(const Weighted& a, const Weighted& b) {
  return a.distance < b.distance || (a.distance == b.distance && weighs_more(a, b));
}

// How many of the first in an order it takes to reach a mass; they are brought to the front, the last of them last, the
// others in no order. Divides as quicksort does, but goes on in one half only. If all together are too few, returns
// their number and leaves a rest in `mass`.
template <class Order>
size_t bring_to_front(std::vector<Weighted>& items, double& mass, Order order) {
  auto begin = items.begin(), end = items.end();
  while (begin != end && mass > 0.0) {
    auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, order);
    double lower = 0.0;
    for (auto i = begin; i != middle; ++i) lower += i->weight;
    if (lower >= mass) {
      end = middle;
    } else {
      mass -= lower + middle->weight;
      begin = middle + 1;
    }
  }
  return static_cast<size_t>(begin - items.begin());
}

}  // namespace caudal

// Checks, for random steps, that tasks attend to every part of every query's context once, that results of single
// parts have places of their own, and that no task is left that would keep one thread busy alone.
#include "attention_plan.h"

#include <cstdio>
#include <map>
#include <random>

namespace {

int failures = 0;

void expect(bool good, const char* what) {
  if (good) return;
  std::printf("FAIL attention plan: %s\n", what);
  ++failures;
}

struct Rows {
  std::vector<int32_t> starts{0};
  std::vector<int32_t> positions;

  void add(int first, int count) {
    for (int i = 0; i < count; ++i) positions.push_back(first + i);
    starts.push_back(static_cast<int32_t>(positions.size()));
  }

  caudal::Step step(int num_kv_heads, int num_threads, size_t num_slots) const {
    caudal::Step step;
    step.num_rows = static_cast<int>(starts.size()) - 1;
    step.num_tokens = static_cast<int>(positions.size());
    step.positions = positions.data();
    step.query_starts = starts.data();
    plan_attention(step, num_kv_heads, num_threads, num_slots);
    return step;
  }
};

void check_cover(const caudal::Step& step, size_t num_slots) {
  std::map<std::pair<int, int>, int> attended;  // (token, part) -> times
  std::map<int, int> result_of;                 // token -> first slot
  for (const caudal::QueryChunk& chunk : step.chunks) {
    for (int q = 0; q < chunk.num_queries; ++q) {
      const int token = chunk.first_token + q;
      for (int part = chunk.part_begin; part < chunk.part_end; ++part) ++attended[{token, part}];
      if (chunk.first_result >= 0) result_of[token] = chunk.first_result + q * chunk.num_parts;
    }
  }
  for (int t = 0; t < step.num_tokens; ++t) {
    for (int part = 0; part <= step.positions[t] / caudal::kPartTokens; ++part) {
      expect(attended[{t, part}] == 1, "a part is attended to once");
    }
  }
  expect(result_of.size() == step.merges.size(), "what is shared is merged");
  std::vector<bool> used(num_slots, false);
  int last = -1;
  for (const caudal::PartMerge& merge : step.merges) {
    expect(merge.token > last, "merges are in order of token");
    last = merge.token;
    expect(result_of.count(merge.token) == 1 && result_of[merge.token] == merge.first_result, "results are found");
    for (int slot = merge.first_result; slot < merge.first_result + merge.num_parts; ++slot) {
      const bool is_free = slot >= 0 && static_cast<size_t>(slot) < num_slots && !used[static_cast<size_t>(slot)];
      expect(is_free, "results have places of their own");
      if (is_free) used[static_cast<size_t>(slot)] = true;
    }
  }
}

void check_random_steps() {
  std::mt19937 generator(3);
  const auto below = [&](int n) { return static_cast<int>(generator() % static_cast<unsigned>(n)); };
  for (int i = 0; i < 300; ++i) {
    Rows rows;
    for (int r = below(6); r >= 0; --r)
      rows.add(below(3) == 0 ? below(6000) : below(400), below(2) ? 1 : 1 + below(90));
    const auto num_slots = static_cast<size_t>(below(3) == 0 ? below(40) : 4000);
    check_cover(rows.step(1 + below(8), 1 + below(5), num_slots), num_slots);
  }
}

void check_balance() {
  Rows one;
  one.add(4095, 1);
  expect(one.step(3, 2, 100).chunks.size() >= 5, "one long stream is shared");
  expect(one.step(3, 1, 100).chunks.size() == 1, "one thread shares nothing");
  expect(one.step(3, 2, 15).chunks.size() == 1, "a step without room for results splits nothing");
  Rows equal;
  for (int i = 0; i < 8; ++i) equal.add(4095, 1);
  expect(equal.step(3, 2, 1000).chunks.size() == 8, "many equal streams are tasks enough");
  Rows uneven;
  uneven.add(8191, 1);
  for (int i = 0; i < 7; ++i) uneven.add(99, 1);
  expect(uneven.step(3, 2, 100).merges.size() == 1, "the one long stream among short ones is shared");
}

}  // namespace

int main() {
  check_random_steps();
  check_balance();
  if (failures == 0) std::printf("attention plan checked\n");
  return failures == 0 ? 0 : 1;
}

#include "attention_plan.h"

#include <algorithm>

namespace caudal {

namespace {

// Queries of a prompt that one task attends with: their keys are read from the near caches.
constexpr int kQueriesPerChunk = 32;
// Tasks of equal size that a thread should find at least: then the last ones end at about the same time.
constexpr int kTasksPerThread = 8;

int64_t work_of(const Step& step, const QueryChunk& chunk) {
  return int64_t{chunk.num_queries} * (step.last_seen(chunk.row, chunk.first_token, chunk.num_queries) + 1);
}

}  // namespace

void plan_attention(Step& step, int num_kv_heads, int num_threads, size_t num_result_slots) {
  std::vector<QueryChunk> whole;
  int64_t total = 0;
  for (int r = 0; r < step.num_rows; ++r) {
    for (int t = step.query_starts[r]; t < step.query_starts[r + 1]; t += kQueriesPerChunk) {
      const int count = std::min(kQueriesPerChunk, step.query_starts[r + 1] - t);
      const int num_parts = step.last_seen(r, t, count) / kPartTokens + 1;
      whole.push_back({r, t, count, 0, num_parts, num_parts, -1});
      total += work_of(step, whole.back());
    }
  }
  step.chunks.clear();
  step.merges.clear();
  // A chunk is a task for every KV head.
  const int64_t most = std::max<int64_t>(1, total * num_kv_heads / (int64_t{num_threads} * kTasksPerThread));
  size_t used = 0;
  for (QueryChunk& chunk : whole) {
    const auto slots = static_cast<size_t>(chunk.num_queries) * static_cast<size_t>(chunk.num_parts);
    const auto wanted = static_cast<int>(std::min<int64_t>(work_of(step, chunk) / most + 1, chunk.num_parts));
    if (wanted < 2 || num_threads == 1 || used + slots > num_result_slots) {
      step.chunks.push_back(chunk);
      continue;
    }
    chunk.first_result = static_cast<int>(used);
    used += slots;
    for (int q = 0; q < chunk.num_queries; ++q) {
      step.merges.push_back({chunk.first_token + q, chunk.num_parts, chunk.first_result + q * chunk.num_parts});
    }
    for (int i = 0; i < wanted; ++i) {
      chunk.part_begin = chunk.num_parts * i / wanted;
      chunk.part_end = chunk.num_parts * (i + 1) / wanted;
      step.chunks.push_back(chunk);
    }
  }
}

}  // namespace caudal

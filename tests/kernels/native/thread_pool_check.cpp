// Jobs of many shapes on pools of many sizes: every task is done exactly once, and none before its stage is due.
// With more threads than cores, and tasks that sleep, threads come late to their stages and must do no harm.
#include <chrono>
#include <cstdio>
#include <vector>

#include "thread_pool.h"

using namespace caudal;

namespace {

int failures = 0;

void expect(bool holds, const char* what, int threads, int stage) {
  if (holds) return;
  ++failures;
  std::printf("thread_pool: %s with %d threads in stage %d\n", what, threads, stage);
}

class CountedJob final : public Job {
 public:
  CountedJob(std::vector<int> sizes, int threads, bool sleeps)
      : sizes_(std::move(sizes)), threads_(threads), sleeps_(sleeps) {
    for (int size : sizes_) done_.emplace_back(static_cast<size_t>(size));
  }

  int num_stages() const override { return static_cast<int>(sizes_.size()); }

  int num_tasks(int stage) override {
    expect(++asked_ == stage + 1, "stages are not asked for in order", threads_, stage);
    if (stage > 0) check_done(stage - 1);
    return sizes_[static_cast<size_t>(stage)];
  }

  void work(int stage, int task, int thread) override {
    expect(stage + 1 == asked_, "a task is done out of its stage", threads_, stage);
    expect(thread >= 0 && thread < threads_, "an unknown thread works", threads_, stage);
    if (sleeps_ && (stage * 7 + task) % 11 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    ++done_[static_cast<size_t>(stage)][static_cast<size_t>(task)].value;
  }

  void check_done(int stage) {
    for (const Tally& tally : done_[static_cast<size_t>(stage)]) {
      expect(tally.value == 1, "a task is not done exactly once", threads_, stage);
    }
  }

 private:
  // Plain on purpose: the pool must order the writes of tasks before the reads of later stages.
  struct Tally {
    int value = 0;
  };
  std::vector<int> sizes_;
  int threads_;
  bool sleeps_;
  int asked_ = 0;
  std::vector<std::vector<Tally>> done_;
};

void check_pool(int threads, int rounds, bool sleeps) {
  ThreadPool pool(threads);
  uint32_t random = 1;
  for (int round = 0; round < rounds; ++round) {
    std::vector<int> sizes;
    for (int stage = 0; stage < round % 23; ++stage) {
      random = random * 1664525U + 1013904223U;
      sizes.push_back(static_cast<int>((random >> 16) % 9 * ((random >> 24) % 5)));  // often 0, sometimes 1
    }
    CountedJob job(sizes, threads, sleeps);
    pool.run(job);
    if (!sizes.empty()) job.check_done(static_cast<int>(sizes.size()) - 1);
  }
}

}  // namespace

int main() {
  for (int threads : {1, 2, 3, 8}) {
    check_pool(threads, 3000, false);
    check_pool(threads, 60, true);
  }
  if (failures == 0) std::printf("thread_pool: passed\n");
  return failures == 0 ? 0 : 1;
}

#include "thread_pool.h"

#include <system_error>

namespace caudal {

namespace {

// About 30 to 50 microseconds: longer than a phase of a step is late, shorter than a time slice.
constexpr int kSpins = 2000;

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads < 1 ? 1 : num_threads), shares_(new Share[static_cast<size_t>(num_threads_)]) {
  try {
    for (int thread = 1; thread < num_threads_; ++thread) threads_.emplace_back([this, thread] { serve(thread); });
  } catch (const std::system_error&) {
    leave();
    throw;
  }
}

ThreadPool::~ThreadPool() { leave(); }

void ThreadPool::leave() {
  leaving_.store(true);
  open_turn(0, 0, true);
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::wait_while(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_briefly();
  }
  value.wait(old, std::memory_order_acquire);
}

void ThreadPool::run(Job& job) {
  if (num_threads_ == 1) {
    for (int stage = 0; stage < job.num_stages(); ++stage) {
      const int tasks = job.num_tasks(stage);
      for (int task = 0; task < tasks; ++task) job.work(stage, task, 0);
    }
    return;
  }
  open_next_stage(job, 0, 0);
  while (true) {
    const uint32_t turn = open_.turn.load(std::memory_order_acquire);
    if (turn == open_.last_turn.load(std::memory_order_relaxed)) return;
    take_part(turn, 0);
    wait_while(open_.turn, turn);
  }
}

// Opens the first stage from `stage` on that several threads can share. What is for one alone is done here and now: to
// wake others for it would only cost time.
void ThreadPool::open_next_stage(Job& job, int stage, int thread) {
  open_.job.store(&job, std::memory_order_relaxed);
  for (; stage < job.num_stages(); ++stage) {
    const int tasks = job.num_tasks(stage);
    if (tasks > 1) return open_turn(stage, tasks, false);
    if (tasks == 1) job.work(stage, 0, thread);
  }
  open_turn(stage, 0, true);
}

// Called by one thread at a time: nobody has a task of the turn before any more.
void ThreadPool::open_turn(int stage, int num_tasks, bool is_last) {
  const uint32_t turn = open_.turn.load(std::memory_order_relaxed) + 1;
  done_.value.store(0, std::memory_order_relaxed);
  for (int t = 0; t < num_threads_; ++t) {
    shares_[static_cast<size_t>(t)].taken.store(uint64_t{turn} << 32, std::memory_order_relaxed);
  }
  open_.stage.store(stage, std::memory_order_relaxed);
  open_.num_tasks.store(num_tasks, std::memory_order_relaxed);
  if (is_last) open_.last_turn.store(turn, std::memory_order_relaxed);
  // A locked operation: notify_all must not look for sleepers before this is visible to them.
  open_.turn.exchange(turn, std::memory_order_acq_rel);
  open_.turn.notify_all();
}

// The index of a task in a share, or -1: all are taken, or the turn is over.
int ThreadPool::take(Share& share, uint32_t turn, int size) {
  uint64_t taken = share.taken.load(std::memory_order_relaxed);
  while (taken >> 32 == turn && static_cast<int>(taken & UINT32_MAX) < size) {
    if (share.taken.compare_exchange_weak(taken, taken + 1, std::memory_order_acq_rel)) {
      return static_cast<int>(taken & UINT32_MAX);
    }
  }
  return -1;
}

// A thread does its own share in order, so that memory streams, and then helps the others with theirs. What it reads of
// the open stage is of this turn if it gets a task, for the turn cannot end before that is done.
void ThreadPool::take_part(uint32_t turn, int thread) {
  Job* job = open_.job.load(std::memory_order_relaxed);
  const int stage = open_.stage.load(std::memory_order_relaxed);
  const int tasks = open_.num_tasks.load(std::memory_order_relaxed);
  const auto first = [&](int t) { return static_cast<int>(int64_t{tasks} * t / num_threads_); };
  for (int i = 0; i < num_threads_; ++i) {
    const int owner = (thread + i) % num_threads_;
    const int begin = first(owner), size = first(owner + 1) - begin;
    for (int index; (index = take(shares_[static_cast<size_t>(owner)], turn, size)) >= 0;) {
      job->work(stage, begin + index, thread);
      if (done_.value.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks) {
        return open_next_stage(*job, stage + 1, thread);
      }
    }
  }
}

void ThreadPool::serve(int thread) {
  uint32_t seen = 0;
  while (true) {
    wait_while(open_.turn, seen);
    seen = open_.turn.load(std::memory_order_acquire);
    if (leaving_.load()) return;
    take_part(seen, thread);
  }
}

}  // namespace caudal

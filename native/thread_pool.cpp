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

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {
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
  generation_.value.fetch_add(1);
  generation_.value.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::wait_while(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_briefly();
  }
  value.wait(old, std::memory_order_acquire);
}

void ThreadPool::run(const std::function<void(int)>& work) {
  if (num_threads_ == 1) return work(0);
  work_ = &work;
  generation_.value.fetch_add(1, std::memory_order_release);
  generation_.value.notify_all();
  work(0);
  barrier();
}

void ThreadPool::barrier() {
  if (num_threads_ == 1) return;
  uint32_t phase = phase_.value.load(std::memory_order_acquire);
  if (arrived_.value.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(num_threads_)) {
    arrived_.value.store(0, std::memory_order_relaxed);
    // A locked operation: notify_all must not look for sleepers before this is visible to them.
    phase_.value.fetch_add(1, std::memory_order_acq_rel);
    phase_.value.notify_all();
    return;
  }
  wait_while(phase_.value, phase);
}

void ThreadPool::serve(int thread) {
  uint32_t seen = 0;
  while (true) {
    wait_while(generation_.value, seen);
    ++seen;
    if (leaving_.load()) return;
    (*work_)(thread);
    barrier();
  }
}

}  // namespace caudal

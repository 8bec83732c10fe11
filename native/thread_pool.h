// A persistent pool whose threads run one function together and meet at barriers.
//
// The caller is thread 0. Waiting spins briefly, then sleeps, so that an oversubscribed machine is not burned.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace caudal {

class ThreadPool {
 public:
  // Throws std::system_error if the system gives no more threads.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return num_threads_; }

  // Runs work(thread) on every thread at once and returns when all have finished. `work` must not throw.
  void run(const std::function<void(int)>& work);

  // Inside run: returns when every thread has called it as often.
  void barrier();

 private:
  // Each on a line of its own: the spinning reader of one must not slow the writer of another.
  struct alignas(64) Counter {
    std::atomic<uint32_t> value{0};
  };

  void serve(int thread);
  void leave();
  static void wait_while(const std::atomic<uint32_t>& value, uint32_t old);

  int num_threads_;
  const std::function<void(int)>* work_ = nullptr;
  Counter generation_;  // of run(); odd bit patterns have no meaning, only change has
  Counter arrived_;
  Counter phase_;
  std::atomic<bool> leaving_{false};
  std::vector<std::thread> threads_;
};

}  // namespace caudal

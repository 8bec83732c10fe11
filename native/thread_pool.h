// A persistent pool whose threads work through the stages of a job together.
//
// Nobody waits for threads, only for tasks: a stage is over when each of its tasks is done, whoever did them. A thread
// that the system has put aside is not missed, and joins whatever stage is open when it comes back. So the pool loses
// little when cores are oversubscribed, where a barrier of threads would cost a time slice per stage.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace caudal {

// Stages done one after another; the tasks of a stage may run at once, on any thread.
class Job {
 public:
  virtual ~Job() = default;
  virtual int num_stages() const = 0;
  // Asked once per stage, when the stages before are done.
  virtual int num_tasks(int stage) = 0;
  // Must not throw. `thread` is in [0, size of the pool).
  virtual void work(int stage, int task, int thread) = 0;
};

class ThreadPool {
 public:
  // Throws std::system_error if the system gives no more threads.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return num_threads_; }

  // Does the whole job; the caller takes part as thread 0. One job at a time.
  void run(Job& job);

 private:
  // What threads wait for and need when it has come, on one cache line. Written by whoever ended the stage before.
  struct alignas(64) Open {
    std::atomic<uint32_t> turn{0};  // a new one for every stage that is opened, and for the end of a job
    std::atomic<uint32_t> last_turn{0};
    std::atomic<int> stage{0};
    std::atomic<int> num_tasks{0};
    std::atomic<Job*> job{nullptr};
  };
  // How many of a thread's share of tasks have been taken, by itself or by others that had finished theirs; the turn is
  // in the upper half, so that a thread which comes late takes nothing.
  struct alignas(64) Share {
    std::atomic<uint64_t> taken{0};
  };
  struct alignas(64) Count {
    std::atomic<int> value{0};
  };

  void serve(int thread);
  void leave();
  void open_next_stage(Job& job, int stage, int thread);
  void open_turn(int stage, int num_tasks, bool is_last);
  void take_part(uint32_t turn, int thread);
  int take(Share& share, uint32_t turn, int size);
  static void wait_while(const std::atomic<uint32_t>& value, uint32_t old);

  int num_threads_;
  Open open_;
  Count done_;
  std::unique_ptr<Share[]> shares_;
  std::atomic<bool> leaving_{false};
  std::vector<std::thread> threads_;
};

}  // namespace caudal

#include "machine_limits.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

namespace caudal {

namespace {

constexpr size_t kReadBytes = size_t{512} << 20;
// Long enough that waking the threads does not count.
constexpr double kProductSeconds = 0.01;

// A task for each thread.
template <class Work>
class OneTaskEach : public Job {
 public:
  OneTaskEach(int num_threads, Work work) : num_threads_(num_threads), work_(std::move(work)) {}
  int num_stages() const override { return 1; }
  int num_tasks(int) override { return num_threads_; }
  void work(int, int task, int) override { work_(task); }

 private:
  int num_threads_;
  Work work_;
};

}  // namespace

MachineLimits::MachineLimits(const KernelTable& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), memory_(kReadBytes) {
  std::memset(memory_.data(), 1, memory_.size());
}

template <class Work>
double MachineLimits::seconds(Work work) {
  OneTaskEach<Work> job(pool_.size(), std::move(work));
  const auto start = std::chrono::steady_clock::now();
  pool_.run(job);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double MachineLimits::read_rate() {
  const size_t share = kReadBytes / static_cast<size_t>(pool_.size()) / 256 * 256;
  std::atomic<uint64_t> all{0};  // so that nothing of the reading can be left out
  const double took = seconds(
      [&](int task) { all ^= kernels_.limits.read(memory_.data() + static_cast<size_t>(task) * share, share); });
  return static_cast<double>(share) * pool_.size() / took;
}

double MachineLimits::byte_product_rate() {
  for (int rounds = 1 << 12;; rounds *= 2) {
    std::atomic<int64_t> products{0};
    const double took = seconds([&](int) { products += kernels_.limits.multiply_bytes(rounds); });
    if (took >= kProductSeconds) return static_cast<double>(products) / took;
  }
}

}  // namespace caudal

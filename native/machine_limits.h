// What the machine can read and multiply just now, with all threads of a pool.
#pragma once

#include "kernels/table.h"
#include "memory.h"
#include "thread_pool.h"

namespace caudal {

class MachineLimits {
 public:
  // Takes memory that no cache holds, and has it once written. The pool and the kernels outlive this.
  MachineLimits(const KernelTable& kernels, ThreadPool& pool);

  // Bytes per second of reading memory once, each thread a range of its own.
  double read_rate();
  // Products of bytes per second, as the instruction set multiplies weights with activations.
  double byte_product_rate();

 private:
  template <class Work>
  double seconds(Work work);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  Mapping memory_;
};

}  // namespace caudal

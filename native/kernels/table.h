// The kernels of one instruction set, as one table of function pointers.
//
// Kernels take plain structs and ranges. They do not allocate, throw, lock, print or keep state.
// Rows of activations are float32 and padded to a multiple of 16 with zeros; kernels may read and
// write the padding and must leave zeros in it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention.h"
#include "elementwise.h"
#include "limits.h"
#include "matmul.h"
#include "sampling.h"

namespace caudal {

struct KernelTable {
  const char* name;
  MatmulKernels matmul;
  AttentionKernels attention;
  ElementwiseKernels elementwise;
  LimitKernels limits;
  SamplingKernels sampling;
};

}  // namespace caudal

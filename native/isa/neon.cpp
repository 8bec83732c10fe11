// The neon kernels. Exports one table and nothing else.
#include "simd/vec_neon.h"
// After the vectors, on which the texts are built.
#include "kernels/matmul_simd_neon.h"
#include "simd/vec_math.h"
// Texts.
#include "kernels/attention_impl.h"
#include "kernels/elementwise_impl.h"
#include "kernels/limits_impl.h"
#include "kernels/matmul_impl.h"
#include "kernels/sampling_impl.h"
#include "kernels/table.h"

namespace caudal {

extern const KernelTable kTable_neon;
const KernelTable kTable_neon{"neon",        kMatmulKernels,  kAttentionKernels, kElementwiseKernels,
                              kLimitKernels, kSamplingKernels};

}  // namespace caudal

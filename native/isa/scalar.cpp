// The scalar kernels. Exports one table and nothing else.
#include "simd/vec_scalar.h"
// After the vectors, on which the texts are built.
#include "kernels/matmul_simd_scalar.h"
#include "simd/vec_math.h"
// Texts.
#include "kernels/attention_impl.h"
#include "kernels/elementwise_impl.h"
#include "kernels/limits_impl.h"
#include "kernels/matmul_impl.h"
#include "kernels/sampling_impl.h"
#include "kernels/table.h"

namespace caudal {

extern const KernelTable kTable_scalar;
const KernelTable kTable_scalar{"scalar",      kMatmulKernels,  kAttentionKernels, kElementwiseKernels,
                                kLimitKernels, kSamplingKernels};

}  // namespace caudal

// The avx_vnni kernels: those of avx2 with other byte products. Exports one table and nothing else.
#include "simd/vec_avx2.h"
// After the vectors, on which the texts are built.
#define CAUDAL_AVX_VNNI
#include "kernels/matmul_simd_avx2.h"
#include "simd/vec_math.h"
// Texts.
#include "kernels/attention_impl.h"
#include "kernels/elementwise_impl.h"
#include "kernels/limits_impl.h"
#include "kernels/matmul_impl.h"
#include "kernels/sampling_impl.h"
#include "kernels/table.h"

namespace caudal {

extern const KernelTable kTable_avx_vnni;
const KernelTable kTable_avx_vnni{"avx_vnni",          kMatmulKernels, kAttentionKernels,
                                  kElementwiseKernels, kLimitKernels,  kSamplingKernels};

}  // namespace caudal

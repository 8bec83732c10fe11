// How the primitives and texts of the matmul kernels are inlined: always, because vectors must stay in registers,
// except under the sanitizers, whose checks would make the inlined code too large to compile in reasonable time.
#pragma once

#ifdef __SANITIZE_ADDRESS__
#define CAUDAL_INLINE inline
#define CAUDAL_LAMBDA
#else
#define CAUDAL_INLINE [[gnu::always_inline]] inline
#define CAUDAL_LAMBDA __attribute__((always_inline))
#endif

// How the primitives and texts of the matmul kernels are inlined: always, because vectors must stay in registers,
// except under the sanitizers and where tests emulate an instruction set: the inlined code would be too large to
// compile in reasonable time.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(CAUDAL_EMULATED)
#define CAUDAL_INLINE inline
#define CAUDAL_LAMBDA
#else
#define CAUDAL_INLINE [[gnu::always_inline]] inline
#define CAUDAL_LAMBDA __attribute__((always_inline))
#endif

#include "cpu_features.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace caudal {

#if defined(__x86_64__)

bool cpu_has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool cpu_has_avx512_vnni() {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

bool cpu_has_dotprod() { return false; }

#else

bool cpu_has_avx2() { return false; }
bool cpu_has_avx512_vnni() { return false; }

bool cpu_has_dotprod() {
#if defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long kAsimdDp = 1UL << 20;  // HWCAP_ASIMDDP, Linux arm64 elf_hwcaps
  return (getauxval(AT_HWCAP) & kAsimdDp) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
  return true;
#else
  return false;
#endif
}

#endif

}  // namespace caudal

#include "cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace caudal {

#if defined(__x86_64__)

bool cpu_has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool cpu_has_avx_vnni() {
  // Source: Intel's instruction set extensions reference, CPUID leaf 7, sub-leaf 1. Compilers know its name only
  // lately.
  constexpr unsigned int kAvxVnni = 1U << 4;
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  return cpu_has_avx2() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && eax >= 1 &&
         __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kAvxVnni) != 0;
}

bool cpu_has_avx512_vnni() {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

bool cpu_has_dotprod() { return false; }
bool cpu_has_i8mm() { return false; }

#else

bool cpu_has_avx2() { return false; }
bool cpu_has_avx_vnni() { return false; }
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

bool cpu_has_i8mm() {
#if defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long kI8mm = 1UL << 13;  // HWCAP2_I8MM, Linux arm64 elf_hwcaps
  return (getauxval(AT_HWCAP2) & kI8mm) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
  int has = 0;
  size_t size = sizeof(has);
  return sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, nullptr, 0) == 0 && has != 0;
#else
  return false;
#endif
}

#endif

}  // namespace caudal

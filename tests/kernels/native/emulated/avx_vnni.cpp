// The avx_vnni unit for machines that lack its instruction.
#include "dot_products.h"

#define _mm256_dpbusd_avx_epi32 emulated_dpbusd
#define kTable_avx_vnni kTable_avx_vnni_emulated
#include "isa/avx_vnni.cpp"

// The avx512 unit for machines that lack its instructions.
#include "wide_vectors.h"

#define kTable_avx512 kTable_avx512_emulated
#include "isa/avx512.cpp"

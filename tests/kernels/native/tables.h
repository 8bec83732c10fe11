// The kernel tables that a check program is to look at.
#pragma once

#include <string>
#include <vector>

#include "dispatch.h"

namespace caudal {

#ifdef CAUDAL_HAVE_EMULATED
extern const KernelTable kTable_avx512_emulated;
extern const KernelTable kTable_avx_vnni_emulated;
#endif

// The named one, or all that run here and those that AVX2 emulates. "scalar" is the oracle: it is compared with itself
// only where it is alone.
inline std::vector<KernelTable> tables_to_check(int argc, char** argv) {
  if (argc > 1) return {kernel_table(argv[1])};
  std::vector<KernelTable> tables;
  for (const std::string& isa : available_isas()) {
    if (isa != "scalar" || tables.empty()) tables.push_back(kernel_table(isa));
  }
#ifdef CAUDAL_HAVE_EMULATED
  if (tables.front().name != std::string("scalar")) {  // so this machine has AVX2
    tables.push_back(kTable_avx512_emulated);
    tables.back().name = "avx512 (emulated)";
    tables.push_back(kTable_avx_vnni_emulated);
    tables.back().name = "avx_vnni (emulated)";
  }
#endif
  return tables;
}

}  // namespace caudal

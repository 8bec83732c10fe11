#include "dispatch.h"

#include <cstdlib>
#include <stdexcept>

#include "cpu_features.h"

namespace caudal {

#ifdef CAUDAL_HAVE_SCALAR
extern const KernelTable kTable_scalar;
#endif
#ifdef CAUDAL_HAVE_AVX2
extern const KernelTable kTable_avx2;
#endif
#ifdef CAUDAL_HAVE_AVX_VNNI
extern const KernelTable kTable_avx_vnni;
#endif
#ifdef CAUDAL_HAVE_AVX512
extern const KernelTable kTable_avx512;
#endif
#ifdef CAUDAL_HAVE_NEON
extern const KernelTable kTable_neon;
#endif
#ifdef CAUDAL_HAVE_NEON_I8MM
extern const KernelTable kTable_neon_i8mm;
#endif
#ifdef CAUDAL_HAVE_NEON_DOTPROD
extern const KernelTable kTable_neon_dotprod;
#endif

namespace {

// Best first.
std::vector<const KernelTable*> runnable_tables() {
  std::vector<const KernelTable*> tables;
#ifdef CAUDAL_HAVE_AVX512
  if (cpu_has_avx512_vnni()) tables.push_back(&kTable_avx512);
#endif
#ifdef CAUDAL_HAVE_AVX_VNNI
  if (cpu_has_avx_vnni()) tables.push_back(&kTable_avx_vnni);
#endif
#ifdef CAUDAL_HAVE_AVX2
  if (cpu_has_avx2()) tables.push_back(&kTable_avx2);
#endif
#ifdef CAUDAL_HAVE_NEON_I8MM
  if (cpu_has_dotprod() && cpu_has_i8mm()) tables.push_back(&kTable_neon_i8mm);
#endif
#ifdef CAUDAL_HAVE_NEON_DOTPROD
  if (cpu_has_dotprod()) tables.push_back(&kTable_neon_dotprod);
#endif
#ifdef CAUDAL_HAVE_NEON
  tables.push_back(&kTable_neon);
#endif
#ifdef CAUDAL_HAVE_SCALAR
  tables.push_back(&kTable_scalar);
#endif
  return tables;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const KernelTable* table : runnable_tables()) names.emplace_back(table->name);
  return names;
}

const KernelTable& kernel_table(const std::string& name) {
  std::string known;
  for (const KernelTable* table : runnable_tables()) {
    if (name == table->name) return *table;
    known += (known.empty() ? "" : ", ") + std::string(table->name);
  }
  throw std::invalid_argument("instruction set \"" + name + "\" is not available here; available: " + known);
}

const KernelTable& default_table() {
  static const KernelTable* chosen = [] {
    const char* forced = std::getenv("CAUDAL_ISA");
    return forced && *forced ? &kernel_table(forced) : runnable_tables().front();
  }();
  return *chosen;
}

}  // namespace caudal

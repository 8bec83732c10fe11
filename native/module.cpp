// The Python module: bindings only, no arithmetic.
#include <nanobind/nanobind.h>

namespace caudal {
void bind_matmul(nanobind::module_& m);
void bind_program(nanobind::module_& m);
void bind_sampler(nanobind::module_& m);
}  // namespace caudal

NB_MODULE(_native, m) {
  m.doc() = "Caudal's CPU kernels and step program. Only caudal.backends.cpu imports this module.";
  caudal::bind_matmul(m);
  caudal::bind_program(m);
  caudal::bind_sampler(m);
}

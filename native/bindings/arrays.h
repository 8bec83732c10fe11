// Array types of the bindings and the check of their lengths.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

namespace caudal {

namespace nb = nanobind;

template <class T>
using Array1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class A>
void expect_length(const A& array, size_t length, const char* name) {
  if (array.shape(0) != length) {
    throw std::invalid_argument(std::string(name) + ": expected " + std::to_string(length) + " elements, got " +
                                std::to_string(array.shape(0)));
  }
}

}  // namespace caudal

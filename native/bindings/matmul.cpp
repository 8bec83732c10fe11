// Packed matrices and their products, for the backend's loader and for tests.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "../dispatch.h"
#include "../packed_matrix.h"
#include "../weight_image.h"
#include "arrays.h"

namespace caudal {

namespace {

struct AlignedFree {
  void operator()(uint8_t* p) const { std::free(p); }
};
using AlignedBytes = std::unique_ptr<uint8_t, AlignedFree>;

AlignedBytes aligned_bytes(size_t bytes) {
  void* memory = std::aligned_alloc(64, (bytes + 127) / 64 * 64);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return AlignedBytes(static_cast<uint8_t*>(memory));
}

// A numpy array that owns its values.
template <size_t kDims>
nb::ndarray<nb::numpy, float, nb::ndim<kDims>> new_floats(const size_t (&shape)[kDims]) {
  size_t count = 1;
  for (const size_t n : shape) {
    count *= n;
  }
  float* values = new float[count]();
  nb::capsule owner(values, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return nb::ndarray<nb::numpy, float, nb::ndim<kDims>>(values, kDims, shape, owner);
}

const KernelTable& table_of(const std::optional<std::string>& isa) {
  return isa ? kernel_table(*isa) : default_table();
}

void create_matrix(PackedMatrix* self, const std::string& format_name, int rows, int cols, WeightMemory* memory) {
  const Format format = format_from_name(format_name);
  if (memory == nullptr) {
    new (self) PackedMatrix(format, rows, cols);
  } else {
    new (self) PackedMatrix(format, rows, cols, *memory);
  }
}

PackedMatrix* matrix_on(const std::string& format_name, int rows, int cols, Array1<uint8_t> data) {
  return new PackedMatrix(format_from_name(format_name), rows, cols, data.data(), data.shape(0));
}

// The packed bytes as a read-only array that keeps its matrix.
nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>> packed_data(PackedMatrix& self) {
  const size_t shape[1] = {self.bytes()};
  return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(self.view().data, 1, shape, nb::find(self));
}

// An image's bytes as a read-only array that keeps it.
nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>> image_data(WeightImage& self) {
  const size_t shape[1] = {self.size()};
  return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(self.data(), 1, shape, nb::find(self));
}

void pack_rows(PackedMatrix& self, Array1<uint8_t> data, int first_row, int num_rows, int threads) {
  const PackedView& view = self.view();
  expect_length(data, stored_bytes(view.format, num_rows, view.cols), "data");
  const nb::gil_scoped_release release;
  self.pack(data.data(), first_row, num_rows, threads);
}

void dequantize_into(const PackedView& view, int row, const KernelTable& table, float* out) {
  if (row < 0 || row >= view.rows) {
    throw std::invalid_argument("row: expected 0 to " + std::to_string(view.rows - 1) + ", got " + std::to_string(row));
  }
  table.matmul.dequantize_row(view, row, 1.0F, out);
}

auto dequantize_row(const PackedMatrix& self, int row, const std::optional<std::string>& isa) {
  auto out = new_floats<1>({static_cast<size_t>(self.view().cols)});
  dequantize_into(self.view(), row, table_of(isa), out.data());
  return out;
}

auto dequantize(const PackedMatrix& self, const std::optional<std::string>& isa) {
  const size_t cols = static_cast<size_t>(self.view().cols);
  auto out = new_floats<2>({static_cast<size_t>(self.view().rows), cols});
  for (int row = 0; row < self.view().rows; ++row) {
    dequantize_into(self.view(), row, table_of(isa), out.data() + static_cast<size_t>(row) * cols);
  }
  return out;
}

// Panel boundaries 0 .. num_panels, ascending.
void expect_boundaries(const std::vector<int>& boundaries, int num_panels) {
  bool good = boundaries.size() >= 2 && boundaries.front() == 0 && boundaries.back() == num_panels;
  for (size_t i = 1; good && i < boundaries.size(); ++i) {
    good = boundaries[i - 1] <= boundaries[i];
  }
  if (!good) {
    throw std::invalid_argument("threads_split: expected ascending panel boundaries from 0 to " +
                                std::to_string(num_panels));
  }
}

struct Product {
  const PackedView& weights;
  const KernelTable& table;
  ActivationKind kind;
  int num_rows;
  size_t stride;  // floats of a padded row of x
};

void multiply(const Product& p, const float* x, std::vector<int> boundaries, float* out, size_t out_stride) {
  const MatmulKernels& kernels = p.table.matmul;
  const AlignedBytes packed = aligned_bytes(kernels.activation_bytes(p.kind, p.weights.cols, p.num_rows));
  const AlignedBytes scratch = aligned_bytes(kernels.scratch_bytes(p.weights.cols, p.num_rows));
  const ActivationView view{p.kind, p.num_rows, p.weights.cols, packed.get()};
  kernels.pack_activations(view, x, p.stride, 0, p.num_rows);
  kernels.begin_operand(view, scratch.get());
  const MatmulArgs args{p.weights, view, nullptr, out, out_stride, false};
  for (size_t i = 1; i < boundaries.size(); ++i) {
    kernels.matmul(args, boundaries[i - 1], boundaries[i], scratch.get());
  }
}

auto matmul(Array2<float> x, const PackedMatrix& matrix, const std::optional<std::string>& isa, bool exact,
            const std::vector<int>& threads_split) {
  const PackedView& view = matrix.view();
  const size_t cols = static_cast<size_t>(view.cols);
  const size_t rows = x.shape(0);
  if (x.shape(1) != cols) {
    throw std::invalid_argument("x: expected rows of " + std::to_string(cols) + " elements, got " +
                                std::to_string(x.shape(1)));
  }
  auto out = new_floats<2>({rows, static_cast<size_t>(view.rows)});
  if (rows == 0) {
    return out;
  }
  const std::vector<int> boundaries = threads_split.empty() ? std::vector<int>{0, view.num_panels} : threads_split;
  expect_boundaries(boundaries, view.num_panels);
  const ActivationKind kind = exact ? ActivationKind::f32 : format_info(view.format).activation;
  const Product product{view, table_of(isa), kind, static_cast<int>(rows), cols};
  const nb::gil_scoped_release release;
  const size_t out_stride = static_cast<size_t>(view.num_panels) * kPanelRows;
  std::vector<float> padded(rows * out_stride);
  multiply(product, x.data(), boundaries, padded.data(), out_stride);
  for (size_t t = 0; t < rows; ++t) {
    const float* row = padded.data() + t * out_stride;
    std::copy(row, row + view.rows, out.data() + t * static_cast<size_t>(view.rows));
  }
  return out;
}

}  // namespace

void bind_matmul(nb::module_& m) {
  m.attr("PACK_LAYOUT_VERSION") = kPackLayoutVersion;
  m.attr("PACK_SLACK") = kPackSlack;
  nb::class_<WeightMemory>(m, "WeightMemory",
                           "Memory for the weights of a model: matrices lie behind one another in huge pages.")
      .def(nb::init<>());
  nb::class_<WeightImage>(m, "WeightImage", "A file of packed weights, mapped to be used at once.")
      .def(nb::init<int, size_t>(), nb::arg("file"), nb::arg("size"))
      .def_prop_ro("data", &image_data, "The bytes, read-only.")
      .def("settle", &WeightImage::settle, nb::call_guard<nb::gil_scoped_release>(),
           "Moves the bytes into huge pages while others read them; returns how many have moved.");
  nb::class_<PackedMatrix>(m, "PackedMatrix",
                           "A weight matrix in the layout of the kernels. Its values are undefined until every row has "
                           "been packed.")
      .def("__init__", &create_matrix, nb::arg("format"), nb::arg("rows"), nb::arg("cols"),
           nb::arg("memory") = nb::none())
      .def_static("on", &matrix_on, nb::arg("format"), nb::arg("rows"), nb::arg("cols"), nb::arg("data").noconvert(),
                  nb::keep_alive<0, 4>(), nb::rv_policy::take_ownership,
                  "A matrix that reads packed bytes where they are: nbytes + PACK_SLACK of them, at a multiple of 64.")
      .def_prop_ro("data", &packed_data, "The packed bytes, read-only.")
      .def("pack", &pack_rows, nb::arg("data"), nb::arg("first_row"), nb::arg("num_rows"), nb::arg("threads") = 1,
           "Packs rows from the bytes of a GGUF tensor, which are not kept. Strips begin at multiples of 16 rows.")
      .def_prop_ro("rows", [](const PackedMatrix& p) { return p.view().rows; })
      .def_prop_ro("cols", [](const PackedMatrix& p) { return p.view().cols; })
      .def_prop_ro("format", [](const PackedMatrix& p) { return format_info(p.view().format).name; })
      .def_prop_ro("nbytes", &PackedMatrix::bytes)
      .def("dequantize_row", &dequantize_row, nb::arg("row"), nb::arg("isa") = nb::none())
      .def("dequantize", &dequantize, nb::arg("isa") = nb::none());
  m.def("matmul", &matmul, nb::arg("x"), nb::arg("matrix"), nb::arg("isa") = nb::none(), nb::arg("exact") = false,
        nb::arg("threads_split") = std::vector<int>{},
        "x [T, K] times the matrix's transpose -> [T, rows], range of panels by range of panels.");
}

}  // namespace caudal

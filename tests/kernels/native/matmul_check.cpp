// Compares the matmul kernels of every instruction set that can run here with the scalar ones, bit for bit.
//
// Usage: matmul_check [instruction set]. Prints what differs and returns 1, or a line per set and 0.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "packed_matrix.h"
#include "tables.h"

namespace {

using namespace caudal;

class Random {
 public:
  uint32_t next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<uint32_t>(state_ >> 33);
  }
  float uniform() { return static_cast<float>(next()) / 2147483648.0F * 2.0F - 1.0F; }

 private:
  uint64_t state_ = 1;
};

enum class Weights { random, largest, tiny_scales, huge_scales };
enum class Inputs { random, extremes, zeros, tiny, outliers };
constexpr int kNumInputs = 5;

// Where the float16 fields of a stored block are.
std::vector<int> half_fields(Format format) {
  switch (format) {
    case Format::q4_0:
    case Format::q5_0:
    case Format::q8_0:
    case Format::iq4_nl:
    case Format::iq4_xs:
      return {0};
    case Format::q4_1:
    case Format::q5_1:
    case Format::q4_k:
    case Format::q5_k:
      return {0, 2};
    case Format::q6_k:
      return {208};
    case Format::q2_k:
      return {80, 82};
    case Format::q3_k:
      return {108};
    default:
      return {};
  }
}

uint16_t half_for(Weights kind, Random& random) {
  switch (kind) {
    case Weights::tiny_scales:
      return static_cast<uint16_t>(random.next() % 1024);  // denormals and zero
    case Weights::huge_scales:
      return static_cast<uint16_t>(0x7BFF - random.next() % 64);
    default:
      return static_cast<uint16_t>((random.next() % 2 << 15) | (0x2000 + random.next() % 0x1000));
  }
}

uint8_t exponent_for(Weights kind, Random& random) {
  switch (kind) {
    case Weights::tiny_scales:
      return static_cast<uint8_t>(random.next() % 4);  // the first two are denormal
    case Weights::huge_scales:
      return static_cast<uint8_t>(255 - random.next() % 16);
    default:
      return static_cast<uint8_t>(112 + random.next() % 32);
  }
}

std::vector<uint8_t> stored_matrix(Format format, int rows, int cols, Weights kind, Random& random) {
  const FormatInfo& info = format_info(format);
  std::vector<uint8_t> data(stored_bytes(format, rows, cols));
  const size_t block_bytes = static_cast<size_t>(info.block_bytes);
  for (uint8_t& byte : data) byte = kind == Weights::largest ? 0xFF : static_cast<uint8_t>(random.next());
  if (format == Format::q8_0 && kind == Weights::largest) {
    for (uint8_t& byte : data) byte = 0x80;  // -128, the largest magnitude
  }
  if (format == Format::f32) {
    for (size_t i = 0; i < data.size(); i += 4) {
      const float v = random.uniform();
      std::memcpy(&data[i], &v, 4);
    }
  } else if (info.block_elems == 1) {
    for (size_t i = 0; i < data.size(); i += 2) {
      const uint16_t half = half_for(kind, random);
      std::memcpy(&data[i], &half, 2);
    }
  }
  for (size_t block = 0; block < data.size(); block += block_bytes) {
    if (format == Format::mxfp4) data[block] = exponent_for(kind, random);
    for (const int field : half_fields(format)) {
      const uint16_t half = half_for(kind, random);
      std::memcpy(&data[block + static_cast<size_t>(field)], &half, 2);
    }
  }
  return data;
}

std::vector<float> inputs(int rows, int stride, int cols, Inputs kind, Random& random) {
  std::vector<float> x(static_cast<size_t>(rows) * static_cast<size_t>(stride), 0.0F);
  for (int t = 0; t < rows; ++t) {
    for (int k = 0; k < cols; ++k) {
      float v = random.uniform();
      if (kind == Inputs::extremes) v = random.next() % 3 == 0 ? -127.0F : 127.0F;
      if (kind == Inputs::zeros) v = k % 64 < 32 ? 0.0F : v;
      if (kind == Inputs::tiny) v *= 1e-38F;
      if (kind == Inputs::outliers && random.next() % 200 == 0) v *= 100.0F;
      x[static_cast<size_t>(t) * static_cast<size_t>(stride) + static_cast<size_t>(k)] = v;
    }
  }
  return x;
}

class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_((bytes + 127) / 64 * 64), data_(std::aligned_alloc(64, bytes_)) {
    std::memset(data_, 0xA5, bytes_);
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  uint8_t* get() const { return static_cast<uint8_t*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

struct Case {
  const PackedView* weights;
  ActivationKind kind;
  const float* x;
  int x_stride;
  int num_rows;
  const float* bias;
  bool accumulate;
};

std::vector<float> product(const MatmulKernels& kernels, const Case& c, int split) {
  const PackedView& w = *c.weights;
  const Buffer packed(kernels.activation_bytes(c.kind, w.cols, c.num_rows));
  const Buffer scratch(kernels.scratch_bytes(w.cols, c.num_rows));
  const ActivationView view{c.kind, c.num_rows, w.cols, packed.get()};
  kernels.pack_activations(view, c.x, static_cast<size_t>(c.x_stride), 0, c.num_rows / 2);
  kernels.pack_activations(view, c.x, static_cast<size_t>(c.x_stride), c.num_rows / 2, c.num_rows);
  const size_t stride = static_cast<size_t>(w.num_panels) * kPanelRows;
  std::vector<float> out(stride * static_cast<size_t>(c.num_rows), 0.25F);
  const MatmulArgs args{w, view, c.bias, out.data(), stride, c.accumulate};
  kernels.begin_operand(view, scratch.get());
  kernels.matmul(args, split, w.num_panels, scratch.get());
  kernels.matmul(args, 0, split, scratch.get());
  return out;
}

bool same(const std::vector<float>& a, const std::vector<float>& b, const char* isa, const char* what, const Case& c) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], 4) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) {
      std::printf("%s %s %s: rows %d cols %d T %d: element %zu is %.9g, expected %.9g\n", isa, what,
                  format_info(c.weights->format).name, c.weights->rows, c.weights->cols, c.num_rows, i,
                  static_cast<double>(a[i]), static_cast<double>(b[i]));
      return false;
    }
  }
  return true;
}

// Row t of the product alone has the bits of row t among others.
bool rows_alone(const MatmulKernels& kernels, const Case& c, const std::vector<float>& all, const char* isa) {
  const size_t stride = all.size() / static_cast<size_t>(c.num_rows);
  for (int t = 0; t < c.num_rows; t += 5) {
    Case one = c;
    one.num_rows = 1;
    one.x = c.x + static_cast<size_t>(t) * static_cast<size_t>(c.x_stride);
    const std::vector<float> alone = product(kernels, one, 1);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(t) * stride);
    if (!same(alone, std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(stride)), isa, "alone", one))
      return false;
  }
  return true;
}

bool dequantized_rows(const KernelTable& table, const KernelTable& scalar, const Case& c) {
  const size_t cols = static_cast<size_t>(c.weights->cols);
  std::vector<float> got(cols);
  std::vector<float> expected(cols);
  for (const int row : {0, 7, c.weights->rows - 1}) {
    table.matmul.dequantize_row(*c.weights, row, 1.5F, got.data());
    scalar.matmul.dequantize_row(*c.weights, row, 1.5F, expected.data());
    if (!same(got, expected, table.name, "dequantize_row", c)) return false;
  }
  return true;
}

int check_format(const KernelTable& table, const KernelTable& scalar, Format format, Random& random) {
  const FormatInfo& info = format_info(format);
  int failures = 0;
  const std::vector<int> all_cols = info.block_elems == 1    ? std::vector<int>{1, 67, 640}
                                    : info.block_elems == 32 ? std::vector<int>{32, 576, 1120}
                                                             : std::vector<int>{256, 1536};
  for (const int cols : all_cols) {
    for (int kind = 0; kind < 4; ++kind) {
      const int rows = 16 * (1 + kind) + kind * 5;
      const auto stored = stored_matrix(format, rows, cols, static_cast<Weights>(kind), random);
      PackedMatrix matrix(format, rows, cols);
      matrix.pack(stored.data(), 0, rows, 1);
      const int x_stride = (cols + 15) / 16 * 16;
      std::vector<float> bias(static_cast<size_t>(rows));
      for (float& b : bias) b = random.uniform();
      for (int t = 1; t <= 33; t += t < 9 ? 1 : 4) {
        const auto x = inputs(t, x_stride, cols, static_cast<Inputs>((t + kind) % kNumInputs), random);
        for (const ActivationKind activation : {info.activation, ActivationKind::f32}) {
          const Case c{&matrix.view(), activation, x.data(), x_stride, t, t % 3 == 0 ? nullptr : bias.data(),
                       t % 2 == 0};
          const auto expected = product(scalar.matmul, c, 0);
          const auto got = product(table.matmul, c, 1);
          failures += same(got, expected, table.name, activation == ActivationKind::f32 ? "exact" : "int8", c) ? 0 : 1;
          if (t > 10) failures += rows_alone(table.matmul, c, got, table.name) ? 0 : 1;
          if (t == 1) failures += dequantized_rows(table, scalar, c) ? 0 : 1;
          if (info.block_elems == 1) break;
        }
      }
    }
  }
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  const KernelTable& scalar = kernel_table("scalar");
  int failures = 0;
  for (const KernelTable& table : tables_to_check(argc, argv)) {
    Random random;
    int wrong = 0;
    for (int f = 0; f < kNumFormats; ++f) {
      wrong += check_format(table, scalar, static_cast<Format>(f), random);
    }
    std::printf("matmul %s: %s\n", table.name, wrong == 0 ? "same bits as scalar" : "DIFFERENT");
    failures += wrong;
  }
  return failures == 0 ? 0 : 1;
}

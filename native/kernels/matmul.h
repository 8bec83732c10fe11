// Products of activations with packed weight matrices. The contract; matmul_impl.h is the text.
//
// Layout R16: a panel holds 16 rows, interleaved by 4 elements of k ("quads"), so that an
// accumulator lane is an output row and no horizontal sum is ever needed. Panels follow each other;
// the last one is padded with zero rows. Quants first, then scales, block by block along k.
//
// Determinism: the value of out[t][r] depends on row r, on activation row t and on nothing else:
// not on the other rows of the step, the tile a column falls in, or the range of panels of a call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace caudal {

constexpr int kPanelRows = 16;

enum class Format : int32_t {
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q4_k,
  q5_k,
  q6_k,
  f16,
  bf16,
  f32,
  q2_k,
  q3_k,
  iq4_nl,
  iq4_xs,
  mxfp4
};
constexpr int kNumFormats = 16;

// How the left operand is kept: float32, int8 with a scale per 32, or int8 with a scale per 256; what the bytes of
// outliers cannot hold is kept as floats (matmul_activations.h).
enum class ActivationKind : int32_t { f32, q8_32, q8_256 };

struct FormatInfo {
  const char* name;           // as GGUF spells it: "Q4_K"
  int block_elems;            // elements of k in a stored block; K must be a multiple of it
  int block_bytes;            // bytes of a stored (GGUF) block
  int panel_block_bytes;      // bytes of 16 rows x block_elems in R16
  ActivationKind activation;  // what the fast kernel multiplies with
};

// A packed matrix; it does not own its bytes. `data` is 64-byte aligned.
struct PackedView {
  Format format;
  int rows;            // out features
  int cols;            // K, in features
  int num_panels;      // ceil(rows / 16)
  size_t panel_bytes;  // cols / block_elems * panel_block_bytes
  const uint8_t* data;
};

// The left operand of a product for T rows of K elements, packed into column tiles.
// One buffer of activation_bytes(kind, K, T) bytes, 64-byte aligned; its inner layout belongs to the
// instruction set that wrote it.
struct ActivationView {
  ActivationKind kind;
  int num_rows;  // T
  int cols;      // K
  uint8_t* data;
};

struct MatmulArgs {
  PackedView weights;
  ActivationView x;
  const float* bias;  // [rows] or null
  float* out;         // [T][out_stride]; columns up to num_panels * 16 are written, zeros past `rows`
  size_t out_stride;
  bool accumulate;  // out += product instead of out = product
};

struct MatmulKernels {
  // Bytes of an activation buffer, for any T up to the given one.
  size_t (*activation_bytes)(ActivationKind kind, int cols, int num_rows);
  // Writes rows [row_begin, row_end) of the operand from float32 rows. Rows are independent.
  void (*pack_activations)(const ActivationView& dst, const float* x, size_t x_stride, int row_begin, int row_end);
  // Bytes of scratch, 64-byte aligned, that one thread needs for operands of up to so many columns and rows.
  size_t (*scratch_bytes)(int max_cols, int max_rows);
  // Lists in scratch what matmul needs to know of an operand: before a thread's first call with it, once all is packed.
  void (*begin_operand)(const ActivationView& x, void* scratch);
  // Computes panels [panel_begin, panel_end) for all T rows, with the scratch of begin_operand. `x.kind` is the
  // format's own activation kind, or f32, which gives the exact product with the dequantised weights for every format.
  void (*matmul)(const MatmulArgs& args, int panel_begin, int panel_end, void* scratch);
  // out[0 .. cols) = row `row` of the matrix, dequantised, times scale.
  void (*dequantize_row)(const PackedView& weights, int row, float scale, float* out);
};

}  // namespace caudal

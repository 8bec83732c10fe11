#include "program.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "arrays.h"
#include "dispatch.h"
#include "machine_limits.h"
#include "packed_matrix.h"

namespace caudal {

namespace {

// A vector of floats, padded with zeros to a multiple of 16.
struct Vector {
  Mapping memory;
  size_t size;

  explicit Vector(const Array1<float>& values) : memory((values.shape(0) + 15) / 16 * 64), size(values.shape(0)) {
    std::memcpy(memory.data(), values.data(), size * sizeof(float));
  }
  const float* data() const { return memory.as<float>(); }
};

GluActivation glu_activation(const std::string& name) {
  if (name == "silu") return GluActivation::silu;
  if (name == "gelu_tanh") return GluActivation::gelu_tanh;
  if (name == "gelu") return GluActivation::gelu;
  throw std::invalid_argument("glu: unknown activation \"" + name + "\"; known: silu, gelu_tanh, gelu");
}

EmbeddingSource embedding_source(const std::string& name) {
  if (name == "tokens") return EmbeddingSource::tokens;
  if (name == "positions") return EmbeddingSource::positions;
  if (name == "first row") return EmbeddingSource::first_row;
  throw std::invalid_argument("embedding: unknown source \"" + name + "\"; known: tokens, positions, first row");
}

KVType kv_type(const std::string& name) {
  if (name == "f16") return KVType::f16;
  if (name == "f32") return KVType::f32;
  if (name == "int8") return KVType::int8;
  throw std::invalid_argument("KVCache: unknown type \"" + name + "\"; known: f16, f32, int8");
}

using KVShape = std::pair<int, std::pair<int, int>>;

KVCache* make_cache(KVCache* self, const std::vector<KVShape>& layers, const std::vector<int>& num_blocks,
                    int block_size, const std::string& type) {
  std::vector<KVLayerShape> shapes;
  for (const auto& [group, heads] : layers) shapes.push_back({group, heads.first, heads.second});
  return new (self) KVCache(std::move(shapes), num_blocks, block_size, kv_type(type));
}

void check_vector(const Vector* vector, size_t size, const char* what) {
  if (vector && vector->size != size) {
    throw std::invalid_argument(std::string(what) + ": expected a vector of " + std::to_string(size) + ", got " +
                                std::to_string(vector->size));
  }
}

std::vector<int> add_linear(Program& program, const std::vector<const PackedMatrix*>& matrices,
                            const std::vector<const Vector*>& biases, int x) {
  if (biases.size() != matrices.size()) throw std::invalid_argument("linear: one bias or None per matrix");
  std::vector<PackedView> views;
  std::vector<const float*> data;
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i] == nullptr) throw std::invalid_argument("linear: a matrix is None");
    views.push_back(matrices[i]->view());
    check_vector(biases[i], static_cast<size_t>(views.back().rows), "linear bias");
    data.push_back(biases[i] ? biases[i]->data() : nullptr);
  }
  return program.linear(views, data, x);
}

int add_rms_norm(Program& program, int x, const Vector* weight, int group, float eps) {
  check_vector(weight, static_cast<size_t>(group), "rms_norm weight");
  return program.rms_norm(x, weight ? weight->data() : nullptr, group, eps);
}

int add_layer_norm(Program& program, int x, const Vector& weight, const Vector& bias, float eps) {
  const auto width = static_cast<size_t>(program.width(x));
  check_vector(&weight, width, "layer_norm weight");
  check_vector(&bias, width, "layer_norm bias");
  return program.layer_norm(x, weight.data(), bias.data(), eps);
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> run(Program& program, Array1<int32_t> token_ids, Array1<int32_t> positions,
                                               Array1<int32_t> query_starts, Array1<int32_t> context_lens,
                                               const std::vector<Array2<int32_t>>& block_tables,
                                               const std::vector<Array1<int32_t>>& slots, Array1<int32_t> logit_rows) {
  Step step;
  step.num_tokens = static_cast<int>(token_ids.shape(0));
  step.num_rows = static_cast<int>(context_lens.shape(0));
  step.num_logits = static_cast<int>(logit_rows.shape(0));
  expect_length(positions, token_ids.shape(0), "positions");
  expect_length(query_starts, context_lens.shape(0) + 1, "query_starts");
  step.token_ids = token_ids.data();
  step.positions = positions.data();
  step.query_starts = query_starts.data();
  step.context_lens = context_lens.data();
  step.logit_rows = logit_rows.data();
  for (const auto& table : block_tables) {
    expect_length(table, context_lens.shape(0), "block_tables");
    step.block_tables.push_back(table.data());
    step.table_widths.push_back(static_cast<int>(table.shape(1)));
  }
  for (const auto& slot : slots) {
    expect_length(slot, token_ids.shape(0), "slot_mapping");
    step.slots.push_back(slot.data());
  }
  const float* logits = nullptr;
  {
    nb::gil_scoped_release unlocked;
    program.check(step);
    logits = program.run(step);
  }
  size_t shape[2] = {logit_rows.shape(0), static_cast<size_t>(program.logits_width())};
  int64_t strides[2] = {program.logits_stride(), 1};
  return nb::ndarray<nb::numpy, float, nb::ndim<2>>(const_cast<float*>(logits), 2, shape, nb::find(program), strides);
}

void bind_parts(nb::module_& m) {
  m.def("available_isas", &available_isas, "available_isas() -> list[str]: what can run here, best first.");
  m.def(
      "default_isa", [] { return std::string(default_table().name); },
      "default_isa() -> str: the best, or what CAUDAL_ISA names.");

  nb::class_<Vector>(m, "Vector", "A float32 vector that kernels read.")
      .def(nb::init<const Array1<float>&>(), nb::arg("values"));
  nb::class_<ThreadPool>(m, "ThreadPool", "Threads that run steps together; the caller is one of them.")
      .def(nb::init<int>(), nb::arg("num_threads"))
      .def_prop_ro("size", &ThreadPool::size);
  nb::class_<MachineLimits>(m, "MachineLimits", "What the machine can do just now, with all threads of a pool.")
      .def(
          "__init__",
          [](MachineLimits* self, const std::string& isa, ThreadPool& pool) {
            new (self) MachineLimits(kernel_table(isa), pool);
          },
          nb::arg("isa"), nb::arg("pool"), nb::keep_alive<1, 3>())
      .def("read_rate", &MachineLimits::read_rate, nb::call_guard<nb::gil_scoped_release>(),
           "Bytes per second of reading memory that no cache holds.")
      .def("byte_product_rate", &MachineLimits::byte_product_rate, nb::call_guard<nb::gil_scoped_release>(),
           "Products of bytes per second.");
  nb::class_<RopeTable>(m, "RopeTable", "A rotary embedding.")
      .def(
          "__init__",
          [](RopeTable* self, const std::vector<double>& inv_freq, int rotary, bool interleaved, float factor) {
            if (inv_freq.size() * 2 != static_cast<size_t>(rotary)) {
              throw std::invalid_argument("RopeTable: expected rotary_dims / 2 frequencies");
            }
            new (self) RopeTable{inv_freq, rotary, interleaved, factor};
          },
          nb::arg("inv_freq"), nb::arg("rotary_dims"), nb::arg("interleaved"), nb::arg("attention_factor"));
  nb::class_<KVCache>(m, "KVCache", "Paged keys and values: layers are (group, (num_kv_heads, head_size)).")
      .def("__init__", &make_cache, nb::arg("layers"), nb::arg("num_blocks"), nb::arg("block_size"), nb::arg("type"))
      .def("block_bytes", &KVCache::block_bytes, nb::arg("group"));
}

void bind_step(nb::module_& m) {
  nb::class_<Program>(m, "Program", "A forward pass recorded once and run every step; values are indices.")
      .def(
          "__init__",
          [](Program* self, const std::string& isa, ThreadPool& pool, const KVCache& cache, int max_tokens,
             bool exact) { new (self) Program(kernel_table(isa), pool, cache, max_tokens, exact); },
          nb::arg("isa"), nb::arg("pool"), nb::arg("cache"), nb::arg("max_tokens"), nb::arg("exact"),
          nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def(
          "embedding",
          [](Program& p, const PackedMatrix& matrix, const std::string& source, float scale) {
            return p.embedding(matrix.view(), embedding_source(source), scale);
          },
          nb::arg("matrix"), nb::arg("source"), nb::arg("scale"), nb::keep_alive<1, 2>())
      .def("linear", &add_linear, nb::arg("matrices"), nb::arg("biases").none(), nb::arg("x"))
      .def("rms_norm", &add_rms_norm, nb::arg("x"), nb::arg("weight").none(), nb::arg("group"), nb::arg("eps"))
      .def("layer_norm", &add_layer_norm, nb::arg("x"), nb::arg("weight"), nb::arg("bias"), nb::arg("eps"))
      .def("rope", &Program::rope, nb::arg("x"), nb::arg("table"), nb::arg("head_size"))
      .def(
          "attention",
          [](Program& p, int q, int k, int v, int layer, int num_heads, float scale, float softcap, int window,
             bool is_causal) {
            return p.attention(q, k, v, AttentionShape{layer, num_heads, scale, softcap, window, is_causal});
          },
          nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("layer"), nb::arg("num_heads"), nb::arg("scale"),
          nb::arg("softcap"), nb::arg("window"), nb::arg("is_causal"))
      .def(
          "glu",
          [](Program& p, int gate, int up, const std::string& activation) {
            return p.glu(gate, up, glu_activation(activation));
          },
          nb::arg("gate"), nb::arg("up"), nb::arg("activation"))
      .def(
          "activate",
          [](Program& p, int x, const std::string& activation) { return p.activate(x, glu_activation(activation)); },
          nb::arg("x"), nb::arg("activation"))
      .def("add", &Program::add, nb::arg("x"), nb::arg("y"))
      .def("softcap", &Program::softcap, nb::arg("x"), nb::arg("cap"))
      .def("logit_rows", &Program::logit_rows, nb::arg("x"))
      .def("sequence_means", &Program::sequence_means, nb::arg("x"))
      .def("finish", &Program::finish, nb::arg("logits"))
      .def("width", &Program::width, nb::arg("value"))
      .def_prop_ro("buffer_bytes", &Program::buffer_bytes)
      .def_prop_ro("maxima_at", &Program::maxima_at)
      .def("run", &run, nb::arg("token_ids"), nb::arg("positions"), nb::arg("query_starts"), nb::arg("context_lens"),
           nb::arg("block_tables"), nb::arg("slot_mapping"), nb::arg("logit_rows"),
           "run(...) -> float32[L, V], valid until the next run. Holds no GIL while it computes.");
}

}  // namespace

void bind_program(nb::module_& m) {
  bind_parts(m);
  bind_step(m);
}

}  // namespace caudal

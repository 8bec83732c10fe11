#include "sampler.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "arrays.h"
#include "dispatch.h"

namespace caudal {

namespace {

template <class T>
nb::ndarray<nb::numpy, T> owned_array(size_t rows, size_t columns) {
  auto* data = new T[rows * columns]();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  if (columns == 1) return nb::ndarray<nb::numpy, T>(data, {rows}, owner);
  return nb::ndarray<nb::numpy, T>(data, {rows, columns}, owner);
}

template <class T>
nb::ndarray<nb::numpy, T> owned_matrix(size_t rows, size_t columns, T fill) {
  auto* data = new T[rows * columns + 1];
  std::fill_n(data, rows * columns + 1, fill);
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::ndarray<nb::numpy, T>(data, {rows, columns}, owner);
}

void check_ids(const Array1<int32_t>& ids, int vocabulary, const char* name) {
  for (size_t i = 0; i < ids.shape(0); ++i) {
    if (ids.data()[i] < 0 || ids.data()[i] >= vocabulary) {
      throw std::invalid_argument(std::string(name) + ": token id " + std::to_string(ids.data()[i]) +
                                  " is outside the vocabulary of " + std::to_string(vocabulary));
    }
  }
}

void check_starts(const Array1<int32_t>& starts, size_t rows, size_t total, const char* name) {
  expect_length(starts, rows + 1, name);
  const int32_t* s = starts.data();
  bool rising = s[0] == 0 && static_cast<size_t>(s[rows]) == total;
  for (size_t i = 0; i < rows; ++i) rising = rising && s[i] <= s[i + 1];
  if (!rising) throw std::invalid_argument(std::string(name) + ": expected offsets that rise from 0 to the end");
}

// The masks of a SamplingBatch, if it has some.
struct Masks {
  std::optional<Array1<int32_t>> rows;
  std::optional<nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>> words;

  explicit Masks(nb::handle batch) {
    if (batch.attr("masks").is_none()) return;
    rows = nb::cast<Array1<int32_t>>(batch.attr("mask_rows"));
    words = nb::cast<nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>>(batch.attr("masks"));
  }

  void check(size_t n, int vocabulary) const {
    if (!rows) return;
    expect_length(*rows, n, "mask_rows");
    const auto wanted = static_cast<size_t>((vocabulary + 31) / 32);
    if (words->shape(1) != wanted) {
      throw std::invalid_argument("masks: rows of " + std::to_string(words->shape(1)) + " words; expected " +
                                  std::to_string(wanted) + " for a vocabulary of " + std::to_string(vocabulary));
    }
    for (size_t i = 0; i < n; ++i) {
      const int32_t row = rows->data()[i];
      if (row < -1 || (row >= 0 && static_cast<size_t>(row) >= words->shape(0))) {
        throw std::invalid_argument("mask_rows: mask " + std::to_string(row) + " of " +
                                    std::to_string(words->shape(0)) + "; expected -1 for none");
      }
    }
  }
};

// The fields of a SamplingBatch, by name, as arrays that stay alive while the call lasts.
struct Fields {
  Array1<float> temperature, top_p, min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty,
      bias_values;
  Array1<int32_t> top_k, history_starts, num_prompt, history_ids, bias_starts, bias_ids, num_logprobs, rows;
  Array1<uint64_t> seeds;
  Array1<int64_t> positions;

  explicit Fields(nb::handle b)
      : temperature(get<float>(b, "temperature")),
        top_p(get<float>(b, "top_p")),
        min_p(get<float>(b, "min_p")),
        typical_p(get<float>(b, "typical_p")),
        repetition_penalty(get<float>(b, "repetition_penalty")),
        presence_penalty(get<float>(b, "presence_penalty")),
        frequency_penalty(get<float>(b, "frequency_penalty")),
        bias_values(get<float>(b, "bias_values")),
        top_k(get<int32_t>(b, "top_k")),
        history_starts(get<int32_t>(b, "history_starts")),
        num_prompt(get<int32_t>(b, "num_prompt")),
        history_ids(get<int32_t>(b, "history_ids")),
        bias_starts(get<int32_t>(b, "bias_starts")),
        bias_ids(get<int32_t>(b, "bias_ids")),
        num_logprobs(get<int32_t>(b, "num_logprobs")),
        rows(get<int32_t>(b, "rows")),
        seeds(get<uint64_t>(b, "seeds")),
        positions(get<int64_t>(b, "positions")) {}

  template <class T>
  static Array1<T> get(nb::handle batch, const char* name) {
    return nb::cast<Array1<T>>(batch.attr(name));
  }

  void check(size_t n, int vocabulary, size_t num_logit_rows) const {
    for (const auto* f :
         {&temperature, &top_p, &min_p, &typical_p, &repetition_penalty, &presence_penalty, &frequency_penalty}) {
      expect_length(*f, n, "sampling parameter");
    }
    for (const auto* f : {&top_k, &num_prompt, &num_logprobs, &rows}) expect_length(*f, n, "sampling parameter");
    expect_length(seeds, n, "seeds");
    expect_length(positions, n, "positions");
    expect_length(bias_values, bias_ids.shape(0), "bias_values");
    check_starts(history_starts, n, history_ids.shape(0), "history_starts");
    check_starts(bias_starts, n, bias_ids.shape(0), "bias_starts");
    check_ids(history_ids, vocabulary, "history_ids");
    check_ids(bias_ids, vocabulary, "bias_ids");
    for (size_t i = 0; i < n; ++i) {
      if (rows.data()[i] < 0 || static_cast<size_t>(rows.data()[i]) >= num_logit_rows) {
        throw std::invalid_argument("rows: row " + std::to_string(rows.data()[i]) + " of " +
                                    std::to_string(num_logit_rows));
      }
    }
  }
};

nb::tuple sample(Sampler& sampler, nb::ndarray<const float, nb::ndim<2>, nb::device::cpu> logits, nb::handle batch,
                 int maxima_at) {
  Fields f(batch);
  const Masks masks(batch);
  const size_t n = f.rows.shape(0);
  const int vocabulary = static_cast<int>(logits.shape(1));
  if (vocabulary < 1 || logits.stride(1) != 1) throw std::invalid_argument("logits: expected rows of adjacent floats");
  const int num_blocks = (vocabulary + kBlockLogits - 1) / kBlockLogits;
  if (maxima_at != 0 && (maxima_at < vocabulary || maxima_at + num_blocks > logits.stride(0))) {
    throw std::invalid_argument("maxima_at: " + std::to_string(maxima_at) +
                                " is not behind the logits of a row; expected " + "0 for none, or from " +
                                std::to_string(vocabulary) + " on with room for " + std::to_string(num_blocks) +
                                " floats in " + std::to_string(logits.stride(0)));
  }
  f.check(n, vocabulary, logits.shape(0));
  masks.check(n, vocabulary);
  int most = 0;
  for (size_t i = 0; i < n; ++i) most = std::max(most, f.num_logprobs.data()[i]);
  auto token_ids = owned_array<int32_t>(n, 1);
  auto logprobs = owned_array<float>(n, 1);
  auto ranks = owned_array<int32_t>(n, 1);
  auto top_ids = owned_matrix<int32_t>(n, static_cast<size_t>(most), -1);
  auto top_logprobs = owned_matrix<float>(n, static_cast<size_t>(most), -HUGE_VALF);
  SamplingArgs args{static_cast<int>(n),
                    vocabulary,
                    logits.data(),
                    static_cast<size_t>(logits.stride(0)),
                    static_cast<size_t>(maxima_at),
                    f.rows.data(),
                    f.temperature.data(),
                    f.top_k.data(),
                    f.top_p.data(),
                    f.min_p.data(),
                    f.typical_p.data(),
                    f.repetition_penalty.data(),
                    f.presence_penalty.data(),
                    f.frequency_penalty.data(),
                    f.seeds.data(),
                    f.positions.data(),
                    f.history_starts.data(),
                    f.num_prompt.data(),
                    f.history_ids.data(),
                    f.bias_starts.data(),
                    f.bias_ids.data(),
                    f.bias_values.data(),
                    f.num_logprobs.data(),
                    most,
                    masks.rows ? masks.rows->data() : nullptr,
                    masks.words ? masks.words->data() : nullptr,
                    masks.words ? masks.words->shape(1) : 0};
  SamplingResult result{token_ids.data(), logprobs.data(), ranks.data(), top_ids.data(), top_logprobs.data()};
  {
    nb::gil_scoped_release unlocked;
    sampler.sample(args, result);
  }
  return nb::make_tuple(token_ids, logprobs, ranks, top_ids, top_logprobs);
}

}  // namespace

void bind_sampler(nb::module_& m) {
  nb::class_<Sampler>(m, "Sampler", "Chooses tokens; a row's choice depends on that row alone.")
      .def(
          "__init__",
          [](Sampler* self, const std::string& isa, ThreadPool& pool) { new (self) Sampler(kernel_table(isa), pool); },
          nb::arg("isa"), nb::arg("pool"), nb::keep_alive<1, 3>())
      .def("sample", &sample, nb::arg("logits"), nb::arg("batch"), nb::arg("maxima_at") = 0,
           "sample(logits: float32[N, V], batch: SamplingBatch) -> (token_ids, logprobs, ranks, top_ids, top_logprobs)")
      .def_static("uniform", &Sampler::uniform, nb::arg("seed"), nb::arg("position"),
                  "uniform(seed, position) -> float in [0, 1): the random number of a position.");
}

}  // namespace caudal

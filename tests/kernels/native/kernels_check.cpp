// Compares attention and elementwise kernels of every instruction set that runs here with the scalar ones, and checks
// that a query's result has the same bits alone and among others. Prints what differs; returns the number of failures.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kv_cache.h"
#include "memory.h"
#include "tables.h"

namespace {

using caudal::AttentionArgs;
using caudal::KernelTable;
using caudal::KVPages;

int failures = 0;
std::mt19937 generator(7);

std::vector<float> random_floats(size_t n, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& v : values) v = normal(generator);
  return values;
}

void expect_close(const std::string& what, const std::vector<float>& found, const std::vector<float>& expected,
                  float tolerance) {
  float largest = 1e-6f, difference = 0.0f;
  for (size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, std::fabs(expected[i]));
    difference = std::max(difference, std::fabs(found[i] - expected[i]));
    if (std::isnan(found[i])) difference = INFINITY;
  }
  if (difference > tolerance * largest) {
    std::printf("FAIL %s: relative difference %g, at most %g allowed\n", what.c_str(), difference / largest, tolerance);
    ++failures;
  }
}

void expect_same(const std::string& what, const float* a, const float* b, size_t n) {
  if (std::memcmp(a, b, n * sizeof(float)) != 0) {
    std::printf("FAIL %s: bits differ\n", what.c_str());
    ++failures;
  }
}

struct Shape {
  int head_size, num_kv_heads, group, block_size, context, num_queries, window;
  float softcap;
  caudal::KVType type;
  bool is_causal = true;
  int queries_behind = 0;  // tokens of the context that come after the last query, where it is not causal

  int first_position() const { return context - num_queries - (is_causal ? 0 : queries_behind); }
  bool sees(int position, int token) const {
    return (!is_causal || token <= position) && (window == 0 || std::abs(position - token) < window);
  }
};

struct Case {
  Shape shape;
  std::unique_ptr<caudal::KVCache> cache;
  KVPages pages{};
  std::vector<int32_t> table;
  std::vector<float> q;

  explicit Case(const Shape& s) : shape(s) {
    const int blocks = (s.context + s.block_size - 1) / s.block_size;
    cache = std::make_unique<caudal::KVCache>(std::vector<caudal::KVLayerShape>{{0, s.num_kv_heads, s.head_size}},
                                              std::vector<int>{blocks}, s.block_size, s.type);
    pages = cache->pages(0);
    for (int b = 0; b < blocks; ++b) table.push_back(b ^ (blocks > 1 && (b | 1) < blocks ? 1 : 0));
    q = random_floats(static_cast<size_t>(s.num_queries) * q_stride());
  }

  size_t q_stride() const { return static_cast<size_t>(shape.num_kv_heads * shape.group * shape.head_size); }

  void fill(const KernelTable& kernels, const std::vector<float>& k, const std::vector<float>& v) const {
    std::vector<int32_t> slots;
    for (int t = 0; t < shape.context; ++t) {
      slots.push_back(table[static_cast<size_t>(t / shape.block_size)] * shape.block_size + t % shape.block_size);
    }
    const auto stride = static_cast<size_t>(shape.num_kv_heads * shape.head_size);
    caudal::KVWriteArgs args{pages, k.data(), v.data(), stride, stride, slots.data()};
    kernels.attention.write_kv(args, 0, shape.context);
  }

  AttentionArgs args(int first, int count, std::vector<float>& out) const {
    AttentionArgs a{};
    a.pages = pages;
    a.block_table = table.data();
    a.q = q.data() + static_cast<size_t>(first) * q_stride();
    a.out = out.data();
    a.q_stride = a.out_stride = q_stride();
    a.num_heads = shape.num_kv_heads * shape.group;
    a.first_position = shape.first_position() + first;
    a.num_queries = count;
    a.context_len = shape.is_causal ? 0 : shape.context;
    a.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_size));
    a.softcap = shape.softcap;
    a.window = shape.window;
    return a;
  }

  std::vector<float> attend(const KernelTable& kernels, int first, int count) const {
    std::vector<float> out(static_cast<size_t>(count) * q_stride(), -1.0f);
    std::vector<uint8_t> scratch(kernels.attention.scratch_bytes(shape.head_size));
    AttentionArgs a = args(first, count, out);
    for (a.kv_head = 0; a.kv_head < shape.num_kv_heads; ++a.kv_head) kernels.attention.attend(a, scratch.data());
    return out;
  }

  // The same, each task attending to `parts_per_task` parts, the last task first.
  std::vector<float> attend_in_parts(const KernelTable& kernels, int first, int count, int parts_per_task) const {
    std::vector<float> out(static_cast<size_t>(count) * q_stride(), -1.0f);
    std::vector<uint8_t> scratch(kernels.attention.scratch_bytes(shape.head_size));
    AttentionArgs a = args(first, count, out);
    const int last_seen = shape.is_causal ? a.first_position + count - 1 : shape.context - 1;
    const int num_parts = last_seen / caudal::kPartTokens + 1;
    const auto slot = static_cast<size_t>(a.num_heads * (shape.head_size + 2));
    std::vector<float> results(slot * static_cast<size_t>(num_parts * count), NAN);
    a.results = {results.data(), slot, num_parts};
    for (int begin = (num_parts - 1) / parts_per_task * parts_per_task; begin >= 0; begin -= parts_per_task) {
      a.part_begin = begin;
      a.part_end = std::min(begin + parts_per_task, num_parts);
      for (a.kv_head = 0; a.kv_head < shape.num_kv_heads; ++a.kv_head) kernels.attention.attend(a, scratch.data());
    }
    for (int i = 0; i < count; ++i) {
      a.results.data = results.data() + static_cast<size_t>(i * num_parts) * slot;
      kernels.attention.merge({a.results, a.num_heads, shape.head_size, &out[static_cast<size_t>(i) * q_stride()]});
    }
    return out;
  }

  // Attention as a textbook has it, in double precision, from keys and values that no cache has rounded.
  std::vector<float> textbook(const std::vector<float>& k, const std::vector<float>& v) const {
    const auto d = static_cast<size_t>(shape.head_size), kv_stride = static_cast<size_t>(shape.num_kv_heads) * d;
    std::vector<float> out;
    for (int i = 0; i < shape.num_queries; ++i) {
      const int position = shape.first_position() + i;
      for (int head = 0; head < shape.num_kv_heads * shape.group; ++head) {
        const float* query = &q[static_cast<size_t>(i) * q_stride() + static_cast<size_t>(head) * d];
        std::vector<double> sums(d, 0.0);
        double total = 0.0;
        for (int t = 0; t < shape.context; ++t) {
          if (!shape.sees(position, t)) continue;
          const size_t row = static_cast<size_t>(t) * kv_stride + static_cast<size_t>(head / shape.group) * d;
          double score = 0.0;
          for (size_t j = 0; j < d; ++j) score += static_cast<double>(query[j]) * static_cast<double>(k[row + j]);
          score /= std::sqrt(static_cast<double>(d));
          if (shape.softcap > 0.0f) score = shape.softcap * std::tanh(score / shape.softcap);
          const double weight = std::exp(score);  // scores are small here
          total += weight;
          for (size_t j = 0; j < d; ++j) sums[j] += weight * static_cast<double>(v[row + j]);
        }
        for (double sum : sums) out.push_back(static_cast<float>(sum / total));
      }
    }
    return out;
  }
};

// To the eleven bits of a normal float16.
float rounded_to_half(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11);
}

// Keys or values as an int8 cache keeps them, with a scale for every `scale_dims` dimensions.
std::vector<float> kept(std::vector<float> x, caudal::KVType type, int scale_dims) {
  if (type != caudal::KVType::int8) return x;
  for (size_t begin = 0; begin < x.size(); begin += static_cast<size_t>(scale_dims)) {
    float largest = 0.0f;
    for (int i = 0; i < scale_dims; ++i) largest = std::max(largest, std::fabs(x[begin + static_cast<size_t>(i)]));
    const float scale = rounded_to_half(largest / 127.0f);
    for (int i = 0; i < scale_dims && largest > 0.0f; ++i) {
      float& value = x[begin + static_cast<size_t>(i)];
      value = std::clamp(std::nearbyint(value * (1.0f / scale)), -127.0f, 127.0f) * scale;
    }
  }
  return x;
}

void check_attention(const KernelTable& kernels, const KernelTable& oracle, const Shape& s) {
  const std::string name = std::string(kernels.name) + " attention d=" + std::to_string(s.head_size) +
                           " group=" + std::to_string(s.group) + " context=" + std::to_string(s.context) +
                           " queries=" + std::to_string(s.num_queries) + " window=" + std::to_string(s.window) +
                           " KV type " + std::to_string(static_cast<int>(s.type)) + (s.is_causal ? "" : " both ways");
  Case c(s), expected_case(s);
  expected_case.q = c.q;
  const auto size = static_cast<size_t>(s.context * s.num_kv_heads * s.head_size);
  std::vector<float> k = random_floats(size), v = random_floats(size);
  v[0] = 1e9f;  // becomes the largest float16, not infinity
  k[1] = NAN;   // becomes finite
  if (s.window > 0 && s.context > s.window + s.num_queries) c.fill(kernels, k, v);
  v[0] = 0.5f;
  k[1] = 0.5f;
  for (int i = 0; i < s.head_size; ++i) v[static_cast<size_t>(i)] = k[static_cast<size_t>(i)] = 0.0f;  // has no scale
  c.fill(kernels, k, v);
  expected_case.fill(oracle, k, v);
  if (std::memcmp(c.pages.base, expected_case.pages.base, c.cache->block_bytes(0) * c.table.size()) != 0) {
    std::printf("FAIL %s KV write: bytes differ\n", name.c_str());
    ++failures;
  }
  std::vector<float> found = c.attend(kernels, 0, s.num_queries);
  const std::vector<float> expected = expected_case.attend(oracle, 0, s.num_queries);
  expect_same(name, found.data(), expected.data(), found.size());
  expect_close(name + " against the textbook", found,
               c.textbook(kept(k, s.type, caudal::kKeyScaleDims), kept(v, s.type, s.head_size)),
               s.type == caudal::KVType::f16 ? 1e-3f : 5e-6f);
  for (int i = 0; i < s.num_queries; i += 3) {
    std::vector<float> alone = c.attend(kernels, i, 1);
    expect_same(name + " alone", alone.data(), found.data() + static_cast<size_t>(i) * c.q_stride(), c.q_stride());
  }
  for (int parts_per_task : {1, 2}) {
    const std::vector<float> shared = c.attend_in_parts(kernels, 0, s.num_queries, parts_per_task);
    expect_same(name + " in parts", shared.data(), found.data(), found.size());
  }
}

void check_norm_and_rope(const KernelTable& kernels, const KernelTable& oracle) {
  const std::string isa = kernels.name;
  for (auto [n, group] : {std::pair{64, 64}, {576, 576}, {256, 32}, {48, 40}}) {
    std::vector<float> x = random_floats(static_cast<size_t>(n), 3.0f), w = random_floats(static_cast<size_t>(n));
    for (int i = group; i < n && group % 16; ++i) x[static_cast<size_t>(i)] = w[static_cast<size_t>(i)] = 0.0f;
    std::vector<float> a(x.size()), b(x.size());
    for (const float* weight : {static_cast<const float*>(w.data()), static_cast<const float*>(nullptr)}) {
      kernels.elementwise.rms_norm(x.data(), weight, a.data(), n, group, 1e-6f);
      oracle.elementwise.rms_norm(x.data(), weight, b.data(), n, group, 1e-6f);
      expect_close(isa + " rms_norm", a, b, 1e-5f);
    }
  }
  for (int width : {1, 16, 40, 384}) {
    const auto padded = static_cast<size_t>((width + 15) / 16 * 16);
    std::vector<float> x = random_floats(padded, 3.0f), w = random_floats(padded), bias = random_floats(padded);
    std::vector<float> a(padded, 7.0f), b(padded, 8.0f), c(padded, 0.0f);
    kernels.elementwise.layer_norm(x.data(), w.data(), bias.data(), a.data(), width, 1e-6f);
    oracle.elementwise.layer_norm(x.data(), w.data(), bias.data(), b.data(), width, 1e-6f);
    expect_same(isa + " layer_norm", a.data(), b.data(), padded);
    double mean = 0.0, variance = 0.0;
    for (int i = 0; i < width; ++i) mean += static_cast<double>(x[static_cast<size_t>(i)]) / width;
    for (int i = 0; i < width; ++i)
      variance += std::pow(static_cast<double>(x[static_cast<size_t>(i)]) - mean, 2) / width;
    for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
      const double normed = (static_cast<double>(x[i]) - mean) / std::sqrt(variance + 1e-6);
      c[i] = static_cast<float>(normed * static_cast<double>(w[i]) + static_cast<double>(bias[i]));
    }
    expect_close(isa + " layer_norm against the textbook", a, c, 1e-5f);
  }
  for (int rotary : {8, 32, 64}) {
    for (bool interleaved : {false, true}) {
      std::vector<float> a = random_floats(3 * 64), b = a, angle = random_floats(32), cos(32), sin(32);
      for (size_t i = 0; i < 32; ++i) cos[i] = std::cos(angle[i]), sin[i] = std::sin(angle[i]);
      kernels.elementwise.rope(a.data(), cos.data(), sin.data(), 3, 64, rotary, interleaved);
      oracle.elementwise.rope(b.data(), cos.data(), sin.data(), 3, 64, rotary, interleaved);
      expect_close(isa + " rope", a, b, 1e-6f);
    }
  }
}

void check_activations(const KernelTable& kernels, const KernelTable& oracle) {
  const std::string isa = kernels.name;
  std::vector<float> x = random_floats(1600, 20.0f), y = random_floats(1600), a(1600), b(1600);
  x[0] = 1e30f, x[1] = -1e30f, x[2] = 0.0f;
  for (auto activation : {caudal::GluActivation::silu, caudal::GluActivation::gelu_tanh, caudal::GluActivation::gelu}) {
    kernels.elementwise.glu(x.data() + 16, y.data() + 16, a.data() + 16, 1584, activation);
    oracle.elementwise.glu(x.data() + 16, y.data() + 16, b.data() + 16, 1584, activation);
    expect_close(isa + " glu", a, b, 1e-6f);
    const std::vector<float> ones(1600, 1.0f);
    kernels.elementwise.activate(x.data(), a.data(), 1600, activation);
    kernels.elementwise.glu(x.data(), ones.data(), b.data(), 1600, activation);
    expect_same(isa + " activate", a.data(), b.data(), 1600);
  }
  kernels.elementwise.softcap(x.data(), a.data(), 1600, 30.0f);
  oracle.elementwise.softcap(x.data(), b.data(), 1600, 30.0f);
  expect_close(isa + " softcap", a, b, 1e-6f);
  for (size_t i = 0; i < 1600; ++i) b[i] = 30.0f * std::tanh(x[i] / 30.0f);
  expect_close(isa + " softcap against libm", a, b, 1e-6f);
  std::vector<float> hole(32, 1.0f);
  hole[3] = hole[20] = std::nanf("");
  kernels.elementwise.softcap(hole.data(), hole.data(), 32, 30.0f);
  for (size_t i = 0; i < hole.size(); ++i) {
    if (std::isnan(hole[i]) != (i == 3 || i == 20)) {
      std::printf("%s softcap: element %zu is %g\n", isa.c_str(), i, static_cast<double>(hole[i]));
      ++failures;
    }
  }
  for (int n : {1, 7, 16, 259, 1590}) {
    std::vector<float> found(8, 0.0f), expected_maxima(8, 0.0f);
    float largest = kernels.sampling.max_values(x.data() + 3, n, found.data());
    expect_close(isa + " max", {largest}, {oracle.sampling.max_values(x.data() + 3, n, expected_maxima.data())}, 0.0f);
    expect_close(isa + " maxima of blocks", found, expected_maxima, 0.0f);
    double expected = 0.0;
    for (int i = 0; i < n; ++i) expected += std::exp(static_cast<double>(x[static_cast<size_t>(i) + 3] - largest));
    auto sum = static_cast<float>(kernels.sampling.exp_sum(x.data() + 3, n, 1.0f, largest));
    expect_close(isa + " exp_sum", {sum}, {static_cast<float>(expected)}, 1e-6f);
  }
}

void expect_equal(const std::string& what, int64_t found, int64_t expected) {
  if (found != expected) {
    std::printf("FAIL %s: %lld, expected %lld\n", what.c_str(), static_cast<long long>(found),
                static_cast<long long>(expected));
    ++failures;
  }
}

// Buckets have the same bits everywhere, whichever of them are filled at once; they and the tail hold every logit once,
// and NaN weighs nothing.
void check_histogram(const KernelTable& kernels, const KernelTable& oracle, int n) {
  const std::string isa = kernels.name;
  constexpr int kBuckets = 37;
  constexpr float kPerLogit = 4.1f, kScale = 0.7f;
  std::vector<float> x = random_floats(static_cast<size_t>(n), 3.0f);
  float best = -INFINITY;
  for (float v : x) best = std::max(best, v);
  for (size_t i = 5; i < x.size(); i += 17) x[i] = i % 2 ? NAN : -INFINITY;
  struct Filled {
    std::vector<double> masses = std::vector<double>(kBuckets), moments = masses;
    std::vector<int32_t> counts = std::vector<int32_t>(kBuckets);
    caudal::Tail tail{};
  };
  const auto fill = [&](const KernelTable& table, bool moments, bool counts, const std::vector<int>& ends) {
    Filled f;
    int first = 0;
    for (int end : ends) {
      f.tail = table.sampling.exp_histogram(x.data(), n, kScale, best,
                                            {kPerLogit, first, end, f.masses.data(),
                                             moments ? f.moments.data() : nullptr, counts ? f.counts.data() : nullptr});
      first = end;
    }
    return f;
  };
  const Filled expected = fill(oracle, true, true, {kBuckets}), none;
  for (const std::vector<int>& ends : {std::vector{kBuckets}, std::vector{1, 2, 20, kBuckets}}) {
    for (int options = 0; options < 4; ++options) {
      const Filled found = fill(kernels, options & 1, options & 2, ends);
      expect_equal(isa + " histogram masses", found.masses == expected.masses, true);
      expect_equal(isa + " histogram moments", found.moments == (options & 1 ? expected : none).moments, true);
      expect_equal(isa + " histogram counts", found.counts == (options & 2 ? expected : none).counts, true);
    }
  }
  for (int end : {1, 3, kBuckets}) {
    double masses = 0.0, mass_behind = 0.0, moment_behind = 0.0, whole_moment = 0.0;
    int64_t count = 0;
    for (float v : x) {
      const double y = static_cast<double>(v - best) * static_cast<double>(kScale), weight = std::exp(y);
      const bool is_inside = (best - v) * kPerLogit < static_cast<float>(end);
      count += is_inside ? 1 : 0;
      if (is_inside) masses += weight;
      if (weight > 0.0) whole_moment += weight * y;
      if (!is_inside && weight > 0.0) mass_behind += weight, moment_behind += weight * y;
    }
    const Filled found = fill(kernels, true, true, {end});
    expect_close(isa + " histogram's whole moment", {static_cast<float>(fill(kernels, false, true, {end}).tail.moment)},
                 {static_cast<float>(whole_moment)}, 1e-5f);
    int64_t counted = 0;
    double mass = 0.0;
    for (int32_t c : found.counts) counted += c;
    for (double m : found.masses) mass += m;
    expect_equal(isa + " histogram's logits", counted, count);
    expect_close(isa + " histogram's mass", {static_cast<float>(mass)}, {static_cast<float>(masses)}, 1e-5f);
    expect_close(isa + " histogram's tail",
                 {static_cast<float>(found.tail.mass), static_cast<float>(found.tail.moment)},
                 {static_cast<float>(mass_behind), static_cast<float>(moment_behind)}, 1e-5f);
  }
}

void check_searches(const KernelTable& kernels, int n) {
  const std::string isa = kernels.name;
  std::vector<float> x = random_floats(static_cast<size_t>(n));
  for (size_t i = 3; i < x.size(); i += 7) x[i] = i % 2 ? NAN : 0.5f;
  std::vector<int32_t> expected, found(x.size());
  int64_t above = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] >= 0.5f && x[i] <= 0.9f) expected.push_back(static_cast<int32_t>(i));
    above += x[i] > 0.5f ? 1 : 0;
  }
  found.resize(static_cast<size_t>(kernels.sampling.find_in_range(x.data(), n, 0.5f, 0.9f, found.data())));
  expect_equal(isa + " find_in_range", found == expected, true);
  expect_equal(isa + " count_above", kernels.sampling.count_above(x.data(), n, 0.5f), above);
}

// The kernels that measure the machine do all that they are asked to: every byte is read, every product counted.
void check_limits(const KernelTable& kernels, const KernelTable& oracle) {
  alignas(64) static uint8_t bytes[1024];
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator());
  for (size_t at = 0; at < sizeof(bytes); ++at) {
    const uint64_t before = kernels.limits.read(bytes, sizeof(bytes));
    bytes[at] ^= 1;
    const uint64_t after = kernels.limits.read(bytes, sizeof(bytes));
    if (before == after || after != oracle.limits.read(bytes, sizeof(bytes))) {
      std::printf("FAIL %s: read does not depend on byte %zu\n", kernels.name, at);
      ++failures;
    }
  }
  const int64_t once = kernels.limits.multiply_bytes(1);
  if (once <= 0 || kernels.limits.multiply_bytes(3) != 3 * once) {
    std::printf("FAIL %s: multiply_bytes counts wrongly\n", kernels.name);
    ++failures;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const KernelTable& oracle = caudal::kernel_table("scalar");
  for (const KernelTable& kernels : caudal::tables_to_check(argc, argv)) {
    for (caudal::KVType type : {caudal::KVType::f16, caudal::KVType::f32, caudal::KVType::int8}) {
      check_attention(kernels, oracle, {64, 3, 3, 32, 70, 1, 0, 0.0f, type});
      check_attention(kernels, oracle, {128, 2, 6, 32, 33, 33, 0, 0.0f, type});
      check_attention(kernels, oracle, {256, 1, 4, 16, 100, 7, 20, 0.0f, type});
      check_attention(kernels, oracle, {16, 2, 1, 16, 50, 50, 7, 50.0f, type});
      check_attention(kernels, oracle, {96, 1, 13, 32, 40, 5, 64, 30.0f, type});
      check_attention(kernels, oracle, {32, 2, 1, 32, 40, 40, 0, 0.0f, type, false});
      check_attention(kernels, oracle, {64, 2, 3, 32, 600, 9, 0, 0.0f, type, false, 400});
      // Windows both ways: in a whole sequence, wider than it, over the end of a part, and queries beside each other
      // that see different parts.
      check_attention(kernels, oracle, {32, 2, 1, 32, 40, 40, 7, 0.0f, type, false});
      check_attention(kernels, oracle, {16, 1, 2, 16, 50, 50, 1000, 0.0f, type, false});
      check_attention(kernels, oracle, {64, 1, 3, 32, 600, 9, 100, 0.0f, type, false, 300});
      check_attention(kernels, oracle, {32, 1, 2, 16, 700, 20, 8, 20.0f, type, false, 180});
      // Parts: whole ones, a last one of one token, windows that begin inside and at the end of one.
      check_attention(kernels, oracle, {64, 3, 3, 32, 768, 2, 0, 0.0f, type});
      check_attention(kernels, oracle, {32, 2, 4, 32, 513, 3, 0, 20.0f, type});
      check_attention(kernels, oracle, {48, 1, 7, 16, 1000, 40, 300, 0.0f, type});
      check_attention(kernels, oracle, {64, 1, 2, 32, 800, 17, 8, 0.0f, type});
    }
    check_norm_and_rope(kernels, oracle);
    check_activations(kernels, oracle);
    check_limits(kernels, oracle);
    for (int n : {1, 15, 16, 33, 300, 5000}) {
      check_histogram(kernels, oracle, n);
      check_searches(kernels, n);
    }
    std::printf("%s checked\n", kernels.name);
  }
  return failures;
}

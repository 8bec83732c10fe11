#include "program.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "attention_plan.h"
#include "formats/format_info.h"

namespace caudal {

namespace {

// Weights per task: enough to hide the claim, few enough that the last task is short.
constexpr size_t kTaskBytes = 48 * 1024;
// Tasks that a stage by rows is cut into: more than one, so that a thread that is late finds its rows taken; each large
// enough to be worth the wait at the stage's end.
constexpr int kRowTasksPerThread = 4;
constexpr int64_t kRowTaskElems = 4096;
// Values from this size on lie in huge pages: every row of a product's results is in another small page. Others would
// only waste some.
constexpr size_t kHugeFromBytes = size_t{8} << 20;

}  // namespace

Program::Program(const KernelTable& kernels, ThreadPool& pool, const KVCache& cache, int max_tokens, bool exact)
    : kernels_(kernels), pool_(pool), cache_(cache), max_tokens_(max_tokens), exact_(exact) {}

int Program::make_value(int width, Domain domain) {
  auto v = std::make_unique<Value>();
  v->width = width;
  v->stride = round_up_16(width);
  v->domain = domain;
  values_.push_back(std::move(v));
  return static_cast<int>(values_.size()) - 1;
}

template <class P>
P& Program::append(std::vector<int> reads, std::vector<int> writes) {
  auto owned = std::make_unique<P>();
  P& phase = *owned;
  int index = static_cast<int>(phases_.size());
  phases_.push_back(std::move(owned));
  for (int r : reads) value(r).last_phase = index;
  for (int w : writes) value(w).first_phase = value(w).last_phase = index;
  int elems = 0;
  for (int v : writes.empty() ? reads : writes) elems += value(v).width;
  phase_elems_.push_back(elems);
  return phase;
}

void Program::expect_width(int index, int width, const char* what) const {
  if (value(index).width != width) {
    throw std::invalid_argument(std::string(what) + ": expected " + std::to_string(width) + " columns, got " +
                                std::to_string(value(index).width));
  }
}

int Program::embedding(const PackedView& matrix, EmbeddingSource source, float scale) {
  int out = make_value(matrix.cols, Domain::tokens);
  if (source == EmbeddingSource::tokens) vocabulary_ = matrix.rows;
  if (source == EmbeddingSource::positions) num_positions_ = matrix.rows;
  auto& phase = append<EmbeddingPhase>({}, {out});
  phase.kernels = &kernels_;
  phase.matrix = matrix;
  phase.source = source;
  phase.scale = scale;
  phase.out = &value(out);
  return out;
}

const PackPhase* Program::pack(int x, ActivationKind kind) {
  const auto k = static_cast<size_t>(kind);
  if (packed_value_[k] != x) {
    packed_value_[k] = x;
    pack_bytes_[k] = std::max(pack_bytes_[k], kernels_.matmul.activation_bytes(kind, value(x).width, max_tokens_));
    auto& phase = append<PackPhase>({x}, {});
    phase.kernels = &kernels_;
    phase.x = &value(x);
    phase.kind = kind;
    phase.buffer = &pack_buffers_[k];
    packers_[k] = &phase;
  }
  return packers_[k];
}

std::vector<int> Program::linear(const std::vector<PackedView>& matrices, const std::vector<const float*>& biases,
                                 int x) {
  std::vector<int> outs;
  std::vector<LinearPart> parts;
  int tasks = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const PackedView& m = matrices[i];
    expect_width(x, m.cols, "linear");
    max_columns_ = std::max(max_columns_, m.cols);
    LinearPart part{};
    part.matrix = m;
    part.bias = biases[i];
    part.operand = pack(x, exact_ ? ActivationKind::f32 : format_info(m.format).activation);
    outs.push_back(make_value(m.rows, value(x).domain));
    part.out = &value(outs.back());
    part.panels_per_task = std::max(1, static_cast<int>(kTaskBytes / std::max<size_t>(m.panel_bytes, 1)));
    part.first_task = tasks;
    tasks += (m.num_panels + part.panels_per_task - 1) / part.panels_per_task;
    parts.push_back(part);
  }
  auto& phase = append<LinearPhase>({x}, outs);
  phase.kernels = &kernels_;
  phase.rows = value(x).domain;
  phase.total_tasks = tasks;
  phase.parts = std::move(parts);
  return outs;
}

int Program::rms_norm(int x, const float* weight, int group, float eps) {
  const Value& in = value(x);
  if (group != in.width && (group % 16 != 0 || in.width % group != 0)) {
    throw std::invalid_argument("rms_norm: groups of " + std::to_string(group) + " do not fit " +
                                std::to_string(in.width) + " columns; expected a multiple of 16");
  }
  int out = make_value(in.width, in.domain);
  auto& phase = append<RmsNormPhase>({x}, {out});
  phase.kernels = &kernels_;
  phase.x = &value(x);
  phase.out = &value(out);
  phase.weight = weight;
  phase.group = group;
  phase.eps = eps;
  return out;
}

int Program::layer_norm(int x, const float* weight, const float* bias, float eps) {
  int out = make_value(value(x).width, value(x).domain);
  auto& phase = append<LayerNormPhase>({x}, {out});
  phase.kernels = &kernels_;
  phase.x = &value(x);
  phase.out = &value(out);
  phase.weight = weight;
  phase.bias = bias;
  phase.eps = eps;
  return out;
}

int Program::rope(int x, const RopeTable* table, int head_size) {
  if (head_size < 1 || table->rotary > head_size || value(x).width % head_size != 0) {
    throw std::invalid_argument("rope: " + std::to_string(table->rotary) + " rotary dims, heads of " +
                                std::to_string(head_size) + ", " + std::to_string(value(x).width) + " columns");
  }
  int angles = -1;
  for (auto& [known, index] : angles_) {
    if (known == table) angles = index;
  }
  if (angles < 0) {
    angles = make_value(2 * round_up_16(table->rotary / 2), Domain::tokens);
    angles_.emplace_back(table, angles);
    auto& phase = append<RopeAnglesPhase>({}, {angles});
    phase.inv_freq = table->inv_freq;
    phase.attention_factor = table->attention_factor;
    phase.out = &value(angles);
  }
  int out = make_value(value(x).width, Domain::tokens);
  auto& phase = append<RopePhase>({x, angles}, {out});
  phase.kernels = &kernels_;
  phase.x = &value(x);
  phase.out = &value(out);
  phase.angles = &value(angles);
  phase.head_size = head_size;
  phase.rotary = table->rotary;
  phase.interleaved = table->interleaved;
  return out;
}

int Program::attention(int q, int k, int v, const AttentionShape& shape) {
  const KVPages& pages = cache_.pages(shape.layer);
  expect_width(q, shape.num_heads * pages.head_size, "attention q");
  expect_width(k, pages.num_kv_heads * pages.head_size, "attention k");
  expect_width(v, pages.num_kv_heads * pages.head_size, "attention v");
  if (shape.num_heads % pages.num_kv_heads != 0) throw std::invalid_argument("attention: heads do not divide");
  if (!kv_uses_.empty() && shape.is_causal != is_causal_) throw std::invalid_argument("attention: causal and not");
  is_causal_ = shape.is_causal;
  auto& write = append<KVWritePhase>({k, v}, {});
  write.kernels = &kernels_;
  write.k = &value(k);
  write.v = &value(v);
  write.pages = pages;
  write.group = cache_.shape(shape.layer).group;
  int out = make_value(value(q).width, Domain::tokens);
  auto& phase = append<AttentionPhase>({q}, {out});
  phase.kernels = &kernels_;
  phase.results = &part_results_;
  phase.q = &value(q);
  phase.out = &value(out);
  phase.pages = pages;
  phase.group = write.group;
  phase.num_heads = shape.num_heads;
  phase.scale = shape.scale;
  phase.softcap = shape.softcap;
  phase.window = shape.window;
  std::pair<int, int> use{phase.group, phase.window};
  if (std::find(kv_uses_.begin(), kv_uses_.end(), use) == kv_uses_.end()) kv_uses_.push_back(use);
  auto& merge = append<MergePartsPhase>({out}, {});
  merge.kernels = &kernels_;
  merge.results = &part_results_;
  merge.out = &value(out);
  merge.num_heads = shape.num_heads;
  merge.head_size = pages.head_size;
  attention_scratch_ = std::max(attention_scratch_, kernels_.attention.scratch_bytes(pages.head_size));
  const int slot = round_up_16(shape.num_heads * (pages.head_size + 2));
  part_results_.slot = std::max(part_results_.slot, static_cast<size_t>(slot));
  min_kv_heads_ = min_kv_heads_ == 0 ? pages.num_kv_heads : std::min(min_kv_heads_, pages.num_kv_heads);
  return out;
}

int Program::glu(int gate, int up, GluActivation activation) {
  expect_width(up, value(gate).width, "glu");
  int out = make_value(value(gate).width, value(gate).domain);
  auto& phase = append<GluPhase>({gate, up}, {out});
  phase.kernels = &kernels_;
  phase.gate = &value(gate);
  phase.up = &value(up);
  phase.out = &value(out);
  phase.activation = activation;
  return out;
}

int Program::activate(int x, GluActivation activation) {
  int out = make_value(value(x).width, value(x).domain);
  auto& phase = append<ActivatePhase>({x}, {out});
  phase.kernels = &kernels_;
  phase.x = &value(x);
  phase.out = &value(out);
  phase.activation = activation;
  return out;
}

int Program::add(int x, int y) {
  expect_width(y, value(x).width, "add");
  int out = make_value(value(x).width, value(x).domain);
  auto& phase = append<AddPhase>({x, y}, {out});
  phase.kernels = &kernels_;
  phase.x = &value(x);
  phase.y = &value(y);
  phase.out = &value(out);
  return out;
}

int Program::softcap(int x, float cap) {
  int out = make_value(value(x).width, value(x).domain);
  auto& phase = append<SoftcapPhase>({x}, {out});
  phase.kernels = &kernels_;
  phase.x = &value(x);
  phase.out = &value(out);
  phase.cap = cap;
  return out;
}

int Program::logit_rows(int x) {
  int out = make_value(value(x).width, Domain::logits);
  auto& phase = append<LogitRowsPhase>({x}, {out});
  phase.x = &value(x);
  phase.out = &value(out);
  return out;
}

int Program::sequence_means(int x) {
  int out = make_value(value(x).width, Domain::logits);
  auto& phase = append<SequenceMeansPhase>({x}, {out});
  phase.x = &value(x);
  phase.out = &value(out);
  has_means_ = true;
  return out;
}

void Program::finish(int logits) {
  logits_ = logits;
  value(logits).last_phase = static_cast<int>(phases_.size());
  keep_block_maxima();
  find_stages();
  place_values();
  place_part_results();
  place_scratch();
}

// Has the phase that writes the logits find the maxima of their blocks too, and keep them at the end of each row.
void Program::keep_block_maxima() {
  Value& logits = value(logits_);
  const BlockMaxima maxima{&logits, round_up_16(logits.width)};
  Phase* last = phases_.empty() ? nullptr : phases_.back().get();
  auto* softcap = dynamic_cast<SoftcapPhase*>(last);
  auto* linear = dynamic_cast<LinearPhase*>(last);
  if (softcap != nullptr && softcap->out == &logits) {
    softcap->maxima = maxima;
  } else if (linear != nullptr && linear->parts.size() == 1 && linear->parts[0].out == &logits) {
    LinearPart& part = linear->parts[0];
    constexpr int kBlockPanels = kBlockLogits / kPanelRows;
    part.panels_per_task = (part.panels_per_task + kBlockPanels - 1) / kBlockPanels * kBlockPanels;
    linear->total_tasks = (part.matrix.num_panels + part.panels_per_task - 1) / part.panels_per_task;
    linear->maxima = maxima;
  } else {
    return;
  }
  maxima_at_ = maxima.at;
  logits.stride = maxima.at + round_up_16((logits.width + kBlockLogits - 1) / kBlockLogits);
}

void Program::find_stages() {
  for (size_t p = 0; p < phases_.size(); ++p) {
    const bool is_chained =
        p > 0 && phases_[p]->by_rows() && phases_[p - 1]->by_rows() && phases_[p]->domain() == phases_[p - 1]->domain();
    if (!is_chained) stages_.push_back({p, p, 0});
    stages_.back().end = p + 1;
    stages_.back().row_elems += phase_elems_[p];
  }
}

void Program::place_values() {
  struct Slot {
    size_t floats;
    int free_after;  // last stage that uses it
    std::vector<int> values;
  };
  std::vector<int> stage_of;  // by phase, and one beyond the last
  for (size_t i = 0; i < stages_.size(); ++i) stage_of.resize(stages_[i].end, static_cast<int>(i));
  stage_of.push_back(static_cast<int>(stages_.size()));
  std::vector<Slot> slots;
  for (size_t i = 0; i < values_.size(); ++i) {
    Value& v = *values_[i];
    size_t floats = static_cast<size_t>(v.stride) * static_cast<size_t>(max_tokens_);
    int from = stage_of[static_cast<size_t>(v.first_phase)], to = stage_of[static_cast<size_t>(v.last_phase)];
    Slot* best = nullptr;
    for (Slot& slot : slots) {
      if (slot.free_after >= from) continue;
      bool closer = best && std::max(slot.floats, floats) - std::min(slot.floats, floats) <
                                std::max(best->floats, floats) - std::min(best->floats, floats);
      if (!best || closer) best = &slot;
    }
    if (!best) best = &slots.emplace_back(Slot{0, -1, {}});
    best->floats = std::max(best->floats, floats);
    best->free_after = to;
    best->values.push_back(static_cast<int>(i));
  }
  for (const Slot& slot : slots) {
    const size_t bytes = slot.floats * sizeof(float);
    memory_.emplace_back(bytes, bytes >= kHugeFromBytes);
    for (int i : slot.values) value(i).data = memory_.back().as<float>();
  }
}

// Address space for a slot of every part that the cache can hold; a step that would need more, because sequences share
// blocks or have many queries, splits fewer of its rows.
void Program::place_part_results() {
  if (part_results_.slot == 0 || pool_.size() == 1) return;
  int64_t tokens = 0;
  for (int g = 0; g < cache_.num_groups(); ++g) {
    tokens = std::max(tokens, int64_t{cache_.num_blocks(g)} * cache_.block_size());
  }
  part_results_.num_slots = static_cast<size_t>(tokens / kPartTokens + 1);
  memory_.emplace_back(part_results_.num_slots * part_results_.slot * sizeof(float), false);
  part_results_.data = memory_.back().as<float>();
}

void Program::place_scratch() {
  for (size_t k = 0; k < kNumKinds; ++k) {
    if (pack_bytes_[k] == 0) continue;
    memory_.emplace_back(pack_bytes_[k], false);
    pack_buffers_[k] = memory_.back().data();
  }
  for (int t = 0; t < pool_.size(); ++t) {
    ThreadScratch& scratch = scratch_.emplace_back();
    memory_.emplace_back(kernels_.matmul.scratch_bytes(max_columns_, max_tokens_), false);
    scratch.matmul = memory_.back().data();
    memory_.emplace_back(attention_scratch_, false);
    scratch.attention = memory_.back().data();
  }
}

size_t Program::buffer_bytes() const {
  size_t bytes = 0;
  for (const Mapping& m : memory_) bytes += m.size();
  return bytes;
}

class Program::StepJob final : public Job {
 public:
  StepJob(Program& program, const Step& step) : program_(program), step_(step) {}

  int num_stages() const override { return static_cast<int>(program_.stages_.size()); }

  int num_tasks(int stage) override {
    const Phase& phase = first_phase(stage);
    const int rows = step_.rows_of(phase.domain());
    if (phase.by_rows()) return num_row_tasks(stage, rows);
    return rows > 0 ? phase.num_tasks(step_) : 0;
  }

  void work(int stage, int task, int thread) override {
    const Stage& range = program_.stages_[static_cast<size_t>(stage)];
    ThreadScratch& scratch = program_.scratch_[static_cast<size_t>(thread)];
    int begin = task, end = task + 1;
    if (first_phase(stage).by_rows()) {
      const int64_t rows = step_.rows_of(first_phase(stage).domain()), tasks = num_tasks(stage);
      begin = static_cast<int>(rows * task / tasks);
      end = static_cast<int>(rows * (task + 1) / tasks);
    }
    for (size_t p = range.begin; p < range.end; ++p) program_.phases_[p]->work(step_, begin, end, scratch);
  }

 private:
  int num_row_tasks(int stage, int rows) const {
    const int64_t elems = int64_t{rows} * program_.stages_[static_cast<size_t>(stage)].row_elems;
    const int most = std::min(rows, kRowTasksPerThread * program_.pool_.size());
    return static_cast<int>(std::clamp<int64_t>(elems / kRowTaskElems, std::min(rows, 1), most));
  }

  const Phase& first_phase(int stage) const {
    return *program_.phases_[program_.stages_[static_cast<size_t>(stage)].begin];
  }

  Program& program_;
  const Step& step_;
};

const float* Program::run(Step& step) {
  if (logits_ < 0) throw std::logic_error("run before finish");
  step.number = ++num_runs_;
  step.is_causal = is_causal_;
  plan_attention(step, min_kv_heads_, pool_.size(), part_results_.num_slots);
  StepJob job(*this, step);
  pool_.run(job);
  return value(logits_).data;
}

}  // namespace caudal

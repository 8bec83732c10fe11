#include "phases.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace caudal {

void EmbeddingPhase::work(const Step& step, int begin, int end, ThreadScratch&) const {
  for (int t = begin; t < end; ++t) {
    float* row = out->row(t);
    kernels->matmul.dequantize_row(matrix, index_of(step, t), scale, row);
    std::fill(row + out->width, row + out->stride, 0.0f);
  }
}

int EmbeddingPhase::index_of(const Step& step, int token) const {
  switch (source) {
    case EmbeddingSource::tokens:
      return step.token_ids[token];
    case EmbeddingSource::positions:
      return step.positions[token];
    case EmbeddingSource::first_row:
      break;
  }
  return 0;
}

void LayerNormPhase::work(const Step&, int begin, int end, ThreadScratch&) const {
  for (int t = begin; t < end; ++t)
    kernels->elementwise.layer_norm(x->row(t), weight, bias, out->row(t), x->width, eps);
}

void ActivatePhase::work(const Step&, int begin, int end, ThreadScratch&) const {
  for (int t = begin; t < end; ++t) kernels->elementwise.activate(x->row(t), out->row(t), out->stride, activation);
}

void RmsNormPhase::work(const Step&, int begin, int end, ThreadScratch&) const {
  for (int t = begin; t < end; ++t)
    kernels->elementwise.rms_norm(x->row(t), weight, out->row(t), x->stride, group, eps);
}

void RopeAnglesPhase::work(const Step& step, int begin, int end, ThreadScratch&) const {
  const size_t half = inv_freq.size(), sin_offset = static_cast<size_t>(out->stride) / 2;
  for (int t = begin; t < end; ++t) {
    float* row = out->row(t);
    const auto position = static_cast<double>(step.positions[t]);
    for (size_t i = 0; i < half; ++i) {
      const double angle = position * inv_freq[i];  // a float would be off by hundredths at large positions
      row[i] = static_cast<float>(std::cos(angle) * attention_factor);
      row[sin_offset + i] = static_cast<float>(std::sin(angle) * attention_factor);
    }
  }
}

void RopePhase::work(const Step&, int begin, int end, ThreadScratch&) const {
  for (int t = begin; t < end; ++t) {
    const float* cos = angles->row(t);
    std::memcpy(out->row(t), x->row(t), sizeof(float) * static_cast<size_t>(x->stride));
    kernels->elementwise.rope(out->row(t), cos, cos + angles->stride / 2, x->width / head_size, head_size, rotary,
                              interleaved);
  }
}

void PackPhase::work(const Step& step, int begin, int end, ThreadScratch&) const {
  kernels->matmul.pack_activations(view(step), x->data, static_cast<size_t>(x->stride), begin, end);
}

void LinearPhase::work(const Step& step, int begin, int end, ThreadScratch& scratch) const {
  for (int task = begin; task < end; ++task) {
    size_t p = 0;
    while (p + 1 < parts.size() && task >= parts[p + 1].first_task) ++p;
    const LinearPart& part = parts[p];
    MatmulArgs args{};
    args.weights = part.matrix;
    args.x = part.operand->view(step);
    args.bias = part.bias;
    args.out = part.out->data;
    args.out_stride = static_cast<size_t>(part.out->stride);
    int first = (task - part.first_task) * part.panels_per_task;
    int last = std::min(first + part.panels_per_task, part.matrix.num_panels);
    if (scratch.operand != part.operand || scratch.step != step.number) {
      kernels->matmul.begin_operand(args.x, scratch.matmul);
      scratch.operand = part.operand;
      scratch.step = step.number;
    }
    kernels->matmul.matmul(args, first, last, scratch.matmul);
    if (maxima.logits == nullptr) continue;
    const int column = first * kPanelRows, end_column = std::min(last * kPanelRows, part.matrix.rows);
    for (int row = 0; row < args.x.num_rows; ++row) {
      kernels->sampling.max_values(part.out->row(row) + column, end_column - column,
                                   maxima.of(row) + column / kBlockLogits);
    }
  }
}

void KVWritePhase::work(const Step& step, int begin, int end, ThreadScratch&) const {
  KVWriteArgs args{pages,
                   k->data,
                   v->data,
                   static_cast<size_t>(k->stride),
                   static_cast<size_t>(v->stride),
                   step.slots[static_cast<size_t>(group)]};
  kernels->attention.write_kv(args, begin, end);
}

void AttentionPhase::work(const Step& step, int begin, int end, ThreadScratch& scratch) const {
  const auto g = static_cast<size_t>(group);
  for (int task = begin; task < end; ++task) {
    const QueryChunk& chunk = step.chunks[static_cast<size_t>(task / pages.num_kv_heads)];
    AttentionArgs args{};
    args.pages = pages;
    args.block_table =
        step.block_tables[g] + static_cast<size_t>(chunk.row) * static_cast<size_t>(step.table_widths[g]);
    args.q = q->row(chunk.first_token);
    args.out = out->row(chunk.first_token);
    args.q_stride = static_cast<size_t>(q->stride);
    args.out_stride = static_cast<size_t>(out->stride);
    args.num_heads = num_heads;
    args.first_position = step.positions[chunk.first_token];
    args.num_queries = chunk.num_queries;
    args.context_len = step.is_causal ? 0 : step.context_lens[chunk.row];
    args.kv_head = task % pages.num_kv_heads;
    args.scale = scale;
    args.softcap = softcap;
    args.window = window;
    if (chunk.first_result >= 0) {
      args.results = results->at(chunk.first_result, chunk.num_parts);
      args.part_begin = chunk.part_begin;
      args.part_end = chunk.part_end;
    }
    kernels->attention.attend(args, scratch.attention);
  }
}

void MergePartsPhase::work(const Step& step, int begin, int end, ThreadScratch&) const {
  for (const PartMerge& merge : step.merges) {
    if (merge.token < begin || merge.token >= end) continue;
    kernels->attention.merge(
        {results->at(merge.first_result, merge.num_parts), num_heads, head_size, out->row(merge.token)});
  }
}

void GluPhase::work(const Step&, int begin, int end, ThreadScratch&) const {
  for (int t = begin; t < end; ++t)
    kernels->elementwise.glu(gate->row(t), up->row(t), out->row(t), out->stride, activation);
}

void AddPhase::work(const Step&, int begin, int end, ThreadScratch&) const {
  for (int t = begin; t < end; ++t) kernels->elementwise.add(x->row(t), y->row(t), out->row(t), out->stride);
}

void SoftcapPhase::work(const Step&, int begin, int end, ThreadScratch&) const {
  for (int t = begin; t < end; ++t) {
    kernels->elementwise.softcap(x->row(t), out->row(t), round_up_16(out->width), cap);
    if (maxima.logits != nullptr) kernels->sampling.max_values(out->row(t), out->width, maxima.of(t));
  }
}

void LogitRowsPhase::work(const Step& step, int begin, int end, ThreadScratch&) const {
  for (int l = begin; l < end; ++l) {
    std::memcpy(out->row(l), x->row(step.logit_rows[l]), sizeof(float) * static_cast<size_t>(x->stride));
  }
}

void SequenceMeansPhase::work(const Step& step, int begin, int end, ThreadScratch&) const {
  constexpr int kLine = 16;
  for (int r = begin; r < end; ++r) {
    const int first = step.query_starts[r], last = step.query_starts[r + 1];
    for (int column = 0; column < round_up_16(x->width); column += kLine) {
      double sums[kLine] = {};
      for (int t = first; t < last; ++t) {
        for (int i = 0; i < kLine; ++i) sums[i] += static_cast<double>(x->row(t)[column + i]);
      }
      for (int i = 0; i < kLine; ++i) out->row(r)[column + i] = static_cast<float>(sums[i] / (last - first));
    }
  }
}

}  // namespace caudal

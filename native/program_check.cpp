// Bounds of a step, checked before any kernel sees it.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "program.h"

namespace caudal {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("step: " + what); }

void check_tokens(const Step& step, int vocabulary, int max_tokens) {
  if (step.num_tokens < 1 || step.num_tokens > max_tokens || step.num_logits > max_tokens) {
    refuse("expected 1 to " + std::to_string(max_tokens) + " tokens and rows of logits, got " +
           std::to_string(step.num_tokens) + " and " + std::to_string(step.num_logits));
  }
  for (int t = 0; t < step.num_tokens; ++t) {
    if (step.token_ids[t] < 0 || step.token_ids[t] >= vocabulary) {
      refuse("token id " + std::to_string(step.token_ids[t]) + " is outside the vocabulary of " +
             std::to_string(vocabulary));
    }
  }
  for (int l = 0; l < step.num_logits; ++l) {
    if (step.logit_rows[l] < 0 || step.logit_rows[l] >= step.num_tokens) refuse("logit row out of range");
  }
}

void check_rows(const Step& step) {
  if (step.query_starts[0] != 0 || step.query_starts[step.num_rows] != step.num_tokens) {
    refuse("query_starts do not cover the tokens");
  }
  for (int r = 0; r < step.num_rows; ++r) {
    int begin = step.query_starts[r], end = step.query_starts[r + 1];
    if (end <= begin || end > step.num_tokens) refuse("row " + std::to_string(r) + " has no tokens, or too many");
    if (step.context_lens[r] < end - begin) refuse("row " + std::to_string(r) + " has more tokens than context");
    for (int t = begin; t < end; ++t) {
      if (step.positions[t] != step.context_lens[r] - (end - t) || step.positions[t] < 0) {
        refuse("positions of row " + std::to_string(r) + " do not end at its context length");
      }
    }
  }
}

}  // namespace

void Program::check(const Step& step) const {
  check_tokens(step, vocabulary_, max_tokens_);
  check_rows(step);
  if (static_cast<int>(step.slots.size()) != cache_.num_groups() || step.block_tables.size() != step.slots.size()) {
    refuse("expected block tables and slots for " + std::to_string(cache_.num_groups()) + " KV groups");
  }
  if (has_means_ && step.num_logits != step.num_rows) {
    refuse("expected one row of logits for each of " + std::to_string(step.num_rows) + " sequences, got " +
           std::to_string(step.num_logits));
  }
  for (const auto& [group, window] : kv_uses_) check_pages(step, group, window);
  for (int r = 0; r < step.num_rows; ++r) {
    const int num_tokens = step.query_starts[r + 1] - step.query_starts[r];
    if ((!is_causal_ || has_means_) && num_tokens != step.context_lens[r]) {
      refuse("row " + std::to_string(r) + " is a part of its sequence, which must come whole");
    }
    if (num_positions_ > 0 && step.context_lens[r] > num_positions_) {
      refuse("row " + std::to_string(r) + " has " + std::to_string(step.context_lens[r]) + " tokens; the model has " +
             std::to_string(num_positions_) + " positions");
    }
  }
}

void Program::check_pages(const Step& step, int group, int window) const {
  const auto g = static_cast<size_t>(group);
  const int size = cache_.block_size(), blocks = cache_.num_blocks(group), width = step.table_widths[g];
  std::vector<int32_t> written;
  for (int r = 0; r < step.num_rows; ++r) {
    int first = step.positions[step.query_starts[r]], last = step.context_lens[r] - 1;
    int begin = window > 0 ? std::max(0, first - window + 1) : 0;
    if (last / size >= width) refuse("block table of row " + std::to_string(r) + " is too short");
    const int32_t* table = step.block_tables[g] + static_cast<size_t>(r) * static_cast<size_t>(width);
    for (int page = begin / size; page <= last / size; ++page) {
      if (table[page] < 0 || table[page] >= blocks) {
        refuse("row " + std::to_string(r) + " needs KV page " + std::to_string(page) + ", which holds block " +
               std::to_string(table[page]) + " of " + std::to_string(blocks));
      }
    }
    for (int t = step.query_starts[r]; t < step.query_starts[r + 1]; ++t) {
      const int position = step.positions[t];
      if (step.slots[g][t] != int64_t{table[position / size]} * size + position % size) {
        refuse("slot " + std::to_string(step.slots[g][t]) + " of row " + std::to_string(r) +
               " is not that of position " + std::to_string(position));
      }
    }
    for (int page = first / size; page <= last / size; ++page) written.push_back(table[page]);
  }
  // Threads write rows at the same time, so no two of them may share a block.
  std::sort(written.begin(), written.end());
  const auto twice = std::adjacent_find(written.begin(), written.end());
  if (twice != written.end()) refuse("two rows write KV block " + std::to_string(*twice));
}

}  // namespace caudal

// How a step's attention is cut into tasks.
#pragma once

#include <cstddef>

#include "phase.h"

namespace caudal {

// Fills step.chunks and step.merges. Prompts are cut into chunks of queries; a chunk whose context is long beside the
// step's whole work is shared by tasks that attend to some of its parts each, as long as `num_result_slots` last.
// Nothing here changes a result: parts are the same however they are shared out.
void plan_attention(Step& step, int num_kv_heads, int num_threads, size_t num_result_slots);

}  // namespace caudal

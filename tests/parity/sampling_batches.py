"""Builds SamplingBatch values from one dict a row, with neutral values for what a row leaves out."""

import numpy as np

from caudal.backends.base import SamplingBatch

NEUTRAL = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "seeds": 0,
    "positions": 0,
    "num_logprobs": -1,
    "num_prompt": 0,
}
INTEGERS = {"top_k": np.int32, "seeds": np.uint64, "positions": np.int64, "num_logprobs": np.int32}


def sampling_batch(*rows):
    """Rows may also have `history` (token ids), `bias` (token id -> number) and `row` (of the logits)."""
    full = [{**NEUTRAL, "history": [], "bias": {}, "row": index, **row} for index, row in enumerate(rows)]
    columns = {
        name: np.array([row[name] for row in full], INTEGERS.get(name, np.float32))
        for name in NEUTRAL
        if name != "num_prompt"
    }

    def starts(name):
        return np.concatenate([[0], np.cumsum([len(row[name]) for row in full])]).astype(np.int32)

    return SamplingBatch(
        **columns,
        history_starts=starts("history"),
        num_prompt=np.array([row["num_prompt"] for row in full], np.int32),
        history_ids=np.array([i for row in full for i in row["history"]], np.int32),
        bias_starts=starts("bias"),
        bias_ids=np.array([i for row in full for i in row["bias"]], np.int32),
        bias_values=np.array([v for row in full for v in row["bias"].values()], np.float32),
        rows=np.array([row["row"] for row in full], np.int32),
    )

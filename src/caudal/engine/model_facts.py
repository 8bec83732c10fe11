"""What an engine says of its model when it is ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal.messages import EngineReady

if TYPE_CHECKING:
    from caudal.config import EngineConfig
    from caudal.engine.runner import Runner


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts that are known once the model is loaded; see EngineReady."""

    vocab_size: int
    weights_bytes: int
    step_weights_bytes: int
    macs_per_token: int
    macs_per_logits: int
    num_threads: int
    isa: str
    kv_dtype: str
    load_s: float

    def ready(self, config: EngineConfig, runner: Runner, max_model_len: int, task: str = "generate") -> EngineReady:
        """Return what the API process wants to know."""
        return EngineReady(
            max_model_len=max_model_len,
            task=task,
            max_num_seqs=config.max_num_seqs,
            num_kv_blocks=sum(group.num_blocks for group in runner.groups),
            weights_bytes=self.weights_bytes,
            step_weights_bytes=self.step_weights_bytes,
            macs_per_token=self.macs_per_token,
            macs_per_logits=self.macs_per_logits,
            kv_bytes_per_token=runner.kv_bytes_per_token,
            kv_dtype=self.kv_dtype,
            num_threads=self.num_threads,
            isa=self.isa,
            load_s=self.load_s,
        )

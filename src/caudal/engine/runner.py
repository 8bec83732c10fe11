"""Runner: a model, its KV cache and its backend; forward and sample, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.core.step_plan import KVGroup
from caudal.engine.kv_plan import KVDemand, plan_blocks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from caudal.backends.base import Backend, SampleOutput, SamplingBatch
    from caudal.config import EngineConfig
    from caudal.engine.step_batch import StepBatch
    from caudal.models.decoder import Decoder
    from caudal.models.encoder import Encoder

# What a product of attention costs, in products with weights. Measured with SmolLM2 and Qwen2.5 on AVX-512.
ATTENTION_COST = 3


class Runner:
    """Owns the compiled forward pass and the KV cache that it writes.

    Attributes:
        groups: the KV groups, for the scheduler.
        kv_bytes_per_token: over all layers, while no window has let anything go.
        context_per_token: tokens of context whose attention takes as long as the rest of a token; 0 if none sees all.
    """

    def __init__(self, model: Decoder | Encoder, backend: Backend, config: EngineConfig, max_model_len: int) -> None:
        spec = model.spec
        layers = spec.kv_layers()
        demands = tuple(
            KVDemand(sum(backend.kv_bytes_per_token(layer) for layer in layers if layer.group == group), window)
            for group, window in enumerate(spec.kv_windows)
        )
        self.kv_bytes_per_token = sum(demand.bytes_per_token for demand in demands)
        attention_macs = ATTENTION_COST * spec.macs_per_context_token
        self.context_per_token = max(1, spec.macs_per_token // attention_macs) if attention_macs else 0
        num_blocks = plan_blocks(demands, config, max_model_len, backend.mapped_bytes)
        self.groups = tuple(KVGroup(n, demand.window) for n, demand in zip(num_blocks, demands, strict=True))
        self._backend = backend
        self._forward = backend.compile(model.forward, backend.kv_cache(layers, num_blocks, config.block_size))

    def forward(self, batch: StepBatch) -> NDArray[np.float32]:
        """Return logits [L, V], valid until the next call."""
        return self._forward(batch)

    def sample(self, logits: NDArray[np.float32], sampling: SamplingBatch) -> SampleOutput:
        """Choose a token for every row."""
        return self._backend.sample(logits, sampling)

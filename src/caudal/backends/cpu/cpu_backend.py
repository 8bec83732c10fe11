"""The CPU backend: weights repacked for native kernels, the forward pass recorded once as a native step program.

Operations take and return Values, which are places in the program being recorded. Running a step is one native call.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal import _native
from caudal.backends.base import SampleOutput, paged_bytes_per_token
from caudal.backends.cpu.threads import usable_cores
from caudal.errors import ConfigError
from caudal.quant import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from caudal.backends.base import Activation, AttentionSpec, EmbeddingSource, KVLayer, RopeSpec, SamplingBatch
    from caudal.backends.cpu.pack_cache import PackCache
    from caudal.checkpoint.tensor import Tensor
    from caudal.engine.step_batch import StepBatch

logger = logging.getLogger(__name__)

KERNEL_FORMATS = frozenset(
    {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"}
    | {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"}
    | {"F16", "BF16", "F32"}
)
# What a format without a kernel becomes: more bits than any such format has.
FALLBACK_FORMAT = "F16"
STRIP_ELEMS = 1 << 23
PANEL_ROWS = 16


@dataclass(frozen=True, slots=True)
class LinearGroup:
    """Projections of one input, of any formats."""

    matrices: tuple[_native.PackedMatrix, ...]
    biases: tuple[_native.Vector | None, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A matrix of activations in a program."""

    program: _native.Program
    index: int


@dataclass(slots=True)
class CompiledStep:
    """A recorded forward pass. It holds on to what was recorded, for the program reads the model's weights.

    Attributes:
        logits: what the last step gave.
    """

    program: _native.Program
    forward: Callable[[_native.Program], Value]
    logits: NDArray[np.float32] | None = None

    def __call__(self, batch: StepBatch) -> NDArray[np.float32]:
        """Run a step as one native call; the logits [L, V] are valid until the next one."""
        self.logits = logits = self.program.run(
            batch.token_ids,
            batch.positions,
            batch.query_starts,
            batch.context_lens,
            list(batch.block_tables),
            list(batch.slot_mapping),
            batch.logit_rows,
        )
        return logits


class CpuBackend:
    """Native kernels.

    Args:
        num_threads: None takes the cores that this process may use.
        max_tokens: most tokens in one step.
        exact: keep activations in float32.
        kv_dtype: "f16", "f32" or "int8"; None takes float16, float32 if exact.
        isa: a name from available_isas(); None takes the best, or what CAUDAL_ISA says.
        pack_cache: where packed matrices are kept from one start to the next; None keeps none.

    Raises:
        ConfigError: the instruction set is not available here, or the system gives no more threads.
    """

    name = "cpu"

    def __init__(
        self,
        *,
        num_threads: int | None = None,
        max_tokens: int = 512,
        exact: bool = False,
        kv_dtype: str | None = None,
        isa: str | None = None,
        pack_cache: PackCache | None = None,
    ) -> None:
        try:
            self.isa = _native.default_isa() if isa is None else isa
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if self.isa not in available_isas():
            message = f"instruction set {self.isa!r} is not available here; available: {', '.join(available_isas())}"
            raise ConfigError(message)
        self.num_threads = num_threads or usable_cores()
        self.exact = exact
        self.kv_dtype = kv_dtype or ("f32" if exact else "f16")
        self._max_tokens = max_tokens
        try:
            self._pool = _native.ThreadPool(self.num_threads)
        except RuntimeError as error:
            message = f"cannot start {self.num_threads} threads: {error}; set num_threads to a smaller number"
            raise ConfigError(message) from error
        self._sampler = _native.Sampler(self.isa, self._pool)
        self._weight_memory = _native.WeightMemory()
        self._fallbacks: set[str] = set()
        self._pack_cache = pack_cache
        self._step: CompiledStep | None = None
        self.weights_bytes = 0

    @property
    def mapped_bytes(self) -> int:
        """Bytes of weights that are read from a file in the page cache."""
        return 0 if self._pack_cache is None else self._pack_cache.mapped_bytes

    def vector(self, tensor: Tensor) -> _native.Vector:
        """Place a vector as float32."""
        return _native.Vector(tensor.dequantize().reshape(-1))

    def matrix(self, tensor: Tensor) -> _native.PackedMatrix:
        """Return a matrix as kernels read it: from the pack cache, or repacked.

        A format without a kernel is dequantised, and the log says so once.
        """
        rows, columns = tensor.shape
        has_kernel = tensor.format in KERNEL_FORMATS
        if not has_kernel:
            self._say_fallback(tensor.format)
        format_name = tensor.format if has_kernel else FALLBACK_FORMAT
        cache = self._pack_cache
        packed = None if cache is None else cache.find(tensor.name, format_name, rows, columns)
        if packed is None:
            packed = self._pack(tensor, format_name)
            if cache is not None:
                cache.keep(tensor.name, packed)
        self.weights_bytes += packed.nbytes
        return packed

    def loaded(self) -> None:
        """Write the pack cache, if it is to be written."""
        if self._pack_cache is not None:
            self._pack_cache.finish()

    def _pack(self, tensor: Tensor, format_name: str) -> _native.PackedMatrix:
        """Repack in strips, each given back to the system when it is packed.

        So the file's memory and the packed one are never both held whole.
        """
        rows, columns = tensor.shape
        packed = _native.PackedMatrix(format_name, rows, columns, self._weight_memory)
        step = _strip_rows(columns)
        for first in range(0, rows, step):
            strip = tensor.rows(first, min(first + step, rows))
            is_stored = tensor.format == format_name
            data = strip.data if is_stored else FORMATS[format_name].quantize(strip.dequantize().reshape(-1))
            packed.pack(data, first, strip.shape[0], self.num_threads)
            strip.release()
        return packed

    def _say_fallback(self, format_name: str) -> None:
        if format_name not in self._fallbacks:
            self._fallbacks.add(format_name)
            logger.warning("no CPU kernel for %s yet; its tensors are kept as %s", format_name, FALLBACK_FORMAT)

    def linear_group(self, parts: Sequence[tuple[_native.PackedMatrix, _native.Vector | None]]) -> LinearGroup:
        """Keep projections of one input together, so that the input is packed once."""
        return LinearGroup(tuple(matrix for matrix, _ in parts), tuple(bias for _, bias in parts))

    def rope_table(self, spec: RopeSpec) -> _native.RopeTable:
        """Place a rotary embedding."""
        return _native.RopeTable(list(spec.inv_freq), spec.rotary_dims, spec.interleaved, spec.attention_factor)

    def kv_cache(self, layers: Sequence[KVLayer], num_blocks: Sequence[int], block_size: int) -> _native.KVCache:
        """Reserve a paged cache of kv_dtype."""
        for index, layer in enumerate(layers):
            if layer.key_size != layer.value_size or layer.key_size % 16:
                message = (
                    f"layer {index} has key size {layer.key_size} and value size {layer.value_size}; "
                    "the CPU kernels expect one size, a multiple of 16"
                )
                raise ConfigError(message)
        shapes = [(layer.group, (layer.num_kv_heads, layer.key_size)) for layer in layers]
        return _native.KVCache(shapes, list(num_blocks), block_size, self.kv_dtype)

    def kv_bytes_per_token(self, layer: KVLayer) -> int:
        """Return the size of a token's elements, and of their scales."""
        return paged_bytes_per_token(layer, self.kv_dtype)

    def compile(
        self, forward: Callable[[_native.Program], Value], kv_cache: _native.KVCache
    ) -> Callable[[StepBatch], NDArray[np.float32]]:
        """Record the forward pass."""
        program = _native.Program(self.isa, self._pool, kv_cache, self._max_tokens, self.exact)
        program.finish(forward(program).index)
        self._step = CompiledStep(program, forward)
        return self._step

    def embedding(
        self,
        matrix: _native.PackedMatrix,
        batch: _native.Program,
        scale: float = 1.0,
        source: EmbeddingSource = "tokens",
    ) -> Value:
        """Record a look-up of rows."""
        return Value(batch, batch.embedding(matrix, source, scale))

    def linear(self, group: LinearGroup, x: Value) -> tuple[Value, ...]:
        """Record the products of one input with every matrix of the group."""
        outs = x.program.linear(list(group.matrices), list(group.biases), x.index)
        return tuple(Value(x.program, out) for out in outs)

    def rms_norm(self, x: Value, weight: _native.Vector | None, eps: float, group_size: int | None = None) -> Value:
        """Record a root-mean-square norm over rows or heads."""
        group = group_size or x.program.width(x.index)
        return Value(x.program, x.program.rms_norm(x.index, weight, group, eps))

    def layer_norm(self, x: Value, weight: _native.Vector, bias: _native.Vector, eps: float) -> Value:
        """Record a norm of rows by mean and variance."""
        return Value(x.program, x.program.layer_norm(x.index, weight, bias, eps))

    def rope(self, x: Value, table: _native.RopeTable, batch: _native.Program, head_size: int) -> Value:
        """Record a rotation of every head by its token's position."""
        return Value(batch, batch.rope(x.index, table, head_size))

    def attention(self, q: Value, k: Value, v: Value, batch: _native.Program, spec: AttentionSpec) -> Value:
        """Record a write of k and v to the cache and attention over it."""
        out = batch.attention(
            q.index,
            k.index,
            v.index,
            spec.layer,
            spec.num_heads,
            spec.scale,
            spec.softcap or 0.0,
            spec.window or 0,
            spec.is_causal,
        )
        return Value(batch, out)

    def glu(self, gate: Value, up: Value, activation: Activation) -> Value:
        """Record activation(gate) * up."""
        return Value(gate.program, gate.program.glu(gate.index, up.index, activation))

    def activate(self, x: Value, activation: Activation) -> Value:
        """Record activation(x)."""
        return Value(x.program, x.program.activate(x.index, activation))

    def add(self, x: Value, y: Value) -> Value:
        """Record x + y."""
        return Value(x.program, x.program.add(x.index, y.index))

    def softcap(self, x: Value, cap: float) -> Value:
        """Record cap * tanh(x / cap)."""
        return Value(x.program, x.program.softcap(x.index, cap))

    def logit_rows(self, x: Value, batch: _native.Program) -> Value:
        """Record the choice of the rows whose logits are wanted."""
        return Value(batch, batch.logit_rows(x.index))

    def sequence_means(self, x: Value, batch: _native.Program) -> Value:
        """Record the mean of every sequence's rows."""
        return Value(batch, batch.sequence_means(x.index))

    def sample(self, logits: NDArray[np.float32], sampling: SamplingBatch) -> SampleOutput:
        """Choose tokens natively, rows shared out over the threads. A row without a finite logit gives -1.

        Logits that a step gave come with what the step knows of them: who edits them must sample from a copy.
        """
        step = self._step
        maxima_at = step.program.maxima_at if step is not None and step.logits is logits else 0
        return SampleOutput(*self._sampler.sample(logits, sampling, maxima_at))


def available_isas() -> tuple[str, ...]:
    """Return the instruction sets that can run here, best first; "scalar" is always among them."""
    return tuple(_native.available_isas())


def _strip_rows(columns: int) -> int:
    """Return how many rows to pack at once: whole panels of about STRIP_ELEMS elements."""
    return max(1, STRIP_ELEMS // columns // PANEL_ROWS) * PANEL_ROWS

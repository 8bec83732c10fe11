"""Rotary embeddings of a Hugging Face configuration.

Source: transformers' documentation of `rope_parameters` (since version 5) and of `rope_theta`, `rope_scaling` and
`rope_local_base_freq` (before).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from caudal.backends.base import RopeSpec
from caudal.errors import UnsupportedArchitecture
from caudal.models import rope
from caudal.models.checked_keys import MAX_TOKENS, CheckedKeys

if TYPE_CHECKING:
    from collections.abc import Mapping

FULL, SLIDING = "full_attention", "sliding_attention"
_MIN_TURNS = 1e-6  # YaRN's betas stay far from it


class HFRope:
    """Reads the ropes of one configuration.

    Args:
        config: the text model's part, with the defaults of its class.
        path: of config.json, for errors.
        local_theta: base of sliding layers where the file gives none; None: as the other layers.
        max_model_len: tokens that a sequence may have; it picks the factors of longrope.
    """

    def __init__(self, config: Mapping[str, Any], path: object, local_theta: float | None, max_model_len: int) -> None:
        self._config = config
        self._path = path
        self._keys = CheckedKeys(config, path=path)
        self._local_theta = local_theta
        self._max_model_len = max_model_len
        self._context = self._keys.size("max_position_embeddings", limit=MAX_TOKENS)

    @property
    def context_length(self) -> int:
        """Tokens that the model was made for, stretched as far as YaRN goes."""
        parameters = self._parameters(FULL)
        if self._kind(parameters) != "yarn":
            return self._context
        return max(self._context, int(self._factor(parameters) * self._original(parameters)))

    def read(self, kind: str, head_size: int) -> RopeSpec:
        """Return the rope of the layers of a kind.

        Raises:
            CheckpointError: a number is missing or makes no sense.
            UnsupportedArchitecture: it is scaled in a way that Caudal does not have.
        """
        parameters = self._parameters(kind)
        share = self._number(parameters, "partial_rotary_factor", self._keys.float("partial_rotary_factor", 1.0))
        dims = int(head_size * share)
        if not 0 < dims <= head_size or dims % 2:
            self._keys.fail("partial_rotary_factor", share, f"an even part of the head size, {head_size}")
        theta = self._number(parameters, "rope_theta", self._keys.rope_base("rope_theta", 10000.0))
        if not 1 < theta < math.inf:
            self._keys.fail("rope_theta", theta, "a number above 1")
        frequencies, factor = self._scaled(parameters, rope.plain_frequencies(theta, dims), theta)
        if not all(0 <= value < math.inf for value in (*frequencies, factor)):
            self._keys.fail("rope_parameters", f"such that a frequency is {max(frequencies)}", "finite frequencies")
        return RopeSpec(frequencies, dims, interleaved=False, attention_factor=factor)

    def _parameters(self, kind: str) -> Mapping[str, Any]:
        """Return what the file says about the ropes of a kind of layers; old files scale full attention alone."""
        found = self._config.get("rope_parameters") or self._config.get("rope_scaling") or {}
        if not isinstance(found, dict):
            self._keys.fail("rope_parameters", str(found)[:40], "a JSON object")
        if any(isinstance(value, dict) for value in found.values()):
            inner = found.get(kind) or {}
            if not isinstance(inner, dict):
                self._keys.fail(f"rope_parameters.{kind}", str(inner)[:40], "a JSON object")
            return inner
        if kind == SLIDING and self._local_theta is not None:
            return {"rope_theta": self._keys.rope_base("rope_local_base_freq", self._local_theta)}
        return found

    def _kind(self, parameters: Mapping[str, Any]) -> str:
        kind = parameters.get("rope_type") or parameters.get("type") or "default"
        return "longrope" if kind == "su" else str(kind)

    def _scaled(
        self, parameters: Mapping[str, Any], frequencies: tuple[float, ...], theta: float
    ) -> tuple[tuple[float, ...], float]:
        """Return the frequencies as the file scales them, and the multiplier of cos and sin."""
        kind = self._kind(parameters)
        if kind in ("default", "dynamic"):  # dynamic: the plain ones for sequences within max_position_embeddings
            return frequencies, 1.0
        if kind == "linear":
            factor = self._factor(parameters)
            return tuple(frequency / factor for frequency in frequencies), 1.0
        if kind == "llama3":
            return self._llama3(parameters, frequencies), 1.0
        if kind == "yarn":
            return self._yarn(parameters, frequencies, theta)
        if kind == "longrope":
            return self._longrope(parameters, frequencies)
        fact = f"rope_type is {kind!r}; expected default, linear, dynamic, llama3, yarn or longrope"
        raise UnsupportedArchitecture(fact, path=self._path)

    def _llama3(self, parameters: Mapping[str, Any], frequencies: tuple[float, ...]) -> tuple[float, ...]:
        low = self._number(parameters, "low_freq_factor", 1.0)
        high = self._number(parameters, "high_freq_factor", 4.0)
        if not 0 < low < high:
            self._keys.fail("rope_parameters.high_freq_factor", high, f"more than low_freq_factor, {low}")
        return rope.llama3_frequencies(
            frequencies,
            factor=self._factor(parameters),
            low_freq_factor=low,
            high_freq_factor=high,
            original_context=self._original(parameters),
        )

    def _yarn(
        self, parameters: Mapping[str, Any], frequencies: tuple[float, ...], theta: float
    ) -> tuple[tuple[float, ...], float]:
        factor = self._factor(parameters)
        fast, slow = self._number(parameters, "beta_fast", 32.0), self._number(parameters, "beta_slow", 1.0)
        if not _MIN_TURNS < slow < fast < 1 / _MIN_TURNS:
            self._keys.fail("rope_parameters.beta_slow", slow, f"less than beta_fast, {fast}")
        scale, scale_all = self._number(parameters, "mscale", 0.0), self._number(parameters, "mscale_all_dim", 0.0)
        implied = rope.yarn_attention_factor(factor)
        if scale and scale_all:
            implied = rope.yarn_attention_factor(factor, scale) / rope.yarn_attention_factor(factor, scale_all)
        blended = rope.yarn_frequencies(
            frequencies,
            theta=theta,
            factor=factor,
            original_context=self._original(parameters),
            beta_fast=fast,
            beta_slow=slow,
            truncate=parameters.get("truncate") is not False,
        )
        return blended, self._number(parameters, "attention_factor", implied)

    def _longrope(
        self, parameters: Mapping[str, Any], frequencies: tuple[float, ...]
    ) -> tuple[tuple[float, ...], float]:
        """One choice for all sequences, so that their keys stay comparable and cacheable."""
        original = self._original(parameters)
        name = "long_factor" if self._max_model_len > original else "short_factor"
        divisors = CheckedKeys(parameters, path=self._path).floats(name, len(frequencies))
        if not all(0 < divisor < math.inf for divisor in divisors):
            self._keys.fail(f"rope_parameters.{name}", min(divisors), "positive numbers")
        stretch = self._number(parameters, "factor", self._context / original)
        implied = rope.longrope_attention_factor(stretch * original, original)
        return rope.divided(frequencies, divisors), self._number(parameters, "attention_factor", implied)

    def _factor(self, parameters: Mapping[str, Any]) -> float:
        """By what the context is stretched."""
        factor = self._number(parameters, "factor", self._context / self._original(parameters))
        if not 0 < factor < MAX_TOKENS:
            self._keys.fail("rope_parameters.factor", factor, "a positive number")
        return factor

    def _original(self, parameters: Mapping[str, Any]) -> int:
        """The context before it was stretched. A key of the model itself goes first, as in Phi-3."""
        key = "original_max_position_embeddings"
        inner = CheckedKeys(parameters, path=self._path).int(key, self._context)
        original = self._keys.int(key, inner)
        if not 2 <= original <= MAX_TOKENS:
            self._keys.fail(key, original, "at least 2")
        return original

    def _number(self, parameters: Mapping[str, Any], key: str, default: float) -> float:
        """Return a number among the rope's parameters; null counts as absent."""
        given = {name: value for name, value in parameters.items() if value is not None}
        value = CheckedKeys(given, path=self._path).float(key, default)
        if not math.isfinite(value):
            self._keys.fail(f"rope_parameters.{key}", value, "a number")
        return value

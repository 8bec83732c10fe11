"""Frequencies of rotary position embeddings, with every scaling that checkpoints ask for. Plain floats.

Sources: RoPE, arXiv:2104.09864. Linear scaling, arXiv:2306.15595. YaRN, arXiv:2309.00071. LongRoPE, arXiv:2402.13753.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def plain_frequencies(theta: float, rotary_dims: int) -> tuple[float, ...]:
    """Return theta^(-2i / rotary_dims) for each of the rotary_dims / 2 pairs, in radians per position."""
    return tuple(theta ** (-2 * pair / rotary_dims) for pair in range(rotary_dims // 2))


def divided(frequencies: Sequence[float], divisors: Sequence[float]) -> tuple[float, ...]:
    """Return each frequency divided by its own number (llama3 and longrope scaling)."""
    return tuple(frequency / divisor for frequency, divisor in zip(frequencies, divisors, strict=True))


def yarn_frequencies(
    frequencies: Sequence[float],
    *,
    theta: float,
    factor: float,
    original_context: int,
    beta_fast: float,
    beta_slow: float,
    truncate: bool = True,
) -> tuple[float, ...]:
    """Return YaRN's blend: slow pairs are interpolated by `factor`, fast ones kept, with a ramp between.

    A pair is fast if it makes more than beta_fast turns over the original context, slow with less than beta_slow.
    The ends of the ramp are whole pair numbers, as in the models' training code, unless `truncate` is false.
    """
    dims = 2 * len(frequencies)

    def pair_with_turns(turns: float) -> float:
        return dims * math.log(original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_with_turns(beta_fast), pair_with_turns(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    span = max(high - low, 0.001)
    ramp = [min(max((pair - low) / span, 0.0), 1.0) for pair in range(len(frequencies))]
    return tuple(f / factor * slow + f * (1 - slow) for f, slow in zip(frequencies, ramp, strict=True))


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """Return YaRN's multiplier of cos and sin."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def llama3_frequencies(
    frequencies: Sequence[float],
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_context: int,
) -> tuple[float, ...]:
    """Return Llama 3.1's blend: long waves are interpolated by `factor`, short ones kept, with a ramp between.

    A wave is long if it is longer than original_context / low_freq_factor, short if shorter than original_context /
    high_freq_factor. Source: the reference implementation of Llama 3.1, `apply_scaling`.
    """

    def scaled(frequency: float) -> float:
        turns = original_context * frequency / (2 * math.pi)
        if turns > high_freq_factor:
            return frequency
        if turns < low_freq_factor:
            return frequency / factor
        kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
        return (1 - kept) * frequency / factor + kept * frequency

    return tuple(map(scaled, frequencies))


def longrope_attention_factor(context: float, original_context: int) -> float:
    """Return LongRoPE's multiplier of cos and sin."""
    stretch = context / original_context
    return math.sqrt(1 + math.log(stretch) / math.log(original_context)) if stretch > 1 else 1.0

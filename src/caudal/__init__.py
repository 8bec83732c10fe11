"""Caudal: one engine for open-weight language models, from a laptop to a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caudal.constrain.output_rule import OutputRule
    from caudal.llm import LLM
    from caudal.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "OutputRule", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """Load the heavy parts of the public face when they are first asked for (PEP 562)."""
    if name == "LLM":
        from caudal.llm import LLM  # noqa: PLC0415 - importing caudal must stay cheap

        return LLM
    if name == "SamplingParams":
        from caudal.sampling_params import SamplingParams  # noqa: PLC0415 - the same

        return SamplingParams
    if name == "OutputRule":
        from caudal.constrain.output_rule import OutputRule  # noqa: PLC0415 - the same

        return OutputRule
    message = f"module 'caudal' has no attribute {name!r}"
    raise AttributeError(message)

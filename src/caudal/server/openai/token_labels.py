"""How tokens and their log-probabilities are written in answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caudal.messages import TokenLogprobs
    from caudal.server.tokenizer_port import ServedTokenizer

MIN_LOGPROB = -9999.0
"""JSON has no minus infinity; this is what OpenAI's API writes for it."""


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can carry."""
    return max(logprob, MIN_LOGPROB)


def label(data: bytes) -> str:
    """Return a token's text; a token that is no whole character is written as its bytes, as OpenAI does."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def prompt_logprob_maps(entries: list[TokenLogprobs | None], tokenizer: ServedTokenizer) -> list[dict[str, Any] | None]:
    """Return vLLM's `prompt_logprobs`: per prompt token a map from token id to its figures; None for the first."""
    maps: list[dict[str, Any] | None] = []
    for entry in entries:
        if entry is None:
            maps.append(None)
            continue
        ranked = [
            *((token_id, value, rank) for rank, (token_id, value) in enumerate(_top(entry), 1)),
            (entry.token_id, entry.logprob, entry.rank),
        ]
        maps.append(
            {
                str(token_id): {
                    "logprob": finite(value),
                    "rank": rank,
                    "decoded_token": label(tokenizer.token_bytes(token_id)),
                }
                for token_id, value, rank in ranked
            }
        )
    return maps


def _top(entry: TokenLogprobs) -> list[tuple[int, float]]:
    return list(zip(entry.top_ids, entry.top_logprobs, strict=True))

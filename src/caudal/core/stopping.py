"""Whether a sequence ends with the token that was just appended. Stop strings need text and live in the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.core.request import FinishReason

if TYPE_CHECKING:
    from caudal.core.request import Sequence


def finish_reason_of(seq: Sequence, max_model_len: int) -> FinishReason | None:
    """Why `seq` ends with its last token, or None if it goes on.

    A stop token counts once `min_tokens` tokens precede it in the answer. It wins over the length limits.
    """
    request = seq.request
    num_tokens = len(seq.token_ids)
    num_answered = num_tokens - seq.num_prompt_tokens
    if seq.token_ids[-1] in request.stop_token_ids and num_answered > request.min_tokens:
        return FinishReason.STOP
    if num_tokens >= max_model_len or (request.max_tokens is not None and num_answered >= request.max_tokens):
        return FinishReason.LENGTH
    return None

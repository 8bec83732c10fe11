"""From a parsed request to one answer: what the engine gets, and how what it says is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.messages import AddRequest
from caudal.server.answer_reader import AnswerReader
from caudal.server.answers import Answer

if TYPE_CHECKING:
    from caudal.sampling_params import SamplingParams
    from caudal.server.context import ServerContext
    from caudal.server.openai.sampling_fields import SamplingFields


def new_answer(
    request_id: str, prompt_token_ids: list[int], params: SamplingParams, body: SamplingFields, context: ServerContext
) -> Answer:
    """Return an answer that is not begun yet."""
    request = AddRequest(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        params=params,
        eos_token_ids=tuple(context.tokenizer.eos_token_ids),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )
    detokenizer = context.tokenizer.detokenizer(prompt_token_ids, skip_special_tokens=params.skip_special_tokens)
    reader = AnswerReader(detokenizer, params, include_stop=bool(body.include_stop_str_in_output))
    return Answer(request, reader, context.metrics.timer(len(prompt_token_ids)))

"""From an engine's update to an embedding, or to scores. No I/O."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal.errors import InvalidParameter
from caudal.messages import AddRequest
from caudal.sampling_params import SamplingParams
from caudal.server.answer_reader import Piece, raise_failure
from caudal.server.answers import Answer
from caudal.server.openai.sampling_fields import check_token_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.messages import Update
    from caudal.server.call import Call
    from caudal.server.loaded_model import LoadedModel


class VectorReader:
    """Reads the only update of a text."""

    def push(self, update: Update) -> Piece:
        """Return the vector. Raises as AnswerReader.push does."""
        raise_failure(update)
        return Piece(embedding=update.embedding, finish_reason="stop")


def new_reading(request_id: str, token_ids: list[int], call: Call, model: LoadedModel, parameter: str) -> Answer:
    """Return a request for the vector or the scores of a text, which is not begun yet.

    Raises:
        InvalidParameter: the text has no tokens.
        PromptTooLong: it is longer than the model reads.
    """
    if not token_ids:
        message = f"a text of {parameter} has no tokens; expected at least one"
        raise InvalidParameter(message, parameter=parameter)
    model.check_reads(len(token_ids), parameter)
    if call.meter is not None:
        call.meter.count_prompt(len(token_ids))
    request = AddRequest(
        request_id=request_id,
        prompt_token_ids=token_ids,
        params=SamplingParams(max_tokens=1),
        tenant=call.tenant,
        priority=call.priority(None),
    )
    return Answer(request, VectorReader(), model.metrics.timer(len(token_ids)))


@dataclass(frozen=True, slots=True)
class Readings:
    """Texts to be read, and how many tokens they have in all."""

    answers: list[Answer]
    num_tokens: int


async def readings_of(
    texts: Sequence[str | list[int]], call: Call, model: LoadedModel, *, parameter: str, special: bool = True
) -> Readings:
    """Return requests for the vectors of texts.

    Args:
        texts: or their token ids.
        call: whose request it is.
        model: who reads.
        parameter: the field that the texts come from.
        special: put the tokens around each text that the model expects.

    Raises:
        InvalidParameter: the model writes text, or a text cannot be read.
        PromptTooLong: a text is longer than the model reads.
    """
    model.require("embed")

    def ids_of(text: str | list[int]) -> list[int]:
        if not isinstance(text, str):
            return text
        model.check_text(len(text), parameter)
        return model.tokenizer.encode(text, add_special_tokens=special)

    tokens = await model.tokenize(lambda: [ids_of(text) for text in texts], call.num_bytes)
    for token_ids in tokens:
        check_token_ids(token_ids, model.tokenizer, parameter)
    id_ = f"embd-{secrets.token_hex(16)}"
    answers = [new_reading(f"{id_}-{i}", ids, call, model, parameter) for i, ids in enumerate(tokens)]
    return Readings(answers, sum(map(len, tokens)))

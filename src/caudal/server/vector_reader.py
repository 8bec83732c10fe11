"""From an engine's update to an embedding, or to scores. No I/O."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from caudal.errors import InvalidParameter
from caudal.messages import AddRequest
from caudal.sampling_params import SamplingParams
from caudal.server.answer_reader import Piece, raise_failure
from caudal.server.answers import Answer
from caudal.server.openai.sampling_fields import check_token_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from caudal.messages import Update
    from caudal.server.answers import AnswerWatcher
    from caudal.server.call import Call
    from caudal.server.loaded_model import LoadedModel


class VectorReader:
    """Reads the only update of a text."""

    def push(self, update: Update) -> Piece:
        """Return the vector. Raises as AnswerReader.push does."""
        raise_failure(update)
        return Piece(embedding=update.embedding, finish_reason="stop")


def new_readings(
    request_id: str,
    tokens: Sequence[list[int]],
    shown: Callable[[], Sequence[Any]],
    *,
    call: Call,
    model: LoadedModel,
    parameter: str,
) -> list[Answer]:
    """Return requests for the vectors or the scores of texts, which are not begun yet.

    Args:
        request_id: unique in the engine, when a number is added for each text.
        tokens: the token ids of each text.
        shown: returns what a full audit log has of them.
        call: whose request it is.
        model: who reads.
        parameter: the field that the texts come from.

    Raises:
        InvalidParameter: a text has no tokens.
        PromptTooLong: one is longer than the model reads.
        HTTPProblem: the key has not enough tokens left for all of them.
    """
    for token_ids in tokens:
        if not token_ids:
            message = f"a text of {parameter} has no tokens; expected at least one"
            raise InvalidParameter(message, parameter=parameter)
        model.check_reads(len(token_ids), parameter)
    watchers: list[tuple[AnswerWatcher, ...]] = [() for _ in tokens]
    if call.meter is not None:
        watchers = [(meter,) for meter in call.meter.begin_reading([*map(len, tokens)], shown, parameter)]
    return [
        Answer(
            AddRequest(
                request_id=f"{request_id}-{i}",
                prompt_token_ids=token_ids,
                params=SamplingParams(max_tokens=1),
                tenant=call.tenant,
                priority=call.priority(None),
            ),
            VectorReader(),
            model.metrics.timer(len(token_ids), call.tenant),
            watchers[i],
        )
        for i, token_ids in enumerate(tokens)
    ]


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
        HTTPProblem: the key has not enough tokens left for all of them.
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
    request_id = f"embd-{secrets.token_hex(16)}"
    decode = partial(model.tokenizer.decode, skip_special_tokens=False)

    def shown() -> list[str]:
        return [text if isinstance(text, str) else decode(text) for text in texts]

    answers = new_readings(request_id, tokens, shown, call=call, model=model, parameter=parameter)
    return Readings(answers, sum(map(len, tokens)))

"""From an engine's update to an embedding, or to scores. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.errors import InvalidParameter
from caudal.messages import AddRequest
from caudal.sampling_params import SamplingParams
from caudal.server.answer_reader import Piece, raise_failure
from caudal.server.answers import Answer

if TYPE_CHECKING:
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

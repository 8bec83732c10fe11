"""POST /embedding as llama-server answers it: a list with one vector for each text.

Source: llama.cpp's server documentation, `POST /embedding`. `embd_normalize` 2 (the default) is length 1, -1 leaves the
vector as it is; other norms are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from caudal.errors import InvalidParameter, UnsupportedParameter
from caudal.server.generation_response import GenerationResponse
from caudal.server.openai.texts import read_texts
from caudal.server.vector_reader import readings_of
from caudal.server.whole_answer import WholeAnswerWriter
from caudal.vectors import normalized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from caudal.server.answer_reader import Piece
    from caudal.server.call import Call


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request body: `content`, or `input` as OpenAI names it."""

    model: str | None = None
    content: str | list[str | int | list[int]] | None = None
    input: str | list[str | int | list[int]] | None = None
    embd_normalize: int = 2


class TextEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """A text's vector: the only row, for the rows of a text are pooled."""

    index: int
    embedding: list[list[float]]


_decoder = msgspec.json.Decoder(EmbeddingRequest)
_encode = msgspec.json.Encoder().encode


async def embedding(call: Call) -> Response:
    """Return a vector for each text."""
    body = await call.body(_decoder)
    model = await call.model(body.model)
    given = body.content if body.content is not None else body.input
    if given is None:
        message = "neither content nor input is given; expected a text, token ids, or a list of either"
        raise InvalidParameter(message, parameter="content")
    if body.embd_normalize not in (-1, 2):
        message = f"embd_normalize is {body.embd_normalize}; only 2 (length 1) and -1 (as it is) are supported"
        raise UnsupportedParameter(message, parameter="embd_normalize")
    texts = read_texts(given, "content", model, most=call.settings.max_open_requests)
    readings = await readings_of(texts, call, model, parameter="content")

    def write(pieces: Sequence[Piece]) -> bytes:
        vectors = [piece.embedding or [] for piece in pieces]
        shown = [normalized(vector) if body.embd_normalize == 2 else vector for vector in vectors]
        return _encode([TextEmbedding(index=i, embedding=[vector]) for i, vector in enumerate(shown)])

    return GenerationResponse(call, model, answers=readings.answers, writer=WholeAnswerWriter(write), stream=False)

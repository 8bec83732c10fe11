"""POST /v1/embeddings: texts or token ids in, vectors out.

Source: OpenAI API reference, "Embeddings". The official clients ask for base64 of little-endian float32.
"""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING

import msgspec

from caudal.errors import InvalidParameter
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
    """The request body. `dimensions` keeps so many of the first numbers, for models that were made for it."""

    model: str | None = None
    input: str | list[str | int | list[int]]
    encoding_format: str | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    add_special_tokens: bool | None = None


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """One vector."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    object: str = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


_decoder = msgspec.json.Decoder(EmbeddingRequest)
_encode = msgspec.json.Encoder().encode


async def embeddings(call: Call) -> Response:
    """Return a vector for each text."""
    body = await call.body(_decoder)
    model = await call.model(body.model)
    if body.encoding_format not in (None, "float", "base64"):
        message = f"encoding_format is {body.encoding_format!r}; expected 'float' or 'base64'"
        raise InvalidParameter(message, parameter="encoding_format")
    if body.dimensions is not None and body.dimensions < 1:
        message = f"dimensions is {body.dimensions}; expected at least 1"
        raise InvalidParameter(message, parameter="dimensions")
    texts = read_texts(body.input, "input", model, most=call.settings.max_open_requests)
    special = body.add_special_tokens is not False
    readings = await readings_of(texts, call, model, parameter="input", special=special)
    num_tokens = readings.num_tokens

    def write(pieces: Sequence[Piece]) -> bytes:
        data = [
            Embedding(index=i, embedding=written(vector_of(piece.embedding or [], body), body))
            for i, piece in enumerate(pieces)
        ]
        usage = EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
        return _encode(EmbeddingList(data=data, model=body.model or model.name, usage=usage))

    return GenerationResponse(call, model, answers=readings.answers, writer=WholeAnswerWriter(write), stream=False)


def vector_of(vector: list[float], body: EmbeddingRequest) -> list[float]:
    """Return a vector cut to its first dimensions and brought to length 1, as the request wants it."""
    if body.dimensions is not None:
        if body.dimensions > len(vector):
            message = f"dimensions is {body.dimensions}; this model's vectors have {len(vector)}"
            raise InvalidParameter(message, parameter="dimensions")
        vector = vector[: body.dimensions]
    return vector if body.normalize is False else normalized(vector)


def written(vector: list[float], body: EmbeddingRequest) -> list[float] | str:
    """Return a vector as numbers, or as base64 of little-endian float32."""
    if body.encoding_format != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()

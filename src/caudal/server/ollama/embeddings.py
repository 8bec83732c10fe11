"""POST /api/embed and its older form /api/embeddings: texts in, vectors out.

Source: Ollama's API documentation, "Generate Embeddings". Vectors of /api/embed have length 1, the older route's are as
the model gives them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from caudal.errors import InvalidParameter
from caudal.server.generation_response import GenerationResponse
from caudal.server.ollama.names import look_for_model
from caudal.server.ollama.residence import keep_loaded
from caudal.server.openai.texts import read_texts
from caudal.server.vector_reader import readings_of
from caudal.server.whole_answer import WholeAnswerWriter
from caudal.vectors import normalized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.server.answer_reader import Piece
    from caudal.server.call import Call


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request body. `truncate` has no effect: what does not fit is an error."""

    model: str | None = None
    name: str | None = None
    input: str | list[str] = ""
    prompt: str | None = None
    dimensions: int | None = None
    keep_alive: float | str | None = None


class EmbedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /api/embed. Durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class OldEmbedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /api/embeddings."""

    embedding: list[float]


_decoder = msgspec.json.Decoder(EmbedRequest)
_encode = msgspec.json.Encoder().encode


async def embed(call: Call) -> Response:
    """Return a vector for each text."""
    begun_ns = time.monotonic_ns()
    body = await call.body(_decoder)
    if body.dimensions is not None and body.dimensions < 1:
        message = f"dimensions is {body.dimensions}; expected at least 1"
        raise InvalidParameter(message, parameter="dimensions")
    model = await call.model((await look_for_model(call, body.model or body.name)).name)
    keep_loaded(call, model.info, body)
    if body.input == []:
        nothing = EmbedAnswer(
            model=body.model or body.name or model.name, embeddings=[], total_duration=0, prompt_eval_count=0
        )
        return Response(_encode(nothing), media_type="application/json")
    texts = read_texts(body.input or "", "input", model, most=call.settings.max_open_requests)
    readings = await readings_of(texts, call, model, parameter="input")

    def write(pieces: Sequence[Piece]) -> bytes:
        vectors = [normalized((piece.embedding or [])[: body.dimensions]) for piece in pieces]
        answer = EmbedAnswer(
            model=body.model or body.name or model.name,
            embeddings=vectors,
            total_duration=time.monotonic_ns() - begun_ns,
            prompt_eval_count=readings.num_tokens,
        )
        return _encode(answer)

    return GenerationResponse(call, model, answers=readings.answers, writer=WholeAnswerWriter(write), stream=False)


async def old_embed(call: Call) -> Response:
    """Return the vector of one text."""
    body = await call.body(_decoder)
    model = await call.model((await look_for_model(call, body.model or body.name)).name)
    keep_loaded(call, model.info, body)
    readings = await readings_of([body.prompt or ""], call, model, parameter="prompt")

    def write(pieces: Sequence[Piece]) -> bytes:
        return _encode(OldEmbedAnswer(embedding=pieces[0].embedding or []))

    return GenerationResponse(call, model, answers=readings.answers, writer=WholeAnswerWriter(write), stream=False)

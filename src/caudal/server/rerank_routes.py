"""POST /v1/rerank, /rerank, /reranking and /v1/reranking: how well documents answer a query.

Source: the rerank APIs of Jina and Cohere (query, documents, top_n; results with relevance_score), and that of Text
Embeddings Inference (query, texts; a bare list with score), as llama.cpp's server has both.
"""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from caudal.errors import InvalidParameter
from caudal.server.generation_response import GenerationResponse
from caudal.server.vector_reader import new_readings
from caudal.server.whole_answer import WholeAnswerWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from caudal.server.answer_reader import Piece
    from caudal.server.call import Call


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request body: `documents` gives Jina's answer, `texts` a bare list."""

    model: str | None = None
    query: str
    documents: list[str | dict[str, Any]] | None = None
    texts: list[str] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None


class RankedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One document's score."""

    index: int
    relevance_score: float
    document: dict[str, str] | UnsetType = UNSET


class RerankUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class RerankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Jina's answer, the best document first."""

    id: str
    object: str = "list"
    model: str
    results: list[RankedDocument]
    usage: RerankUsage


class RankedText(msgspec.Struct, frozen=True, kw_only=True):
    """One text's score, as Text Embeddings Inference writes it."""

    index: int
    score: float
    text: str | UnsetType = UNSET


_decoder = msgspec.json.Decoder(RerankRequest)
_encode = msgspec.json.Encoder().encode


async def rerank(call: Call) -> Response:
    """Score every document with the query."""
    body = await call.body(_decoder)
    model = await call.model(body.model)
    model.require("score")
    documents = _documents(body, most=call.settings.max_open_requests)

    def ids_of(document: str) -> list[int]:
        model.check_text(len(body.query) + len(document), "documents")
        return model.tokenizer.encode_pair(body.query, document)

    pairs = await model.tokenize(lambda: [ids_of(document) for document in documents], call.num_bytes)
    id_ = f"rerank-{secrets.token_hex(16)}"
    answers = new_readings(
        id_,
        pairs,
        lambda: [{"query": body.query, "documents": documents}],
        call=call,
        model=model,
        parameter="documents",
    )
    num_tokens = sum(map(len, pairs))

    def write(pieces: Sequence[Piece]) -> bytes:
        scores = [score_of(piece.embedding or [], raw=bool(body.raw_scores)) for piece in pieces]
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: body.top_n]
        if body.texts is not None:
            shown = body.return_text
            return _encode([RankedText(index=i, score=scores[i], text=documents[i] if shown else UNSET) for i in order])
        results = [
            RankedDocument(
                index=i,
                relevance_score=scores[i],
                document={"text": documents[i]} if body.return_documents else UNSET,
            )
            for i in order
        ]
        usage = RerankUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
        return _encode(RerankAnswer(id=id_, model=body.model or model.name, results=results, usage=usage))

    return GenerationResponse(call, model, answers=answers, writer=WholeAnswerWriter(write), stream=False)


def _documents(body: RerankRequest, *, most: int) -> list[str]:
    given = body.documents if body.documents is not None else body.texts
    field = "documents" if body.texts is None else "texts"
    if not given:
        message = f"{field} is empty; expected a list of texts"
        raise InvalidParameter(message, parameter=field)
    if len(given) > most:
        message = f"{field} has {len(given)} texts; expected at most {most}"
        raise InvalidParameter(message, parameter=field)
    if body.top_n is not None and body.top_n < 1:
        message = f"top_n is {body.top_n}; expected at least 1"
        raise InvalidParameter(message, parameter="top_n")
    documents = [document if isinstance(document, str) else document.get("text") for document in given]
    if not all(isinstance(document, str) for document in documents):
        message = f"{field} has an object without text; expected texts, or objects with a text"
        raise InvalidParameter(message, parameter=field)
    return [str(document) for document in documents]


def score_of(scores: list[float], *, raw: bool) -> float:
    """Return the score of a pair: of one label its logit, of two how much likelier the first is; as a probability."""
    if not scores:
        return 0.0
    logit = scores[0] - scores[1] if len(scores) == 2 else scores[0]
    if raw:
        return logit
    return 1.0 / (1.0 + math.exp(-logit)) if logit > -700 else 0.0

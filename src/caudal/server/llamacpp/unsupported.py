"""Routes for which the served models lack what is needed: reranking, and embeddings in llama-server's form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.server.problems import HTTPProblem

if TYPE_CHECKING:
    from starlette.responses import Response

    from caudal.server.call import Call


async def rerank(call: Call) -> Response:  # noqa: ARG001 - every handler's shape
    """Refuse: no reranker is served."""
    message = "no served model is a reranker; this route needs one"
    raise HTTPProblem(501, message, code="not_supported")


async def embedding(call: Call) -> Response:  # noqa: ARG001 - the same
    """Refuse: no embedding model is served."""
    message = "no served model makes embeddings; this route needs one that does"
    raise HTTPProblem(501, message, code="not_supported")

"""Requests without a prompt: they load a model, or unload it with keep_alive 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from caudal.server.keys.key import MODELS_WRITE
from caudal.server.ollama.time_format import keep_alive_s, now
from caudal.server.problems import HTTPProblem

if TYPE_CHECKING:
    from starlette.responses import Response

    from caudal.server.call import Call
    from caudal.server.ollama.embeddings import EmbedRequest
    from caudal.server.ollama.protocol import AnswerRequest
    from caudal.server.settings import ServedModel


async def residence_answer(call: Call, served: ServedModel, body: AnswerRequest, content: dict[str, Any]) -> Response:
    """Load or unload a model and say so.

    Args:
        call: the request.
        served: the model.
        body: whose keep_alive decides.
        content: the endpoint's fields without content.
    """
    reason = "load"
    stay_s = keep_alive_s(body.keep_alive)
    if stay_s == 0:
        if not _may_decide(call):
            message = f"this key may not unload {served.name!r}; it needs the scope {MODELS_WRITE}"
            raise HTTPProblem(403, message, code="insufficient_scope", parameter="keep_alive")
        await call.context.models.unload(served.name)
        reason = "unload"
    else:
        await call.model(served.name)
        keep_loaded(call, served, body)
    head = {"model": body.model or served.name, "created_at": now()}
    return JSONResponse({**head, **content, "done": True, "done_reason": reason})


def keep_loaded(call: Call, served: ServedModel, body: AnswerRequest | EmbedRequest) -> None:
    """Keep a model, which a request has just got, as long after its last use as the request says, if its key may."""
    stay_s = keep_alive_s(body.keep_alive)
    if stay_s is not None and _may_decide(call):
        call.context.models.keep(served.name, stay_s)


def _may_decide(call: Call) -> bool:
    """Whether the key may say how long models stay. Clients send keep_alive by themselves: others' is ignored."""
    return call.key is None or call.key.may(MODELS_WRITE)

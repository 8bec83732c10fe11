"""POST /api/embed and /api/embeddings: refused while no served model makes embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from caudal.errors import UnsupportedParameter
from caudal.server.ollama.names import find_model
from caudal.server.ollama.protocol import ModelRequest

if TYPE_CHECKING:
    from starlette.responses import Response

    from caudal.server.call import Call

_decoder = msgspec.json.Decoder(ModelRequest)


async def embed(call: Call) -> Response:
    """Refuse: chat models make no embeddings here."""
    body = await call.body(_decoder)
    model = find_model(call, body.model or body.name)
    message = f"the model {model.name!r} does not support embeddings"
    raise UnsupportedParameter(message, parameter="model")

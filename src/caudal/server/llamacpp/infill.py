"""POST /infill: code for a gap between a prefix and a suffix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from caudal.server.fill_in import Gap, OtherFile, fill_in_prompt
from caudal.server.llamacpp.completion import completion_response
from caudal.server.llamacpp.prompts import prompt_of
from caudal.server.llamacpp.protocol import InfillRequest

if TYPE_CHECKING:
    from starlette.responses import Response

    from caudal.server.call import Call

_decoder = msgspec.json.Decoder(InfillRequest)
_UNNAMED = "tmp"


async def infill(call: Call) -> Response:
    """Fill in. The answer is that of /completion."""
    body = await call.body(_decoder)
    model = await call.model(body.model)
    gap = Gap(
        before=(body.input_prefix or "") + (body.prompt or ""),
        after=body.input_suffix or "",
        files=[OtherFile(name=extra.filename or _UNNAMED, text=extra.text) for extra in body.input_extra or []],
    )
    token_ids = await fill_in_prompt(gap, model)
    prompt = await model.tokenize(lambda: prompt_of(token_ids, model.tokenizer), call.num_bytes)
    return await completion_response(call, model, body, [prompt])

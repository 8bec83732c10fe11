"""GET /props and /slots: what llama-server's clients look up before they ask for anything.

There are no slots here. As many are shown as sequences may run at once, and as many are busy as run now; whose
requests they are is nobody's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from caudal import __version__
from caudal.server.llamacpp.protocol import NativeRequest
from caudal.server.llamacpp.sampling import sampling_params, settings_of
from caudal.server.ollama.capabilities import thinks, uses_tools
from caudal.server.problems import HTTPProblem

if TYPE_CHECKING:
    from starlette.responses import Response

    from caudal.server.call import Call
    from caudal.server.loaded_model import LoadedModel

BUILD_INFO = f"b1-caudal-{__version__}"


async def props(call: Call) -> Response:
    """Describe the server and one of its models: `model` in the query, and autoload=false not to load it for that."""
    model = await _asked(call)
    tokenizer, info = model.tokenizer, model.info
    template = tokenizer.chat_template_source
    return JSONResponse(
        {
            "default_generation_settings": {"params": _defaults(model), "n_ctx": model.max_model_len or 0},
            "total_slots": _num_slots(model),
            "model_alias": info.name,
            "model_ftype": info.facts.quantization,
            "model_path": info.facts.file_name,
            "modalities": {"vision": False, "video": False, "audio": False},
            "endpoint_slots": True,
            "endpoint_props": False,
            "endpoint_metrics": True,
            "chat_template": template,
            "chat_template_caps": _template_caps(template),
            "bos_token": tokenizer.bos_token,
            "eos_token": tokenizer.eos_token,
            "build_info": BUILD_INFO,
            "is_sleeping": False,
        }
    )


async def slots(call: Call) -> Response:
    """List the places for running requests; with fail_on_no_slot=1, 503 if none is free."""
    model = await _asked(call)
    count, num_running = _num_slots(model), model.client.stats.num_running
    if call.request.query_params.get("fail_on_no_slot") and num_running >= count:
        message = "no slot is free"
        raise HTTPProblem(503, message, code="engine_unavailable", headers={"retry-after": "1"})
    return JSONResponse(
        [
            {
                "id": number,
                "n_ctx": model.max_model_len or 0,
                "speculative": False,
                "is_processing": number < num_running,
            }
            for number in range(count)
        ]
    )


async def change_props(call: Call) -> Response:  # noqa: ARG001 - every handler's shape
    """Refuse: a running server's properties do not change."""
    message = "this server does not change its properties while it runs; start it with other flags"
    raise HTTPProblem(501, message, code="not_supported")


async def change_slot(call: Call) -> Response:  # noqa: ARG001 - the same
    """Refuse to save, restore or erase a slot."""
    message = "this server has no slots to save or restore; common beginnings of prompts are kept without that"
    raise HTTPProblem(501, message, code="not_supported")


async def lora_adapters(call: Call) -> Response:  # noqa: ARG001 - the same
    """List the adapters: there are none."""
    return JSONResponse([])


async def _asked(call: Call) -> LoadedModel:
    """Return the model that a GET is about."""
    query = call.request.query_params
    return await call.model_to_look_at(query.get("model"), loads=query.get("autoload") not in ("false", "0"))


def _num_slots(model: LoadedModel) -> int:
    ready = model.client.ready
    return 1 if ready is None else ready.max_num_seqs


def _defaults(model: LoadedModel) -> dict[str, Any]:
    params = sampling_params(NativeRequest(), model.tokenizer, max_tokens=None)
    return settings_of(params, None, stream=True)


def _template_caps(template: str) -> dict[str, bool]:
    tools = uses_tools(template)
    return {
        "supports_tools": tools,
        "supports_tool_calls": tools,
        "supports_parallel_tool_calls": tools,
        "supports_system_role": bool(template),
        "supports_preserve_reasoning": thinks(template),
    }

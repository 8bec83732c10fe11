"""Which scope of a key opens which route."""

from __future__ import annotations

from caudal.server.keys.key import ADMIN, INFERENCE, METRICS, MODELS_READ, MODELS_WRITE

OWN = "own"
"""Any key may: it is about the key itself."""

_READ = frozenset({"/models", "/props", "/slots", "/lora-adapters", "/version", "/tokenizer_info"})
_READ_BY_POST = frozenset({"/api/show"})
_WRITE = frozenset(
    {
        "/api/pull",
        "/api/push",
        "/api/create",
        "/api/copy",
        "/api/delete",
        "/models/load",
        "/models/unload",
        "/lora-adapters",
        "/props",
    }
)
_OLLAMA_READ = frozenset({"/api/tags", "/api/ps", "/api/version", "/api/hello"})


def scope_of(method: str, path: str) -> str:
    """Return the scope that a request needs, one of SCOPES or OWN. What is not known here needs inference."""
    plain = path.removeprefix("/v1")
    reads = method in ("GET", "HEAD")
    if path == "/admin/models" or path.startswith("/admin/models/"):
        return MODELS_READ if reads else MODELS_WRITE
    if path == "/admin" or path.startswith("/admin/"):
        return ADMIN
    if path == "/metrics":
        return METRICS
    if path == "/me" or path.startswith("/me/"):
        return OWN
    if plain in _READ_BY_POST or (reads and (plain in _READ | _OLLAMA_READ or plain.startswith("/models/"))):
        return MODELS_READ
    if not reads and (plain in _WRITE or plain.startswith("/lora-adapters/")):
        return MODELS_WRITE
    return INFERENCE

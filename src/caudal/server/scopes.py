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

_TREES = (("/admin", ADMIN), ("/metrics", METRICS), ("/me", OWN))
"""Paths, with all below them, and their scope."""


def scope_of(method: str, path: str) -> str:
    """Return the scope that a request needs, one of SCOPES or OWN. What is not known here needs inference."""
    reads = method in ("GET", "HEAD")
    named = next((scope for prefix, scope in _TREES if path == prefix or path.startswith(f"{prefix}/")), None)
    if path == "/admin/models" or path.startswith("/admin/models/"):
        return MODELS_READ if reads else MODELS_WRITE
    return named or _scope_of_models(path.removeprefix("/v1"), reads=reads) or INFERENCE


def _scope_of_models(plain: str, *, reads: bool) -> str | None:
    """Return the scope of a route that is about models; None for another one."""
    if plain in _READ_BY_POST or (reads and (plain in _READ | _OLLAMA_READ or plain.startswith("/models/"))):
        return MODELS_READ
    if not reads and (plain in _WRITE or plain.startswith("/lora-adapters/")):
        return MODELS_WRITE
    return None

"""Ollama's routes: method, path, handler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.server.ollama.chat import chat
from caudal.server.ollama.embeddings import embed, old_embed
from caudal.server.ollama.generate import generate
from caudal.server.ollama.management import blob, copy, create, delete, pull, push
from caudal.server.ollama.model_lists import running, show, status, tags, version

if TYPE_CHECKING:
    from caudal.server.call import Handler

OLLAMA: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/api/chat", chat),
    ("POST", "/api/generate", generate),
    ("POST", "/api/embed", embed),
    ("POST", "/api/embeddings", old_embed),
    ("GET", "/api/tags", tags),
    ("GET", "/api/ps", running),
    ("POST", "/api/show", show),
    ("GET", "/api/version", version),
    ("GET", "/api/status", status),
    ("POST", "/api/pull", pull),
    ("DELETE", "/api/delete", delete),
    ("POST", "/api/copy", copy),
    ("POST", "/api/create", create),
    ("POST", "/api/push", push),
    ("GET", "/api/blobs/{digest}", blob),
    ("POST", "/api/blobs/{digest}", blob),
)

"""What a server is started with, apart from the engine's own configuration. Frozen values."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

from caudal.server.model_facts import ModelFacts

ACCESS_LOG_FORMATS = ("off", "text", "json")
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """The model as clients see it.

    Attributes:
        name: its id in /v1/models.
        aliases: other names that requests may use.
        created: Unix time shown in /v1/models.
        path: of its file, or of the first of its shards; "" if it has none.
        size_bytes: of all its files.
        modified_s: Unix time of their latest change.
        context_length: what the file says that the model was made for; None if that is not known.
        kv_bytes_per_token: of its KV cache in float16; 0 if that is not known.
        error: why its file cannot be used; None if nothing is known against it.
        facts: what its file says of it.
        chat_template: jinja2 source that takes the place of the file's; None for that.
    """

    name: str
    aliases: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))
    path: str = ""
    size_bytes: int = 0
    modified_s: float = 0.0
    context_length: int | None = None
    kv_bytes_per_token: int = 0
    error: str | None = None
    facts: ModelFacts = field(default_factory=ModelFacts)
    chat_template: str | None = field(default=None, repr=False)

    def answers_to(self, name: str | None) -> bool:
        """Whether a request for this model name is for this model. No name means whatever is served."""
        return not name or name == self.name or name in self.aliases


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The HTTP side.

    Attributes:
        host, port: where to listen; port 0 takes a free one.
        api_keys: any of them opens the server; none leaves it open.
        insecure_no_key: listen beyond loopback without a key all the same.
        allowed_origins: origins that a browser may call from ("*" is any); none by default.
        max_body_bytes: a larger request body is refused with 413.
        body_timeout_s: a request's body must have come within this time; longer is a 408.
        max_head_bytes: a request line with its headers that is larger is refused with 431.
        head_timeout_s: it must have come within this time; longer is a 408.
        max_open_requests: answers being made or waiting at a time; the next is refused with 429.
        ping_interval_s: silence after which a stream gets a comment, so that proxies keep it open.
        first_byte_wait_s: a stream's status line waits this long for the first news, so that a refusal by the engine
            has its own status code.
        access_log: a line per request on stderr: "off", "text" or "json".
        metrics_per_key: count tokens and requests per key as well.
        otlp_traces_endpoint: where a span per request is sent (OTLP over HTTP); "" sends none.
        drain_s: a graceful shutdown waits this long for open requests.
        state_dir: where keys, usage and the audit log are kept; None keeps nothing, and knows no keys but api_keys.
        audit_log: "off", "metadata" or "full"; None is metadata when there are keys.
        audit_retention_days: older files of the audit log are removed.
        audit_strict: refuse requests while the audit log cannot be written.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    insecure_no_key: bool = False
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 32 * 1024 * 1024
    body_timeout_s: float = 120.0
    max_head_bytes: int = 64 * 1024
    head_timeout_s: float = 30.0
    max_open_requests: int = 1024
    ping_interval_s: float = 15.0
    first_byte_wait_s: float = 2.0
    access_log: str = "off"
    metrics_per_key: bool = False
    otlp_traces_endpoint: str = ""
    drain_s: float = 30.0
    state_dir: Path | None = None
    audit_log: str | None = None
    audit_retention_days: int = 180
    audit_strict: bool = False

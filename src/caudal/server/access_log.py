"""The access log: a line per request on standard error, as text or as JSON. Never a prompt, a key or a query."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

import msgspec

if TYPE_CHECKING:
    from caudal.server.request_record import RequestRecord

_MAX_PATH_CHARS = 512


class AccessLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the log in JSON; what does not apply is left out.

    Attributes:
        log: "access", which tells these lines from other JSON lines on the stream.
        time: when the request came: UTC, ISO 8601.
        request_id, client_request_id, client: see RequestRecord.
        path: without the query; cut after 512 characters.
        bytes: of the response's body.
        duration_s: until the last byte.
        prompt_tokens, cached_tokens, completion_tokens: of requests that generate.
        first_token_s: until the first token of the first answer that had one.
        key: the id of the key that was sent, never the key.
        error: the code of what the client was told instead of an answer.
    """

    log: str
    time: str
    request_id: str
    client: str
    method: str
    path: str
    status: int
    bytes: int
    duration_s: float
    client_request_id: str | None = None
    model: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    first_token_s: float | None = None
    key: str = ""
    error: str | None = None


def line_of(record: RequestRecord) -> AccessLine:
    """Return what the log says of a request."""
    time = datetime.fromtimestamp(record.begun_unix_s, UTC).isoformat(timespec="milliseconds")
    first_s = [answer.timer.first_s for answer in record.answers if answer.timer.first_s is not None]
    generates = bool(record.answers)
    return AccessLine(
        log="access",
        time=time.replace("+00:00", "Z"),
        request_id=record.request_id,
        client=record.client,
        method=record.method,
        path=record.path[:_MAX_PATH_CHARS],
        status=record.status,
        bytes=record.num_bytes,
        duration_s=round(record.duration_s, 6),
        client_request_id=record.client_request_id,
        model=record.model,
        prompt_tokens=record.num_prompt_tokens if generates else None,
        cached_tokens=max(answer.timer.num_cached_tokens for answer in record.answers) if generates else None,
        completion_tokens=record.num_tokens if generates else None,
        first_token_s=round(record.unix_s(min(first_s)) - record.begun_unix_s, 6) if first_s else None,
        key=record.tenant,
        error=None if record.problem is None else record.problem.code or str(record.problem.status),
    )


def text_of(line: AccessLine) -> str:
    """Return a line for people. What a client chose is written so that it cannot pretend to be another line."""
    parts = [
        line.time,
        line.client or "-",
        f"{_plain(line.method)} {_plain(line.path)}",
        str(line.status),
        f"{line.bytes}B",
        f"{line.duration_s * 1000:.1f}ms",
        line.request_id,
    ]
    named = {"model": line.model, "key": line.key, "error": line.error or ""}
    if line.prompt_tokens is not None:
        parts.append(f"tokens={line.prompt_tokens}+{line.completion_tokens}")
        parts.append(f"cached={line.cached_tokens}")
    if line.first_token_s is not None:
        parts.append(f"first={line.first_token_s * 1000:.1f}ms")
    parts += [f"{name}={_plain(value)}" for name, value in named.items() if value]
    return " ".join(parts)


def _plain(text: str) -> str:
    """Return text with blanks, controls and everything outside ASCII escaped."""
    return "".join(c if "!" <= c <= "~" else c.encode("unicode_escape").decode() if c != " " else "%20" for c in text)


class AccessLog:
    """Writes the lines.

    Args:
        style: "text" or "json".
        stream: where to; standard error if it is not given.
    """

    def __init__(self, style: str, stream: TextIO | None = None) -> None:
        self._as_json = style == "json"
        self._stream = stream

    def write(self, record: RequestRecord) -> None:
        """Write a request's line. A full disk behind standard error does not fail requests."""
        line = line_of(record)
        try:
            text = json.dumps(msgspec.to_builtins(line)) if self._as_json else text_of(line)
            print(text, file=self._stream or sys.stderr, flush=True)
        except (OSError, ValueError, UnicodeError):
            return

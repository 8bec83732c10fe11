"""The answer of /api/pull: lines of progress, or one object at the end.

The status line of a stream waits a little for the first news, so that what the hub does not have gets a status of its
own. Later failures are a line.

Source: Ollama's API reference, "Pull a model".
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import JSONResponse, Response

from caudal.server.answer_writer import NDJSON, stream_start
from caudal.server.disconnects import send_until_gone
from caudal.server.ollama.error_shape import ollama_shape
from caudal.server.problems import describe_error, error_response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Receive, Scope, Send

    from caudal.server.call import Call
    from caudal.server.shared_pull import FileProgress, SharedPull

FIRST = "pulling manifest"
LAST = ("verifying sha256 digest", "writing manifest", "success")
_encode = msgspec.json.Encoder().encode


def status_lines(*statuses: str) -> bytes:
    """Return lines that say one word each."""
    return b"".join(_encode({"status": status}) + b"\n" for status in statuses)


class PullLines:
    """Tells what is new about files."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}
        self._last = status_lines(FIRST)

    def news(self, files: Sequence[FileProgress]) -> bytes:
        """Return a line for each file that is further than it was; b"" if none is."""
        lines: list[bytes] = []
        for file in files:
            done = file.num_done
            if done is None or self._told.get(file.name) == done:
                continue
            self._told[file.name] = done
            fields: dict[str, Any] = {"digest": file.digest, "total": file.num_bytes, "completed": done}
            name = file.digest.removeprefix("sha256:")[:12] if file.digest != file.name else file.name
            lines.append(_encode({"status": f"pulling {name}", **fields}) + b"\n")
        if lines:
            self._last = lines[-1]
        return b"".join(lines)

    def ping(self) -> bytes:
        """Return the last line again: this format has no comments to fill a silence with."""
        return self._last


class PullResponse(Response):
    """Watches a pull and tells of it. A client that leaves no longer counts as watching.

    Args:
        call: the request.
        pull: the pull.
        stream: tell of the progress too.
    """

    def __init__(self, call: Call, pull: SharedPull, *, stream: bool) -> None:
        super().__init__()
        self._call = call
        self._pull = pull
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or stop as soon as the client is gone."""
        with self._pull.watched():
            tell = self._send_lines if self._stream else self._send_body
            await send_until_gone(tell(scope, receive, send), receive)

    async def _send_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.wait((self._pull.task,))
        error = self._error()
        response = JSONResponse({"status": LAST[-1]}) if error is None else self._refusal(error)
        await response(scope, receive, send)

    def _refusal(self, error: Exception) -> Response:
        return error_response(error, self._call.shape, self._call.request_id)

    async def _send_lines(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_done = await self._pull.wait(self._call.settings.first_byte_wait_s)
        if is_done and (error := self._error()) is not None:
            await self._refusal(error)(scope, receive, send)
            return
        await send(stream_start(NDJSON))
        lines = PullLines()
        first = status_lines(FIRST) + lines.news(self._pull.files)
        await send({"type": "http.response.body", "body": first, "more_body": True})
        while not await self._pull.wait(self._call.settings.ping_interval_s):
            body = lines.news(self._pull.files) or lines.ping()
            await send({"type": "http.response.body", "body": body, "more_body": True})
        error = self._error()
        if error is None:
            last = lines.news(self._pull.files) + status_lines(*LAST)
        else:
            problem = self._call.record.problem = describe_error(error)
            last = ollama_shape(problem) + b"\n"
        await send({"type": "http.response.body", "body": last, "more_body": False})

    def _error(self) -> Exception | None:
        if self._pull.task.cancelled():
            return RuntimeError("the pull was cancelled")
        error = self._pull.task.exception()
        return error if error is None or isinstance(error, Exception) else RuntimeError(str(error))

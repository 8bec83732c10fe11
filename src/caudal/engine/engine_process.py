"""The engine's own process: an EngineLoop behind a socket.

`python -m caudal.engine.engine_process --fd N [--engine module:function]`. N is an inherited, connected stream
socket. The first frame on it is the EngineConfig (msgpack); the process answers EngineReady, or EngineFailed and
leaves with exit code 1. When the other end closes, the process leaves at once: nobody is left to answer.

SIGINT is ignored, because a terminal sends it to every process of the group and the API process decides what it
means. SIGTERM drains: running requests finish, new ones are refused.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from typing import TYPE_CHECKING

import msgspec

from caudal.config import EngineConfig
from caudal.engine.engine_loop import EngineLoop, SteppedEngine, load_factory
from caudal.engine.framing import FrameBuffer, pack_frame
from caudal.errors import CaudalError
from caudal.messages import EngineFailed, FromEngine, Shutdown, decode_to_engine, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caudal.messages import ToEngine

DEFAULT_ENGINE = "caudal.engine.load:load_engine"
_RECEIVE_BYTES = 1 << 18


class EngineSocket:
    """The process's end of the socket."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)  # noqa: FBT003 - the standard library's signature
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)

    def frames(self) -> Iterator[bytes]:
        """Yield payloads until the other end closes."""
        buffer = FrameBuffer()
        while data := self._receive():
            yield from buffer.push(data)

    def send(self, message: FromEngine) -> None:
        """Send a message; leave the process if nobody listens any more."""
        try:
            self._socket.sendall(pack_frame(encode(message)))
        except OSError:
            os._exit(0)

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(_RECEIVE_BYTES)
        except ConnectionError:
            return b""


def _read_messages(frames: Iterator[bytes], inbox: queue.SimpleQueue[ToEngine]) -> None:
    """Feed the inbox from the socket; the body of the reader thread."""
    try:
        for payload in frames:
            inbox.put(decode_to_engine(payload))
    except BaseException:  # noqa: BLE001 - nothing above this frame would report it
        traceback.print_exc()
        os._exit(1)  # a garbled stream is a bug of ours; the API process starts a new engine
    os._exit(0)  # the main thread may be deep inside a step or a load, and its result has no reader


def _load(engine_name: str, config: EngineConfig, channel: EngineSocket) -> SteppedEngine | None:
    """Load the engine and say so; on failure say why and return None."""
    try:
        engine = load_factory(engine_name)(config)
        channel.send(engine.ready_info())
    except CaudalError as error:
        channel.send(EngineFailed(kind=type(error).__name__, error=str(error)))
    except Exception as error:  # noqa: BLE001 - every reason not to start is told to the API process
        traceback.print_exc()
        channel.send(EngineFailed(kind=type(error).__name__, error=str(error)))
    else:
        return engine
    return None


def main(arguments: list[str] | None = None) -> int:
    """Run the process; return its exit code."""
    parser = argparse.ArgumentParser(prog="caudal.engine.engine_process", description="Started by the server.")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket")
    parser.add_argument("--engine", default=DEFAULT_ENGINE, help="module:function that loads the engine")
    options = parser.parse_args(arguments)

    inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: inbox.put(Shutdown(drain=True)))

    channel = EngineSocket(options.fd)
    frames = channel.frames()
    first = next(frames, None)
    if first is None:
        return 0
    config = msgspec.msgpack.decode(first, type=EngineConfig)
    threading.Thread(target=_read_messages, args=(frames, inbox), name="inbox", daemon=True).start()
    engine = _load(options.engine, config, channel)
    if engine is None:
        return 1
    EngineLoop(engine, inbox, channel.send).run()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the reader thread still waits on the socket

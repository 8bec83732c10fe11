"""Frames on the socket between the API process and an engine process: a u32 length (little endian), then msgpack."""

from __future__ import annotations

import struct

MAX_FRAME_BYTES = 1 << 30
_LENGTH = struct.Struct("<I")


def pack_frame(payload: bytes) -> bytes:
    """Return the payload with its length in front."""
    return _LENGTH.pack(len(payload)) + payload


class FrameBuffer:
    """Cuts a byte stream into frames. Bytes may arrive in any portions."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def push(self, data: bytes) -> list[bytes]:
        """Take more bytes and return the payloads that are now complete.

        Raises:
            ValueError: a length over MAX_FRAME_BYTES, so the stream is not one of frames.
        """
        self._bytes += data
        payloads: list[bytes] = []
        start = 0
        while len(self._bytes) - start >= _LENGTH.size:
            (num_bytes,) = _LENGTH.unpack_from(self._bytes, start)
            if num_bytes > MAX_FRAME_BYTES:
                message = f"frame of {num_bytes} bytes; expected at most {MAX_FRAME_BYTES}"
                raise ValueError(message)
            end = start + _LENGTH.size + num_bytes
            if end > len(self._bytes):
                break
            payloads.append(bytes(self._bytes[start + _LENGTH.size : end]))
            start = end
        if start:
            del self._bytes[:start]
        return payloads

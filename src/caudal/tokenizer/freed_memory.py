"""Giving memory that was freed back to the system."""

from __future__ import annotations

import ctypes
import sys


def give_back_freed_memory() -> None:
    """Have the C library return its free memory, where it is one that keeps it: glibc. Takes some milliseconds."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none, and keeps little
    if trim is not None:
        trim(0)

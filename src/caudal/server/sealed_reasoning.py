"""Reasoning as an opaque text that a client sends back with the conversation, where an API wants it unseen.

Anthropic's API has it as the `signature` of a thinking block, OpenAI's as `encrypted_content` of a reasoning item.
It is the client's own conversation, so it is encoded, not encrypted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

_PREFIX = "caudal1."


def seal(reasoning: str) -> str:
    """Return reasoning in a form that `unseal` reads."""
    return _PREFIX + base64.urlsafe_b64encode(reasoning.encode("utf-8", "replace")).decode()


def unseal(sealed: str) -> str:
    """Return the reasoning; "" if somebody else has sealed it."""
    if not sealed.startswith(_PREFIX):
        return ""
    try:
        return base64.b64decode(sealed.removeprefix(_PREFIX), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def signature(reasoning: str) -> str:
    """Return a short text for reasoning that is sent beside it. Nobody checks it; clients want one."""
    return hashlib.sha256(reasoning.encode("utf-8", "replace")).hexdigest()[:32]

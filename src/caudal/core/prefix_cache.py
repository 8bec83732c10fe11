"""How the content of a block is named: a digest chained over all tokens before it.

A digest is 256 bits of BLAKE2b over the digest of the block before and the block's token ids, so equal digests
mean equal beginnings: a collision cannot be found, not even by a hostile client, and ids need not be compared. The
chain starts from the request's salt and adapter, so blocks are never shared across them.
Source: RFC 7693.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caudal.core.request import Request, Sequence

DIGEST_BYTES = 32


def namespace_digest(request: Request) -> bytes:
    """Where the chain of a request starts. Lengths are hashed too, so ("a", "bc") and ("ab", "c") differ."""
    salt, adapter = request.cache_salt.encode(), request.adapter.encode()
    head = f"caudal:{len(salt)}:{len(adapter)}:".encode()
    return blake2b(head + salt + adapter, digest_size=DIGEST_BYTES).digest()


def extend_digests(seq: Sequence, num_blocks: int, block_size: int) -> None:
    """Make `seq.digests` name at least the first `num_blocks` blocks, all of which must be full."""
    digests, token_ids = seq.digests, seq.token_ids
    for block in range(len(digests), num_blocks):
        parent = digests[-1] if digests else namespace_digest(seq.request)
        ids = array("q", token_ids[block * block_size : (block + 1) * block_size])
        digests.append(blake2b(parent + ids.tobytes(), digest_size=DIGEST_BYTES).digest())

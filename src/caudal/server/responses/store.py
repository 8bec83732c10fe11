"""Responses that were asked to be kept: in memory, as JSON, the least recently used forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MAX_STORED = 4096
MAX_STORED_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response.

    Attributes:
        body: the response object, as JSON.
        input: its own input items, as JSON.
        conversation: all items up to its own output, those of earlier responses included, as JSON: what a response
            that continues it begins with. It stands alone, so that forgetting an earlier one breaks no conversation.
        item_ids: of the items in `conversation`, by which later requests may refer to them.
    """

    body: bytes
    input: bytes
    conversation: bytes
    item_ids: frozenset[str] = frozenset()

    @property
    def num_bytes(self) -> int:
        """What it takes."""
        return len(self.body) + len(self.input) + len(self.conversation) + sum(map(len, self.item_ids))


class ResponseStore:
    """Keeps responses, apart for each tenant: nobody sees another's.

    Args:
        max_count, max_bytes: of all responses together. A response larger than that is not kept.
    """

    def __init__(self, max_count: int = MAX_STORED, max_bytes: int = MAX_STORED_BYTES) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._responses: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        self._holders: dict[tuple[str, str], str] = {}  # (tenant, item id) -> the latest response that has the item
        self.num_bytes = 0

    def __len__(self) -> int:
        """Return how many responses are kept."""
        return len(self._responses)

    def put(self, tenant: str, response_id: str, response: StoredResponse) -> None:
        """Keep a response, in place of the one with its id."""
        self.delete(tenant, response_id)
        if response.num_bytes > self._max_bytes or self._max_count < 1:
            return
        self._responses[(tenant, response_id)] = response
        self.num_bytes += response.num_bytes
        for item_id in response.item_ids:
            self._holders[(tenant, item_id)] = response_id
        while self.num_bytes > self._max_bytes or len(self._responses) > self._max_count:
            self.delete(*next(iter(self._responses)))

    def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return a response, which is then the most recently used one."""
        response = self._responses.get((tenant, response_id))
        if response is not None:
            self._responses.move_to_end((tenant, response_id))
        return response

    def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a response; return whether there was one."""
        response = self._responses.pop((tenant, response_id), None)
        if response is None:
            return False
        self.num_bytes -= response.num_bytes
        for item_id in response.item_ids:
            if self._holders.get((tenant, item_id)) == response_id:
                del self._holders[(tenant, item_id)]
        return True

    def holder(self, tenant: str, item_id: str) -> StoredResponse | None:
        """Return the latest response with an item of that id in its conversation."""
        response_id = self._holders.get((tenant, item_id))
        return None if response_id is None else self.get(tenant, response_id)

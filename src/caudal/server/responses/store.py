"""Responses that were asked to be kept: in memory, as JSON, the least recently used of a tenant forgotten first."""

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


class _Shelf:
    """The responses of one tenant, the least recently used first."""

    def __init__(self) -> None:
        self.responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self.holders: dict[str, str] = {}  # item id -> the latest response that has the item
        self.num_bytes = 0

    def put(self, response_id: str, response: StoredResponse) -> None:
        self.responses[response_id] = response
        self.num_bytes += response.num_bytes
        self.holders.update(dict.fromkeys(response.item_ids, response_id))

    def delete(self, response_id: str) -> StoredResponse | None:
        response = self.responses.pop(response_id, None)
        if response is not None:
            self.num_bytes -= response.num_bytes
            for item_id in response.item_ids:
                if self.holders.get(item_id) == response_id:
                    del self.holders[item_id]
        return response


class ResponseStore:
    """Keeps responses, apart for each tenant: nobody sees another's, and nobody's many push out another's few.

    What is too much is taken from the tenant that has most of it, of bytes or of responses; of that tenant's, the least
    recently used goes first.

    Args:
        max_count, max_bytes: of all responses together. A response larger than that is not kept.
    """

    def __init__(self, max_count: int = MAX_STORED, max_bytes: int = MAX_STORED_BYTES) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._shelves: dict[str, _Shelf] = {}
        self._num_responses = 0
        self.num_bytes = 0

    def __len__(self) -> int:
        """Return how many responses are kept."""
        return self._num_responses

    def put(self, tenant: str, response_id: str, response: StoredResponse) -> None:
        """Keep a response, in place of the one with its id."""
        self.delete(tenant, response_id)
        if response.num_bytes > self._max_bytes or self._max_count < 1:
            return
        self._shelves.setdefault(tenant, _Shelf()).put(response_id, response)
        self._num_responses += 1
        self.num_bytes += response.num_bytes
        while self.num_bytes > self._max_bytes:
            self._forget_one_of(max(self._shelves, key=lambda name: self._shelves[name].num_bytes))
        while self._num_responses > self._max_count:
            self._forget_one_of(max(self._shelves, key=lambda name: len(self._shelves[name].responses)))

    def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return a response, which is then its tenant's most recently used one."""
        shelf = self._shelves.get(tenant)
        response = shelf.responses.get(response_id) if shelf is not None else None
        if shelf is not None and response is not None:
            shelf.responses.move_to_end(response_id)
        return response

    def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a response; return whether there was one."""
        shelf = self._shelves.get(tenant)
        response = shelf.delete(response_id) if shelf is not None else None
        if shelf is None or response is None:
            return False
        self._num_responses -= 1
        self.num_bytes -= response.num_bytes
        if not shelf.responses:
            del self._shelves[tenant]
        return True

    def holder(self, tenant: str, item_id: str) -> StoredResponse | None:
        """Return the latest response with an item of that id in its conversation."""
        shelf = self._shelves.get(tenant)
        response_id = shelf.holders.get(item_id) if shelf is not None else None
        return None if response_id is None else self.get(tenant, response_id)

    def _forget_one_of(self, tenant: str) -> None:
        self.delete(tenant, next(iter(self._shelves[tenant].responses)))

"""Which texts an embedding model reads next. Pure: no arrays, no clock."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitingText:
    """A text that is to be read whole."""

    request_id: str
    tenant: str
    num_tokens: int


class PoolingQueue:
    """Texts by tenant: each has its turn with one text, so that a large job does not keep others waiting.

    Args:
        max_texts: most texts in one step.
        max_tokens: most tokens in one step; no text has more.
    """

    def __init__(self, max_texts: int, max_tokens: int) -> None:
        self._max_texts = max_texts
        self._max_tokens = max_tokens
        self._by_tenant: OrderedDict[str, deque[WaitingText]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many texts wait."""
        return sum(map(len, self._by_tenant.values()))

    def add(self, text: WaitingText) -> None:
        """Put a text at the end of its tenant's queue."""
        self._by_tenant.setdefault(text.tenant, deque()).append(text)

    def remove(self, request_id: str) -> bool:
        """Forget a text; return whether it was waiting."""
        for tenant, texts in self._by_tenant.items():
            for text in texts:
                if text.request_id == request_id:
                    texts.remove(text)
                    if not texts:
                        del self._by_tenant[tenant]
                    return True
        return False

    def take(self) -> list[WaitingText]:
        """Return the texts of the next step, one tenant's after another's, as many as fit.

        It ends with the first text that does not fit, so that a long one is never passed over for ever; its tenant is
        first the next time.
        """
        taken: list[WaitingText] = []
        left = self._max_tokens
        while self._by_tenant and len(taken) < self._max_texts:
            tenant, texts = next(iter(self._by_tenant.items()))
            if texts[0].num_tokens > left:
                break
            text = texts.popleft()
            left -= text.num_tokens
            taken.append(text)
            if texts:
                self._by_tenant.move_to_end(tenant)
            else:
                del self._by_tenant[tenant]
        return taken

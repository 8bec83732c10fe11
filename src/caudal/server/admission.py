"""How many answers may be open at a time, and how many of them one key may have.

A key may have as many answers open as places would still be free then; one that has none open may always begin, with
up to half of all places. So a key alone gets half, two get a third each, and there is room for the next one. Source:
Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM Transactions on
Networking 6(2), 1998, with a factor of 1. Without keys nothing is divided.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from caudal.errors import InvalidParameter, Overloaded

if TYPE_CHECKING:
    from collections.abc import Iterator


class Admission:
    """Counts open answers and refuses what would exceed the limit.

    Args:
        max_open: answers being made or waiting at a time.
    """

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self._by_tenant: Counter[str] = Counter()
        self.num_open = 0

    @contextmanager
    def admit(self, num_answers: int, tenant: str = "") -> Iterator[None]:
        """Hold room for this many answers of a key ("" for nobody's) while the block runs.

        Raises:
            InvalidParameter: more answers than the server ever takes at once.
            Overloaded: not enough room now.
        """
        most = -(-self._max_open // 2) if tenant else self._max_open
        if num_answers > most:
            message = f"the request asks for {num_answers} answers; expected at most {most} (prompts times n)"
            raise InvalidParameter(message, parameter="n")
        if self.num_open + num_answers > self._max_open:
            message = f"{self.num_open} answers are open and the limit is {self._max_open}; try again in a moment"
            raise Overloaded(message)
        own = self._by_tenant[tenant]
        if tenant and own and own + num_answers > self._max_open - self.num_open - num_answers:
            message = (
                f"{own} answers of this key are open, {self.num_open} in all, and the limit is {self._max_open}; the "
                "rest is kept for other keys; try again in a moment"
            )
            raise Overloaded(message)
        self.num_open += num_answers
        self._by_tenant[tenant] += num_answers
        try:
            yield
        finally:
            self.num_open -= num_answers
            self._by_tenant[tenant] -= num_answers
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]

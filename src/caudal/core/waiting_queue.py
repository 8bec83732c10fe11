"""WaitingQueue: sequences that wait to start or to start again, in a fair order.

Order: priority; then tenants in turn, those with fewest running sequences first, then those whose turn was longest
ago, which those who had none yet are before all others; inside a tenant, arrival. A preempted sequence comes back to
its old place. A tenant's last turn is remembered, also while it has nothing that waits, until nobody of that priority
waits any more: so nobody gains by asking for one thing at a time.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from caudal.core.request import Sequence


class WaitingQueue:
    """A queue by priority and tenant."""

    def __init__(self) -> None:
        self._classes: dict[int, OrderedDict[str, list[Sequence]]] = {}
        self._num_waiting = 0
        self._turns: dict[int, dict[str, int]] = {}
        self._num_turns = 0

    def __len__(self) -> int:
        return self._num_waiting

    def add(self, seq: Sequence) -> None:
        """Put a sequence in its place."""
        tenants = self._classes.setdefault(seq.request.priority, OrderedDict())
        insort(tenants.setdefault(seq.request.tenant, []), seq, key=lambda other: other.seq_id)
        self._num_waiting += 1

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is. Its tenant's turn is over."""
        tenants = self._classes[seq.request.priority]
        queue = tenants[seq.request.tenant]
        queue.remove(seq)
        self._num_waiting -= 1
        self._num_turns += 1
        self._turns.setdefault(seq.request.priority, {})[seq.request.tenant] = self._num_turns
        if not queue:
            del tenants[seq.request.tenant]
            if not tenants:
                del self._classes[seq.request.priority]
                del self._turns[seq.request.priority]

    @property
    def priorities(self) -> list[int]:
        """The priorities that wait, most urgent first."""
        return sorted(self._classes)

    def most_urgent_priority(self) -> int:
        """The smallest priority that waits. There must be one."""
        return min(self._classes)

    def in_fair_order(self, num_running: Mapping[str, int]) -> Iterator[Sequence]:
        """Sequences in the order in which they may start. The queue must not change while this is read."""
        for priority in sorted(self._classes):
            tenants = self._classes[priority]
            turns = self._turns.get(priority, {})
            ranks = {tenant: (num_running.get(tenant, 0), turns.get(tenant, 0)) for tenant in tenants}
            order = sorted(tenants, key=ranks.__getitem__)
            for turn in zip_longest(*(tenants[tenant] for tenant in order)):
                yield from (seq for seq in turn if seq is not None)

    def __iter__(self) -> Iterator[Sequence]:
        return self.in_fair_order({})

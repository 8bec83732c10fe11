"""How the prefill tokens of a step are divided: by priority, then between tenants, then inside a tenant.

A priority leaves a sixteenth of what it gets to the less urgent ones, if they want it, so that none of them starves.

Between tenants: deficit round robin, with tokens for bytes, so a tenant's share does not depend on how many requests
it has or how long they are. Source: Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round Robin",
SIGCOMM 1995.

Inside a tenant: the oldest prompt may take half while others wait, and the shortest ones share the other half. So a
long prompt neither stalls the short ones behind it nor is starved by them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from caudal.core.request import Sequence


class DeficitRoundRobin:
    """Divides tokens between tenants. Remembers whose turn it is and what is left of that turn."""

    def __init__(self, quantum: int) -> None:
        self.quantum = quantum
        self._ring: OrderedDict[str, int] = OrderedDict()

    def share(self, budget: int, demands: Mapping[str, int]) -> dict[str, int]:
        """Grants of at most `demands` tokens a tenant that use the whole budget, or meet every demand.

        A tenant that asks for nothing loses its turn and what was left of it.
        """
        ring = self._ring
        for tenant in [tenant for tenant in ring if tenant not in demands]:
            del ring[tenant]
        for tenant in demands:
            ring.setdefault(tenant, 0)
        if sum(demands.values()) <= budget:
            ring.clear()
            return dict(demands)
        grants = dict.fromkeys(demands, 0)
        while budget > 0:
            tenant, deficit = next(iter(ring.items()))
            deficit = deficit or self.quantum
            tokens = min(deficit, demands[tenant] - grants[tenant], budget)
            grants[tenant] += tokens
            budget -= tokens
            ring[tenant] = deficit - tokens
            if grants[tenant] == demands[tenant]:
                ring[tenant] = 0
            if ring[tenant] == 0:
                ring.move_to_end(tenant)
        return grants


LEFT_TO_OTHERS = 16
"""A priority leaves one token in so many to the less urgent ones."""


class FairShare:
    """Divides a step's prefill tokens between sequences."""

    def __init__(self, quantum: int) -> None:
        self.quantum = quantum
        self._rings: dict[int, DeficitRoundRobin] = {}

    def share(self, budget: int, sequences: list[Sequence]) -> dict[int, int]:
        """Tokens for each seq_id; `sequences` are in rank order. Those that get nothing are left out."""
        classes: dict[int, dict[str, list[Sequence]]] = {}
        for seq in sequences:
            classes.setdefault(seq.request.priority, {}).setdefault(seq.request.tenant, []).append(seq)
        self._rings = {priority: self._rings.get(priority) or DeficitRoundRobin(self.quantum) for priority in classes}
        shares: dict[int, int] = {}
        wanted_by_others = sum(seq.num_remaining_tokens for seq in sequences)
        for priority, tenants in classes.items():
            demands = {tenant: sum(seq.num_remaining_tokens for seq in members) for tenant, members in tenants.items()}
            wanted_by_others -= sum(demands.values())
            left = min(budget // LEFT_TO_OTHERS, wanted_by_others)
            grants = self._rings[priority].share(budget - left, demands)
            for tenant, members in tenants.items():
                self._split(grants[tenant], members, shares)
            budget -= sum(grants.values())
        return shares

    def _split(self, budget: int, members: list[Sequence], shares: dict[int, int]) -> None:
        """Divide one tenant's tokens: half for the oldest, then the shortest first, then the oldest again."""
        oldest, *others = members
        half = budget if not others else -(-budget // 2)
        head_start = min(half, oldest.num_remaining_tokens)
        left = budget - head_start
        for seq in sorted(others, key=lambda seq: seq.num_remaining_tokens):
            tokens = min(left, seq.num_remaining_tokens)
            left -= tokens
            if tokens:
                shares[seq.seq_id] = tokens
        tokens = min(head_start + left, oldest.num_remaining_tokens)
        if tokens:
            shares[oldest.seq_id] = tokens

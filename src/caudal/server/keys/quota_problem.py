"""A refusal by a key's limits as what a client is told."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from caudal.server.problems import HTTPProblem

if TYPE_CHECKING:
    from caudal.server.keys.key import Key
    from caudal.server.keys.limiter import Refusal


def quota_problem(key: Key, refusal: Refusal, parameter: str = "max_tokens") -> HTTPProblem:
    """Return 429 with `retry-after`, or 400 for what will never fit, which names the parameter to make smaller."""
    limit_name = refusal.limit_name.replace("_", " ")
    fact = f"the key {key.id} has a limit of {refusal.limit} {limit_name}; {refusal.used} are used"
    if math.isinf(refusal.retry_after_s):
        message = f"{fact}, and this request needs {refusal.asked}, which never fits; ask for less"
        return HTTPProblem(400, message, code="request_exceeds_limit", parameter=parameter)
    seconds = max(1, math.ceil(refusal.retry_after_s))
    message = f"{fact}, and this request needs {refusal.asked}; try again in {seconds} s"
    return HTTPProblem(429, message, code="rate_limit_exceeded", headers={"retry-after": str(seconds)})

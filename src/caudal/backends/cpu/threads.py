"""How many cores this process may really use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from caudal.errors import ConfigError


def usable_cores() -> int:
    """Return the cores of this process's cpuset, fewer if a cgroup quota says so; CAUDAL_THREADS overrides.

    Source: Linux cgroup v2 `cpu.max` ("quota period", in microseconds) and v1 `cpu.cfs_quota_us`.
    """
    given = os.environ.get("CAUDAL_THREADS")
    if given:
        if not given.isdecimal() or int(given) < 1:
            message = f"CAUDAL_THREADS is {given!r}; expected a whole number of at least 1"
            raise ConfigError(message)
        return int(given)
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _cgroup_quota(Path("/sys/fs/cgroup"))
    return max(1, min(cores, math.ceil(quota)) if quota else cores)


def _cgroup_quota(root: Path) -> float | None:
    """Return the quota in cores, or None where there is none."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None
    return int(quota) / int(period) or None

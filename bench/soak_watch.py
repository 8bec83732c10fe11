"""What a soak looks at from outside: memory, descriptors and sockets of processes (Linux's /proc), and metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path


def memory_mib(process_id: int) -> float:
    """Return the anonymous memory in use; mapped files, which the weights are, come and go as the kernel likes."""
    text = Path(f"/proc/{process_id}/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def descriptors(process_id: int) -> dict[str, int]:
    """Return how many descriptors are open, and how many of them are sockets."""
    folder = Path(f"/proc/{process_id}/fd")
    targets = []
    for entry in folder.iterdir():
        try:
            targets.append(str(entry.readlink()))
        except OSError:  # closed since it was listed
            continue
    return {"files": len(targets), "sockets": sum(target.startswith("socket:") for target in targets)}


def engine_of(process_id: int) -> int | None:
    """Return the engine's process id; None while there is none."""
    children = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
    for child in map(int, children):
        try:
            if b"engine_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
        except OSError:
            continue
    return None


def metric(page: str, name: str) -> float | None:
    """Return the sum of a metric's samples; None if it is not there."""
    values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE)
    return sum(map(float, values)) if values else None


@dataclass
class Trend:
    """Measurements over time."""

    times_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, time_s: float, value: float) -> None:
        """Add a measurement."""
        self.times_s.append(time_s)
        self.values.append(value)

    def second_half(self) -> Trend:
        """Return the measurements of the second half of the time."""
        if not self.times_s:
            return self
        middle = (self.times_s[0] + self.times_s[-1]) / 2
        kept = [(t, v) for t, v in zip(self.times_s, self.values, strict=True) if t >= middle]
        return Trend([t for t, _ in kept], [v for _, v in kept])

    def growth(self) -> float:
        """Return how much a straight line through the measurements rises from the first to the last."""
        count = len(self.times_s)
        if count < 2:
            return 0.0
        mean_t, mean_v = sum(self.times_s) / count, sum(self.values) / count
        spread = sum((t - mean_t) ** 2 for t in self.times_s)
        if spread == 0:
            return 0.0
        slope = sum((t - mean_t) * (v - mean_v) for t, v in zip(self.times_s, self.values, strict=True)) / spread
        return slope * (self.times_s[-1] - self.times_s[0])

    def mean(self) -> float:
        """Return the mean."""
        return sum(self.values) / len(self.values) if self.values else 0.0

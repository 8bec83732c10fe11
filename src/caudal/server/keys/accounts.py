"""What one app knows of keys: who is who, what each may do and has used, and what is written down of it."""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import TYPE_CHECKING, Any

from caudal.server.audit.audit_log import AuditLog
from caudal.server.keys.key import (
    INFERENCE,
    METRICS,
    MODELS_READ,
    MODELS_WRITE,
    REMOVED,
    SECRET,
    Key,
    without_secrets,
)
from caudal.server.keys.key_ring import KeyRing
from caudal.server.keys.key_store import KeyStore
from caudal.server.keys.limiter import DayUse, Limiter
from caudal.server.keys.meter import RequestMeter
from caudal.server.keys.rate_window import SlidingWindow
from caudal.server.keys.usage import UsageLedger, day_of, used_today

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from caudal.server.settings import ServerSettings

STATIC_SCOPES = (INFERENCE, MODELS_READ, MODELS_WRITE, METRICS)
ANONYMOUS = Key(id="", name="", scopes=STATIC_SCOPES)
STRANGERS_PER_MINUTE = 60
"""Refused requests without a valid key that are written down, so that strangers cannot fill the disk."""


class Accounts:
    """Keys, limits, usage and audit of one app. For the event loop; writing is done by threads.

    Args:
        settings: api_keys, state_dir and audit_*.
        wall: Unix time in seconds.
        monotonic: seconds that never go back.

    Raises:
        ConfigError: the state directory cannot be used.
    """

    def __init__(
        self,
        settings: ServerSettings,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._audit_mode = settings.audit_log
        self._static = [
            (hashlib.sha256(key.encode()).digest(), Key(id=f"static-{i}", name=f"--api-key {i}", scopes=STATIC_SCOPES))
            for i, key in enumerate(settings.api_keys, 1)
        ]
        self._strangers = SlidingWindow(60.0, monotonic)
        self._num_suppressed = 0
        self.store: KeyStore | None = None
        self._ring: KeyRing | None = None
        self._ledger: UsageLedger | None = None
        self._audit: AuditLog | None = None
        before: DayUse | None = None
        if settings.state_dir is not None:
            self.store = KeyStore(settings.state_dir, wall)
            self._ring = KeyRing(self.store.path)
            self._ledger = UsageLedger(self.store.path, wall)
            self._audit = AuditLog(
                settings.state_dir,
                retention_days=settings.audit_retention_days,
                strict=settings.audit_strict,
                clock=wall,
            )
            now = wall()
            with self.store.transaction() as db:
                before = DayUse(now, used_today(db, day_of(now)))
        self.limiter = Limiter(monotonic, wall, before)

    def now(self) -> float:
        """Return the Unix time in seconds."""
        return self._wall()

    def refresh(self) -> None:
        """See what others have changed."""
        if self._ring is not None:
            self._ring.refresh()

    @property
    def guarded(self) -> bool:
        """Whether a key is needed. Revoking the last one does not open the server."""
        return bool(self._static) or (self._ring is not None and len(self._ring) > 0)

    def find(self, secrets: Iterable[str]) -> Key | None:
        """Return the key of one of these secrets; it may be revoked or expired."""
        found: Key | None = None
        for secret in secrets:
            digest = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
            for known, key in self._static:
                if hmac.compare_digest(known, digest):
                    found = key
            if found is None and self._ring is not None:
                found = self._ring.find(secret)
        return found

    @property
    def audit_mode(self) -> str:
        """Return "off", "metadata" or "full"."""
        if self._audit is None:
            return "off"
        return self._audit_mode or ("metadata" if self.guarded else "off")

    @property
    def audit_refuses(self) -> bool:
        """Whether a strict audit log keeps requests out now."""
        return self._audit is not None and self._audit.refuses and self.audit_mode != "off"

    def meter(self, key: Key) -> RequestMeter:
        """Return the meter of a request that begins."""
        limiter = None if key is ANONYMOUS else self.limiter
        return RequestMeter(key, limiter, keeps_text=self.audit_mode == "full")

    def count(self, meter: RequestMeter, status: int) -> None:
        """Count what a request for inference used."""
        if self._ledger is not None and meter.key is not ANONYMOUS:
            self._ledger.add(meter.key.id, meter.model, meter.usage(status))

    def write_down(self, record: dict[str, Any], meter: RequestMeter) -> None:
        """Put a request into the audit log, unless that is off."""
        mode = self.audit_mode
        if self._audit is None or mode == "off":
            return
        if record["status"] == 401:
            if self._strangers.used() >= STRANGERS_PER_MINUTE:
                self._num_suppressed += 1
                return
            self._strangers.add(1)
            record = {**record, "suppressed_before": self._num_suppressed}
            self._num_suppressed = 0
        usage = meter.usage(record["status"])
        record = {
            "event": "request",
            **record,
            "route": SECRET.sub(REMOVED, record["route"]),
            "key_id": meter.key.id,
            "key_name": meter.key.name,
            "model": meter.model,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "generated_tokens": usage.generated_tokens,
            "finish_reasons": meter.finish_reasons,
        }
        if mode == "full":
            record |= {"prompts": without_secrets(meter.prompts), "answers": without_secrets(meter.texts)}
        self._audit.add(record)

    def close(self) -> None:
        """Write what is still to be written. Blocks."""
        if self._ledger is not None:
            self._ledger.close()
        if self._audit is not None:
            self._audit.close()
        if self._ring is not None:
            self._ring.close()

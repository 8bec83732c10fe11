"""The place of a model in a directory, without processes."""

from __future__ import annotations

from caudal.server.model_slot import ModelSlot
from caudal.server.settings import ServedModel


def test_days_of_failures_leave_the_pause_as_it_is():
    slot = ModelSlot(ServedModel(name="m"), 0.0)
    for _ in range(3000):
        slot.failed("it is broken", 100.0)
    assert slot.retry_s == 400.0

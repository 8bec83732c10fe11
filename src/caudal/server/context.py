"""What the handlers of one app share. Made by create_app; nothing is global."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.server.admission import Admission
from caudal.server.keys.accounts import Accounts
from caudal.server.responses.kept import KeptResponses

if TYPE_CHECKING:
    from caudal.server.metrics import ServerMetrics
    from caudal.server.model_changes import ModelChanges
    from caudal.server.model_directory import ModelDirectory
    from caudal.server.settings import ServerSettings


class ServerContext:
    """One app.

    Args:
        models: what can be served.
        settings: the HTTP side.
        metrics: what Prometheus reads.
        changes: changes the models for clients; None where they may not.

    Raises:
        ConfigError: the state directory cannot be used.
    """

    def __init__(
        self,
        models: ModelDirectory,
        settings: ServerSettings,
        metrics: ServerMetrics,
        changes: ModelChanges | None = None,
    ) -> None:
        self.models = models
        self.changes = changes
        self.settings = settings
        self.metrics = metrics
        self.admission = Admission(settings.max_open_requests)
        self.responses = KeptResponses()
        self.accounts = Accounts(settings)
        metrics.watch_open(lambda: self.admission.num_open)

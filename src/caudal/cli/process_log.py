"""The log of a process that serves: lines for people, or a JSON object per line for collectors."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JSONFormatter(logging.Formatter):
    """A JSON object per record: time (UTC, ISO 8601), level, logger, message, and where there is one, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line; it holds no line breaks."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = {"log": "process", "time": time, "level": record.levelname.lower(), "logger": record.name}
        fields["message"] = record.getMessage()
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


LOG_FORMATTERS = {
    "text": lambda: logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"),
    "json": JSONFormatter,
}


def start_logging(style: str, level: int) -> None:
    """Write what is logged from now on to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(LOG_FORMATTERS[style]())
    logging.basicConfig(handlers=[handler], level=level)

"""How every process of the server logs: one line of text or one JSON object per record, on standard error.

A record may carry `extra={"fields": {...}}`: facts that its message also says, for programs that read JSON.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from ..protocol.settings import EngineSettings

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """`{"time":…,"level":…,"logger":…,"pid":…,"message":…}`, then the record's fields and its exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # In ASCII: a file's name may hold what is no character, and its line must not get lost.
        return json.dumps(line, separators=(",", ":"), default=str)


def log_to_stderr(settings: EngineSettings) -> None:
    """Log from --log-level on; from libraries only warnings. A later call replaces an earlier one."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_format == "json" else logging.Formatter(_TEXT))
    level = settings.log_level.upper()
    logging.basicConfig(
        level=max(logging.WARNING, logging.getLevelNamesMapping()[level]), handlers=[handler], force=True
    )
    logging.getLogger("triolet").setLevel(level)

"""Log formatting, as text or JSON: one event is one line, whatever it contains.

Loggers are named by module. Headers, bodies and query strings are never logged: they hold keys and user content.
"""

import asyncio
import logging
import sys
import time
from typing import Any, Literal

import msgspec

from antiphon.observe.log_context import LOG_CONTEXT

LOGGERS = ("antiphon", "uvicorn", "asyncpg")
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class TextLogFormatter(logging.Formatter):
    """Formats records as text, with line breaks escaped."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides a method of logging
        line = super().formatMessage(record)
        extra = "".join(f" {name}={value}" for name, value in _extra_fields(record).items())
        return (line + extra).replace("\r", "\\r").replace("\n", "\\n")


class JsonLogFormatter(logging.Formatter):
    """Formats records as JSON objects."""

    def format(self, record: logging.LogRecord) -> str:
        timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{timestamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _escape_surrogates(record.getMessage()),
            **_extra_fields(record),
        }
        if record.exc_info:
            line["exception"] = _escape_surrogates(self.formatException(record.exc_info))
        return msgspec.json.encode(line, enc_hook=str).decode()


def set_up_logging(log_format: Literal["text", "json"], level: str) -> None:
    """Send the log of Antiphon and of its libraries to stderr. A repeated call replaces the previous setup."""
    # The formats have no field for these, and collecting them takes a third of the time of a record; see "Optimization"
    # in the logging HOWTO of Python.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter() if log_format == "json" else TextLogFormatter())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
    # uvicorn logs each start, stop and broken request, and asyncpg each failed connection with a traceback; Antiphon
    # logs or counts these itself. Only errors pass, except for the tasks that uvicorn cancels at the end of the
    # shutdown grace period.
    for name in LOGGERS[1:]:
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").filters = [_is_not_cancellation]


def _is_not_cancellation(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the ids of the current context and the fields passed as `extra=`."""
    context = LOG_CONTEXT.get()
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
    return extra if context is None else context.get_ids() | extra


def _escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which cannot be encoded as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()

"""Log lines, as text for people or as JSON for machines; one event, one line, whatever is in it.

Loggers are named by module. Headers, bodies and query strings are never logged: they hold keys and words of users.
"""

import asyncio
import logging
import sys
import time
from typing import Any, Literal

import msgspec

from antiphon.observe.log_context import ABOUT

LOGGERS = ("antiphon", "uvicorn", "asyncpg")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class TextLines(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        line = super().formatMessage(record)
        extra = "".join(f" {name}={value}" for name, value in _extra(record).items())
        return (line + extra).replace("\r", "\\r").replace("\n", "\\n")


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _sound(record.getMessage()),
            **_extra(record),
        }
        if record.exc_info:
            line["exception"] = _sound(self.formatException(record.exc_info))
        return msgspec.json.encode(line, enc_hook=str).decode()


def set_up_logging(log_format: Literal["text", "json"], level: str) -> None:
    """Send our log to stderr, and that of libraries which have one. Calling it again replaces what was set up."""
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(JsonLines() if log_format == "json" else TextLines())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [out]
        logger.setLevel(level.upper())
        logger.propagate = False
    # The HTTP server tells of each start, stop and broken request, and PostgreSQL's client of each time that it cannot
    # connect, with a traceback; we do so ourselves, or count them. Errors are left, but for the tasks that the HTTP
    # server cancels itself when the grace of a shutdown is over.
    for name in LOGGERS[1:]:
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").filters = [_not_cancelled]


def _not_cancelled(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """What is being worked on, by its ids, and what was given as `extra=`."""
    about = ABOUT.get()
    given = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    return given if about is None else about.ids() | given


def _sound(text: str) -> str:
    """Without lone surrogates, which no encoding takes."""
    return text.encode("utf-8", "backslashreplace").decode()

"""The log and the access log, with the ids of the request that is being processed. One event is one line.

Loggers are named by module. Headers, bodies and query strings are never logged: they hold keys and user content.

The request is a context variable, which tasks started for it inherit. It is filled in as values become available;
nothing in it comes from clients except the identifiers of their end users.

The access log has one line of JSON per request, written by a thread several times a second. A request only appends an
entry to a queue. The queue is bounded; entries that do not fit or cannot be written are counted. A file that was moved
away is opened again, so log rotation needs no signal.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from collections import deque
from contextvars import ContextVar
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.errors import StartupError


class LogContext(Struct):
    """Identifiers and token counts of the current request."""

    request_id: str = ""
    response_id: str = ""
    connection_id: str = ""  # of a WebSocket
    trace_id: str = ""  # in hexadecimal digits
    tenant: str = ""
    key: str = ""  # id of the API key
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    user_fields: dict[str, str] = {}  # end user identifiers from the request, by field name

    def get_ids(self) -> dict[str, str]:
        """Return the ids that are set, by log field name."""
        names = ("request_id", "response_id", "connection_id", "trace_id")
        return {name: value for name in names if (value := getattr(self, name))}


LOG_CONTEXT: ContextVar[LogContext | None] = ContextVar("about", default=None)


def set_response_id(response_id: str) -> None:
    """Set the response that the current context works on."""
    if (context := LOG_CONTEXT.get()) is None:
        LOG_CONTEXT.set(LogContext(response_id=response_id))
    else:
        context.response_id = response_id


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
        line = {
            "time": _format_time(record.created),
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
    logging.getLogger("uvicorn.error").filters = [
        lambda record: not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
    ]


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the ids of the current context and the fields passed as `extra=`."""
    context = LOG_CONTEXT.get()
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
    return extra if context is None else context.get_ids() | extra


def _escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which cannot be encoded as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


log = logging.getLogger(__name__)

STDERR = "-"
_MAX_WAITING = 20_000  # entries
_WRITE_SECONDS = 0.2  # seconds between two writes
_CLOSE_SECONDS = 5.0

# One request: the fields of its JSON line, of which empty ones are left out. `time` is its start in seconds since the
# epoch.
AccessLogEntry = dict[str, Any]


class AccessLog:
    """Writes entries to a file or to stderr from a thread of its own."""

    def __init__(self, path: str, max_waiting: int = _MAX_WAITING) -> None:
        self._path = path
        self._max_waiting = max_waiting
        self._waiting: deque[AccessLogEntry] = deque()
        self._file = -1
        self._file_id: tuple[int, int] | None = None  # device and inode
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_periodically, name="access-log", daemon=True)
        self.dropped = 0
        self._healthy = True

    def open(self) -> None:
        """Start the thread. Raises StartupError if the file cannot be written."""
        try:
            if self._path != STDERR:
                self._open_current()
        except OSError as error:
            message = f"The access log {self._path} cannot be written: {error.strerror}."
            raise StartupError(f"{message} Name another file with --access-log.") from None
        self._thread.start()

    def record(self, entry: AccessLogEntry) -> None:
        """Queue an entry (hot path)."""
        if len(self._waiting) < self._max_waiting:
            self._waiting.append(entry)
        else:
            self.dropped += 1

    def close(self) -> None:
        """Write the remaining entries. Blocks, so call it in a thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _write_periodically(self) -> None:
        while not self._closing.wait(_WRITE_SECONDS):
            self._write()
        self._write()

    def _write(self) -> None:
        if not (entries := [self._waiting.popleft() for _ in range(len(self._waiting))]):
            return
        text = b"".join([_render(entry) for entry in entries])
        try:
            file = 2 if self._path == STDERR else self._open_current()
            while text:
                text = text[os.write(file, text) :]
        except OSError as error:
            self.dropped += len(entries)
            if self._healthy:
                log.warning("The access log cannot be written: %s.", error.strerror)
        self._healthy = not text

    def _open_current(self) -> int:
        """Return the descriptor of the file at the path, reopening it after a rotation."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._file_id:
            if self._file_id is not None:
                os.close(self._file)
                self._file_id = None
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
            found = os.fstat(self._file)
            self._file_id = found.st_dev, found.st_ino
        return self._file


def _render(entry: AccessLogEntry) -> bytes:
    present = {name: value for name, value in entry.items() if value or name == "status"}
    values = {"time": _format_time(entry["time"]), "seconds": round(entry["seconds"], 6)}
    return msgspec.json.encode(present | values) + b"\n"


def _format_time(timestamp: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(timestamp))}.{int(timestamp % 1 * 1000):03d}Z"

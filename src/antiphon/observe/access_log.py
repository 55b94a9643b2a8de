"""The access log: one line of JSON per request, written by a thread several times a second.

A request only appends an entry to a queue. The queue is bounded; entries that do not fit or cannot be written are
counted. A file that was moved away is opened again, so log rotation needs no signal.
"""

import logging
import os
import threading
import time
from collections import deque

import msgspec
from msgspec import Struct

from antiphon.errors import StartupError

log = logging.getLogger(__name__)

STDERR = "-"
_MAX_WAITING = 20_000  # entries
_WRITE_SECONDS = 0.2  # seconds between two writes
_CLOSE_SECONDS = 5.0


class AccessLogEntry(Struct, omit_defaults=True, kw_only=True):
    """One request. The field names are the keys of the JSON line."""

    time: float  # start, in seconds since the epoch
    request_id: str
    method: str
    route: str  # the route template, never the path
    status: int
    seconds: float
    tenant: str = ""
    key: str = ""  # id of the API key
    response_id: str = ""
    connection_id: str = ""
    trace_id: str = ""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    safety_identifier: str = ""
    user: str = ""


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
        entries = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not entries:
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
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            found = os.fstat(self._file)
            self._file_id = found.st_dev, found.st_ino
        return self._file


def _render(entry: AccessLogEntry) -> bytes:
    timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(entry.time))
    fields = {**msgspec.structs.asdict(entry), "time": f"{timestamp}.{int(entry.time % 1 * 1000):03d}Z"}
    present = {name: value for name, value in fields.items() if value or name == "status"}
    return msgspec.json.encode(present | {"seconds": round(entry.seconds, 6)}) + b"\n"

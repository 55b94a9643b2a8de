"""One line of JSON for every request, written by a thread a few times a second: a request only leaves a note.

What waits is bounded, and what finds no room, or cannot be written, is counted. A file that was moved away is opened
anew, so that whoever rotates logs need not tell us.
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
_MOST = 20_000  # lines that may wait
_EVERY = 0.2  # seconds
_LAST_SECONDS = 5.0


class Line(Struct, omit_defaults=True, kw_only=True):
    time: float  # seconds since the epoch, when it began
    request_id: str
    method: str
    route: str  # the template, never the path
    status: int
    seconds: float
    tenant: str = ""
    key: str = ""  # the id of it
    response_id: str = ""
    connection_id: str = ""
    trace_id: str = ""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    safety_identifier: str = ""
    user: str = ""


class AccessLog:
    def __init__(self, place: str, most: int = _MOST) -> None:
        self._place = place
        self._most = most
        self._waiting: deque[Line] = deque()
        self._file = -1
        self._opened: tuple[int, int] | None = None  # device and inode
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="access-log", daemon=True)
        self.dropped = 0
        self._well = True

    def open(self) -> None:
        """Raises StartupError for a file that cannot be written: who wants a line of every request is to know."""
        try:
            if self._place != STDERR:
                self._current()
        except OSError as error:
            said = f"The access log {self._place} cannot be written: {error.strerror}."
            raise StartupError(f"{said} Name another file with --access-log.") from None
        self._thread.start()

    def note(self, line: Line) -> None:
        """The hot path."""
        if len(self._waiting) < self._most:
            self._waiting.append(line)
        else:
            self.dropped += 1

    def close(self) -> None:
        """What is left is written. To be called in a thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_SECONDS)

    def _write_all(self) -> None:
        while not self._closing.wait(_EVERY):
            self._write()
        self._write()

    def _write(self) -> None:
        lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not lines:
            return
        text = b"".join([_text(line) for line in lines])
        try:
            file = 2 if self._place == STDERR else self._current()
            while text:
                text = text[os.write(file, text) :]
        except OSError as error:
            self.dropped += len(lines)
            if self._well:
                log.warning("The access log cannot be written: %s.", error.strerror)
        self._well = not text

    def _current(self) -> int:
        try:
            found = os.stat(self._place)
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._opened:
            if self._opened is not None:
                os.close(self._file)
                self._opened = None
            self._file = os.open(self._place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            found = os.fstat(self._file)
            self._opened = found.st_dev, found.st_ino
        return self._file


def _text(line: Line) -> bytes:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(line.time))
    told = {**msgspec.structs.asdict(line), "time": f"{moment}.{int(line.time % 1 * 1000):03d}Z"}
    kept = {name: value for name, value in told.items() if value or name == "status"}
    return msgspec.json.encode(kept | {"seconds": round(line.seconds, 6)}) + b"\n"

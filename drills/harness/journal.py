"""What a server under drill did, in an append-only file that outlives it: when the engine was given which turn and
when that ended, what was begun and what was committed. A turn is known by a word in its input that occurs once.
"""

import os
import re
import secrets
import time
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

_NONCE = re.compile(rb"nonce-[0-9a-f]{16}")

What = Literal["generate", "generated", "cancelled", "begun", "committed"]


class Line(Struct, frozen=True, kw_only=True, omit_defaults=True):
    what: What
    at: float  # of the clock that all processes of a machine share
    pid: int
    nonce: str = ""
    id: str = ""
    fence: int = 0


def new_nonce() -> str:
    return f"nonce-{secrets.token_hex(8)}"


def nonce_in(content: bytes) -> str:
    """The last one: what came before it is history."""
    found = _NONCE.findall(content)
    return found[-1].decode() if found else ""


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, what: What, *, nonce: str = "", id: str = "", fence: int = 0) -> None:
        line = Line(what=what, at=time.monotonic(), pid=os.getpid(), nonce=nonce, id=id, fence=fence)
        os.write(self._file, msgspec.json.encode(line) + b"\n")  # one write: lines of several processes do not mix


class Audit:
    """Reads what was added to a journal and says what is wrong with it: nothing is generated after its end was
    committed, and nothing is ended by two owners."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._committed: set[str] = set()
        self._fences: dict[str, set[int]] = {}
        self.nonces: dict[str, str] = {}  # of each response that was begun
        self.generated: dict[str, list[float]] = {}  # when the engine was given it, by nonce
        self.ended: dict[str, float] = {}  # when the engine last stopped working on it, by nonce
        self.running: set[str] = set()  # nonces

    def news(self) -> list[str]:
        lines = self._lines()
        return [sentence for line in lines if (sentence := self._take(line))]

    def _lines(self) -> list[Line]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        self._offset += len(content)
        return [msgspec.json.decode(line, type=Line) for line in content.splitlines()]

    def _take(self, line: Line) -> str:
        match line.what:
            case "begun":
                self.nonces[line.id] = line.nonce
            case "committed":
                return self._commit(line)
            case "generate":
                return self._generate(line)
            case "generated" | "cancelled":
                self.ended[line.nonce] = line.at
                self.running.discard(line.nonce)
        return ""

    def _generate(self, line: Line) -> str:
        times = self.generated.setdefault(line.nonce, [])
        times.append(line.at)
        self.running.add(line.nonce)
        if line.nonce not in self._committed:
            return ""
        return f"{line.nonce} was given to the engine after its end was committed (for the {len(times)}. time)"

    def _commit(self, line: Line) -> str:
        self._committed.add(line.nonce or self.nonces.get(line.id, line.id))
        fences = self._fences.setdefault(line.id, set())
        fences.add(line.fence)
        return f"{line.id} was ended under the fences {sorted(fences)}" if len(fences) > 1 else ""

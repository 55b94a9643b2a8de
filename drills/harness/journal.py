"""Append-only journal of a server under drill, which outlives the server.

It records when the engine received each turn and when it ended, and which responses were begun and committed. A turn is
identified by a unique word (nonce) in its input.
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

JournalEvent = Literal["generate", "generated", "cancelled", "begun", "claimed", "held", "committed"]


class JournalLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    what: JournalEvent
    at: float  # monotonic clock, shared by all processes of the machine
    pid: int
    nonce: str = ""
    id: str = ""
    fence: int = 0


def new_nonce() -> str:
    return f"nonce-{secrets.token_hex(8)}"


def find_nonce(content: bytes) -> str:
    """Return the last nonce; those before it belong to the history."""
    found = _NONCE.findall(content)
    return found[-1].decode() if found else ""


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: JournalEvent, *, nonce: str = "", id: str = "", fence: int = 0) -> None:
        line = JournalLine(what=event, at=time.monotonic(), pid=os.getpid(), nonce=nonce, id=id, fence=fence)
        # a single write, so that lines of several processes do not mix
        os.write(self._file, msgspec.json.encode(line) + b"\n")


class JournalAudit:
    """Reads new lines of a journal and checks them: no turn is generated after its end was committed (a resumed server
    has to cancel it), and no response is ended by two owners, or by one from which another has taken it over.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._committed: set[str] = set()
        self._fences: dict[str, set[int]] = {}  # under which a response was ended, by id
        self._claimed: dict[str, int] = {}  # last fence under which a response was taken over, by id
        self.nonces: dict[str, str] = {}  # by id of the begun response
        self.generated: dict[str, list[float]] = {}  # times at which the engine received a turn, by nonce
        self.ended: dict[str, float] = {}  # time at which the engine last stopped working on a turn, by nonce
        self.running: set[str] = set()  # nonces
        self.held: set[str] = set()  # ids of responses whose call was held
        # processes that were paused: one that is about to call the engine then learns of a takeover only afterwards
        self.resumed: set[int] = set()
        self._stale: set[str] = set()  # nonces that such a process sent to the engine after their end was committed

    def check_new_lines(self) -> list[str]:
        """Check the lines written since the last call; returns violations."""
        lines = self._read_new_lines()
        return [sentence for line in lines if (sentence := self._check_line(line))]

    def _read_new_lines(self) -> list[JournalLine]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        self._offset += len(content)
        return [msgspec.json.decode(line, type=JournalLine) for line in content.splitlines()]

    def _check_line(self, line: JournalLine) -> str:
        match line.what:
            case "begun":
                self.nonces[line.id] = line.nonce
            case "claimed":
                self._claimed[line.id] = max(line.fence, self._claimed.get(line.id, 0))
                return self._check_owner(line.id)
            case "held":
                self.held.add(line.id)
            case "committed":
                return self._check_commit(line)
            case "generate":
                return self._check_generate(line)
            case "generated" | "cancelled":
                return self._check_generated(line)
        return ""

    def _check_generate(self, line: JournalLine) -> str:
        times = self.generated.setdefault(line.nonce, [])
        times.append(line.at)
        self.running.add(line.nonce)
        if line.nonce not in self._committed:
            return ""
        if line.pid in self.resumed:
            self._stale.add(line.nonce)
            return ""
        return f"{line.nonce} was sent to the engine after its end was committed (call {len(times)})"

    def _check_generated(self, line: JournalLine) -> str:
        self.ended[line.nonce] = line.at
        self.running.discard(line.nonce)
        if line.what == "generated" and line.nonce in self._stale and line.pid in self.resumed:
            return f"{line.nonce} was generated to its end by a resumed server after its end was committed"
        return ""

    def _check_commit(self, line: JournalLine) -> str:
        self._committed.add(line.nonce or self.nonces.get(line.id, line.id))
        fences = self._fences.setdefault(line.id, set())
        fences.add(line.fence)
        if len(fences) > 1:
            return f"{line.id} was ended under several fences: {sorted(fences)}"
        return self._check_owner(line.id)

    def _check_owner(self, response_id: str) -> str:
        """The last owner ends a response, whichever line was written first."""
        claimed, fences = self._claimed.get(response_id, 0), self._fences.get(response_id, set())
        if fences and max(fences) < claimed:
            return f"{response_id} was ended under the fence {max(fences)}, but taken over under {claimed}"
        return ""

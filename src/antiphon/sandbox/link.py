"""A connection to a sandbox that is made when it is first needed, and again, after a pause, if it has failed."""

import asyncio
import time
from abc import ABC, abstractmethod

from antiphon.config.areas import SandboxLevel
from antiphon.errors import SandboxDisabled, SandboxUnavailable
from antiphon.sandbox.connection import SandboxConnection

_FIRST_PAUSE = 0.5


class SandboxLink(ABC):
    """A subclass makes the connection."""

    paused = "The sandbox has failed and is being restarted."
    stable_seconds = 60.0  # a connection that has lasted that long has not failed at its start
    longest_pause = 60.0  # between two attempts to make one

    def __init__(self, level: SandboxLevel) -> None:
        self.level = level
        self._connection: SandboxConnection | None = None
        self._disabled: SandboxDisabled | None = None  # why the last attempt failed, if the host was the reason
        self._connected_at = 0.0
        self._failures = 0
        self._not_before = 0.0
        self._lock = asyncio.Lock()

    @abstractmethod
    async def _open(self) -> SandboxConnection:
        """Make a connection, within a deadline. Raises SandboxUnavailable."""

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def open(self) -> SandboxConnection:
        """Return the connection, made if necessary. Raises SandboxUnavailable, at once if a start has just failed."""
        async with self._lock:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            if self._connection is not None:
                self._note_failure(is_stable=time.monotonic() - self._connected_at > self.stable_seconds)
                await self.close()
            if (pause := self._not_before - time.monotonic()) > 0:
                if self._disabled is not None:
                    raise SandboxDisabled(self._disabled.message)
                raise SandboxUnavailable(self.paused, retry_after=pause)
            try:
                self._connection = await self._open()
            except SandboxUnavailable as error:
                self._disabled = error if isinstance(error, SandboxDisabled) else None
                self._note_failure(is_stable=False)
                raise
            self._connected_at = time.monotonic()
            return self._connection

    def _note_failure(self, is_stable: bool) -> None:
        """Set the time of the next start. The first failure after a long time costs no pause."""
        self._failures = 0 if is_stable else self._failures + 1
        pause = min(self.longest_pause, _FIRST_PAUSE * 2 ** (self._failures - 1)) if self._failures else 0.0
        self._not_before = time.monotonic() + pause

    def check_level(self, level: str) -> None:
        """Raise SandboxUnavailable if a sandbox has another level than it must have: a defect, or another program."""
        if level == "none" or self.level not in ("auto", level):
            raise SandboxUnavailable(f"The sandbox has the level {level} instead of {self.level} (--sandbox).")

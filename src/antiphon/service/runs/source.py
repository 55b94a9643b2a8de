"""What a transport sends from: a run of its own, a run that others follow too, or a response that ended long ago.

The transport drives it or waits for its result, and leaves it in any case.
"""

from typing import Protocol

from antiphon.agent.run import Tell


class Source(Protocol):
    @property
    def waits(self) -> bool:
        """Is it somebody else, an engine or another process, that everybody waits for just now?"""

    async def drive(self, tell: Tell) -> None:
        """Tell every event, in lists, to the last one."""

    async def result(self) -> bytes:
        """The JSON of the Response once it has ended; raises what made it fail."""

    def leave(self) -> None:
        """Nobody listens here any more. A foreground run that has no other listener ends, cancelled."""

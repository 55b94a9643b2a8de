"""The source a transport sends from: its own run, a run that others follow too, or a response that has ended.

The transport drives it or waits for its result, and always closes it.
"""

from typing import Protocol

from antiphon.agent.run import EventSink


class ResponseSource(Protocol):
    """Events and result of one response."""

    @property
    def waits(self) -> bool:
        """Whether the source is waiting for an engine or another process."""

    async def drive(self, emit: EventSink) -> None:
        """Emit every event, in lists, up to the terminal event."""

    async def result(self) -> bytes:
        """Return the JSON of the Response once it has ended. Raises the error if it failed."""

    def close(self) -> None:
        """Stop reading. A foreground run without other readers is cancelled."""

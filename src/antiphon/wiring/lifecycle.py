"""What is opened before the first request and closed after the last."""

from collections.abc import Callable
from contextlib import AsyncExitStack

from antiphon.service.encryption.keyring import new_key
from antiphon.service.operations.reload import Reloading
from antiphon.service.persistence.background_tasks import Tasks
from antiphon.wiring.components import Parts

_REASONING_KEY = "reasoning_key"  # under which the store has it, if the operator gave none
_LAST_WRITES = 5.0  # seconds for what is still to be written when everything is closed


class Lifecycle:
    """What is opened before the first request and closed after the last, in the reverse order."""

    def __init__(self, parts: Parts, rest: Callable[[], None]) -> None:
        """`rest`: what is done when the doors are closed."""
        self.parts = parts
        self._rest = rest
        self.reloading: Reloading | None = None  # if the settings can be read again
        self._opened = AsyncExitStack()
        self._beating, self._scanning = Tasks(), Tasks()

    async def open(self) -> None:
        """What is only half open when something goes wrong is closed too."""
        parts, opened = self.parts, self._opened
        opened.push_async_callback(parts.observing.close)
        parts.observing.open()
        opened.push_async_callback(parts.store.close)
        await parts.store.open()
        await parts.keys.open()
        if not parts.keyring:
            parts.keyring.add(await parts.store.shared(_REASONING_KEY, new_key()))
        opened.push_async_callback(parts.live.close)
        await parts.live.open(parts.sessions.hear)
        opened.push_async_callback(parts.toolkit.close)
        opened.push_async_callback(parts.engine.close)
        await parts.engine.open()
        self._beating.start(parts.models.attend())
        self._beating.start(parts.keeper.attend())
        self._beating.start(parts.keys.attend())
        self._beating.start(parts.pressure.attend())
        self._beating.start(parts.probe.attend())
        if parts.sharing is not None:
            self._beating.start(parts.sharing.attend(parts.quotas))
        if (joined := parts.observing.metrics.joined) is not None:
            self._beating.start(joined.attend())
        opened.push_async_callback(self._beating.close)
        opened.push_async_callback(parts.keeper.drain, _LAST_WRITES)
        opened.push_async_callback(parts.sessions.close)
        self._scanning.start(parts.jobs.attend())
        opened.push_async_callback(self._scanning.close)

    async def close(self) -> None:
        await self._opened.aclose()

    def busy(self) -> bool:
        return self.parts.sessions.busy()

    def reload(self) -> None:
        if self.reloading is not None:
            self._beating.start(self.reloading.read())
            self._beating.start(self.parts.meaning.prompts.read_again())

    def rest(self) -> None:
        self.parts.jobs.rest()
        self._rest()

    def interrupt(self) -> None:
        self.parts.responses.interrupt()
        self.parts.exchanges.interrupt()

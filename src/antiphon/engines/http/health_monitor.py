"""Keeps an eye on an engine: asks it what it is and has, again and again, and soon where it seems to be gone.

    unknown ──it answers──▶ well ──it does not, or work failed──▶ gone ──it answers──▶ well …

An engine that is down at the start keeps nobody from starting; one that is silent once is only asked again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec import Struct

from antiphon.engines.base import Deed, Level, Model, Standing
from antiphon.engines.client import Refused
from antiphon.errors import EngineFailed, StartupError, Unavailable

log = logging.getLogger(__name__)

WELL_SECONDS = 15.0
LOOK_SECONDS = 10.0
FIRST_REST = 0.25
LONGEST_REST = 10.0
_KEY = frozenset({401, 403})


class Abilities(Struct, frozen=True, kw_only=True):
    """What does not change while an engine runs. Learnt when it is met, and when its models or version change."""

    counts: bool = False  # the tokens of a chat
    takes: frozenset[Level] = frozenset()  # beside chats
    does: dict[str, frozenset[Deed]] = {}  # by model; of one that is not in it nothing is known
    lacks: dict[str, str] = {}  # fields that the table has and this one has not, with the reason
    parsers: dict[str, str] = {}
    architecture: str | None = None  # of its model, where it tells
    wording: str = ""  # its model's chat template, where it tells
    vocabulary: int | None = None  # ids of tokens are smaller; asked where one that is not does harm
    openers: tuple[tuple[int, ...], ...] = ()  # tokens by which a prompt puts the model into a thought
    knows_tools: bool = True  # the model's template


class Probe(Struct, frozen=True, kw_only=True):
    """What an engine told of itself."""

    version: str | None = None
    models: tuple[Model, ...] = ()
    contexts: dict[str, int] = {}  # tokens of prompt and answer together, by model, where it is told
    slots: int | None = None
    abilities: Abilities = Abilities()


class Watch:
    """`place` is for the log."""

    def __init__(self, who: str, place: str, probe: Callable[[], Awaitable[Probe]]) -> None:
        self._who = who
        self._place = place
        self._ask = probe
        self._task: asyncio.Task[None] | None = None
        self._alarm = asyncio.Event()
        self._failures = 0
        self.known: Probe | None = None  # what it said last, even if it is gone
        self.standing = Standing()  # of that
        self.well = False

    async def start(self) -> None:
        """StartupError for an engine that is there and does not take our key: waiting would not help."""
        try:
            await self._look()
        except Refused as refused:
            raise StartupError(
                f"{self._who} at {self._place} does not accept the key (HTTP status {refused.answered}): "
                "set --engine-key, ANTIPHON_ENGINE_KEY or `key` in its table."
            ) from None
        self._task = asyncio.create_task(self._attend(), name=f"watch over {self._place}")

    async def stop(self) -> None:
        task, self._task = self._task, None
        self.well = False
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def suspect(self) -> None:
        """Work could not be handed over: look at once."""
        self._alarm.set()

    async def _attend(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._rest()):
                    await self._alarm.wait()
            except TimeoutError:
                pass
            self._alarm.clear()
            try:
                await self._look()
            except Refused as refused:
                self._miss(refused)

    def _rest(self) -> float:
        return min(FIRST_REST * 2 ** min(self._failures - 1, 16), LONGEST_REST) if self._failures else WELL_SECONDS

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                found = await self._ask()
        except TimeoutError:
            self._miss(EngineFailed(f"{self._who} did not answer in time."))
        except Refused as refused:
            if refused.answered in _KEY:
                raise
            self._miss(refused)
        except (EngineFailed, Unavailable) as error:
            self._miss(error)
        else:
            self._meet(found)

    def _meet(self, found: Probe) -> None:
        if not self.well:
            names = ", ".join(model.id for model in found.models[:5])
            version = f", version {found.version}" if found.version else ""
            log.info("%s at %s is there%s; models: %s", self._who, self._place, version, names or "none")
        if found != self.known:
            self.standing.fall()
            self.known, self.standing = found, Standing()
        self.well, self._failures = True, 0

    def _miss(self, error: EngineFailed | Unavailable) -> None:
        self._failures += 1
        silent = isinstance(error, EngineFailed) and not isinstance(error, Refused)
        if silent and self.well and self._failures == 1:
            return  # too busy to answer once is not gone
        if self.well or (self.known is None and self._failures == 1):
            log.warning("%s at %s is not there (%s); it is asked until it is", self._who, self._place, error)
        self.well = False

"""Engines for a pool, and a pool of them: fake ones that a test lets fail, fall ill and come back."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt, Chunk, Sampling, Work
from antiphon.engines.base import Capabilities, Engine, Model
from antiphon.engines.fake import FakeEngine
from antiphon.engines.fake.engine import FakeSettings
from antiphon.engines.fake.reply import Gate
from antiphon.engines.pool import Pool, Seat
from antiphon.engines.pool.balancer import Candidate, affinity, choose
from antiphon.errors import AntiphonError

DEADLINE = 10.0


class Part(FakeEngine):
    """One of several. `up` is what its health check says; `able` changes what it says it can do."""

    def __init__(self, name: str = "one", *models: str, **able: Any) -> None:
        super().__init__(FakeSettings(burst=1, level=able.pop("level", "chat")))
        self.label = name
        self.up = True
        self.opened = 0
        self.closed = 0
        self.names = models or ("m",)
        self._changes = able

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    def models(self) -> Sequence[Model]:
        return [Model(id=name, created=1) for name in self.names]

    def serves(self, model: str) -> bool:
        return model in self.names

    def healthy(self) -> bool:
        return self.up

    async def capabilities(self, model: str) -> Capabilities:
        return replace(await super().capabilities(model), **self._changes)

    def held(self, times: int = 1) -> list[Gate]:
        """The next answers wait before their first word."""
        gates = []
        for _ in range(times):
            self.answers()
            gates.append(self.holds())
        return gates


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not true():  # noqa: ASYNC110 - what happens in an engine says nothing about itself
            await asyncio.sleep(0)


def seat(engine: Engine, name: str, **given: Any) -> Seat:
    return Seat(**{"name": name, "place": f"fake://{name}", "settings": None, "build": lambda: engine, **given})


def seats(*parts: Part, **given: Any) -> list[Seat]:
    return [seat(part, part.label, **given) for part in parts]


@asynccontextmanager
async def pooled(*parts: Part, patience: float = 30.0, grace: float = 5.0, **given: Any) -> AsyncIterator[Pool]:
    pool = Pool(seats(*parts, **given), patience, grace)
    await pool.open()
    try:
        async with asyncio.timeout(DEADLINE):
            yield pool
    finally:
        await pool.close()


def work(said: str = "hi", **wishes: Any) -> Work:
    prompt = ChatPrompt(({"role": "user", "content": said},))
    return Work(**{"model": "m", "prompt": prompt, "sampling": Sampling(), **wishes})


class Said(Struct):
    chunks: list[Chunk]
    error: AntiphonError | None = None

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)


async def ask(engine: Engine, asked: Work | None = None) -> Said:
    said = Said([])
    try:
        async with asyncio.timeout(DEADLINE), aclosing(engine.generate(asked or work())) as lists:
            async for chunks in lists:
                said.chunks += chunks
    except AntiphonError as error:
        said.error = error
    return said


def first_for(pool: Pool, asked: Work) -> tuple[Part, list[Part]]:
    """Whom it would go to with nothing else to do, and the others."""
    parts = [member.engine for member in pool.members()]
    assert all(isinstance(part, Part) for part in parts)
    number = choose([Candidate(member.seat.place, 0) for member in pool.members()], affinity(asked))
    return parts[number], [*parts[:number], *parts[number + 1 :]]  # type: ignore[return-value, list-item]  # as asserted

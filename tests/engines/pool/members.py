"""Fake engines for a pool, which a test can make fail, become unhealthy and recover, and a pool of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt, Chunk, GenerationRequest, Sampling
from antiphon.engines.base import Capabilities, Engine, Model
from antiphon.engines.fake import FakeEngine
from antiphon.engines.fake.engine import FakeSettings
from antiphon.engines.fake.playback import Gate
from antiphon.engines.pool import EnginePool, MemberSpec
from antiphon.engines.pool.selection import LoadCandidate, affinity_key, choose
from antiphon.errors import AntiphonError

DEADLINE = 10.0


class FakeMember(FakeEngine):
    """A fake engine of a pool. `up` is the result of its health check; `overrides` replace fields of its
    capabilities.
    """

    def __init__(self, name: str = "one", *models: str, **overrides: Any) -> None:
        super().__init__(FakeSettings(burst=1, level=overrides.pop("level", "chat")))
        self.label = name
        self.up = True
        self.opened = 0
        self.closed = 0
        self.names = models or ("m",)
        self._overrides = overrides

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    def models(self) -> Sequence[Model]:
        return [Model(id=name, created=1) for name in self.names]

    def serves(self, model: str) -> bool:
        return model in self.names

    def is_healthy(self) -> bool:
        return self.up

    async def capabilities(self, model: str) -> Capabilities:
        return replace(await super().capabilities(model), **self._overrides)

    def hold_answers(self, times: int = 1) -> list[Gate]:
        """Make the next answers wait before their first chunk."""
        gates = []
        for _ in range(times):
            self.answers()
            gates.append(self.holds())
        return gates


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - the engines signal no events
            await asyncio.sleep(0)


def make_spec(engine: Engine, name: str, **fields: Any) -> MemberSpec:
    return MemberSpec(
        **{"name": name, "location": f"fake://{name}", "settings": None, "build": lambda: engine, **fields}
    )


def make_specs(*members: FakeMember, **fields: Any) -> list[MemberSpec]:
    return [make_spec(member, member.label, **fields) for member in members]


@asynccontextmanager
async def open_pool(
    *members: FakeMember, seconds: float = 30.0, grace: float = 5.0, **fields: Any
) -> AsyncIterator[EnginePool]:
    pool = EnginePool(make_specs(*members, **fields), seconds, grace)
    await pool.open()
    try:
        async with asyncio.timeout(DEADLINE):
            yield pool
    finally:
        await pool.close()


def make_request(text: str = "hi", **fields: Any) -> GenerationRequest:
    prompt = ChatPrompt(({"role": "user", "content": text},))
    return GenerationRequest(**{"model": "m", "prompt": prompt, "sampling": Sampling(), **fields})


class GenerationResult(Struct):
    chunks: list[Chunk]
    error: AntiphonError | None = None

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)


async def run_generation(engine: Engine, request: GenerationRequest | None = None) -> GenerationResult:
    result = GenerationResult([])
    try:
        async with asyncio.timeout(DEADLINE), aclosing(engine.generate(request or make_request())) as lists:
            async for chunks in lists:
                result.chunks += chunks
    except AntiphonError as error:
        result.error = error
    return result


def find_preferred(pool: EnginePool, request: GenerationRequest) -> tuple[FakeMember, list[FakeMember]]:
    """Return the member that an idle pool chooses for the request, and the others."""
    engines = [member.engine for member in pool.members()]
    assert all(isinstance(engine, FakeMember) for engine in engines)
    index = choose([LoadCandidate(member.spec.location, 0) for member in pool.members()], affinity_key(request))
    return engines[index], [*engines[:index], *engines[index + 1 :]]  # type: ignore[return-value, list-item]  # as asserted

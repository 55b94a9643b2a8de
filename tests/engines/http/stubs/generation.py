"""Asking an engine over HTTP, or a whole server in front of it, and gathering what it says."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from msgspec import Struct

from antiphon.config import Config
from antiphon.core.prompt import ChatPrompt, Chunk, Sampling, Work
from antiphon.engines.base import Engine, Flow
from antiphon.errors import AntiphonError
from antiphon.transport.middleware.app import App
from antiphon.wiring import build_app, build_engine
from tests.support.asgi_client import JSON, Answer, call


class Said(Struct):
    """What came, and the error that ended it."""

    chunks: list[Chunk]
    error: AntiphonError | None = None

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def thought(self) -> str:
        return "".join(chunk.thought for chunk in self.chunks)


def work(**given: Any) -> Work:
    wishes = {name: given.pop(name) for name in list(given) if name in Work.__struct_fields__}
    prompt = ChatPrompt(({"role": "user", "content": "hi"},))
    return Work(**{"model": "m", "prompt": prompt, "sampling": Sampling(**given), **wishes})


async def ask(engine: Engine, asked: Work | None = None) -> Said:
    said = Said([])
    try:
        async with asyncio.timeout(30), aclosing(engine.generate(asked or work())) as lists:
            async for chunks in lists:
                assert chunks or isinstance(chunks, Flow), "an empty list"
                said.chunks += chunks
    except AntiphonError as error:
        said.error = error
    return said


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[Engine]:
    engine = build_engine(Config(engine=url, **settings))
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def server(url: str, **settings: Any) -> AsyncIterator[App]:
    """A whole server but for its socket."""
    config = Config(engine=url, store="memory", **settings)
    app = build_app(config, build_engine(config))
    await app.lifecycle.open()
    try:
        yield app
    finally:
        await app.lifecycle.close()


async def post(app: App, **body: Any) -> Answer:
    return await call(
        app, "POST", "/v1/responses", JSON, body=[json.dumps({"model": "m", "input": "hi", **body}).encode()]
    )

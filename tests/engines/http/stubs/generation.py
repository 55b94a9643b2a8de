"""Run generations on an HTTP engine, or on a complete server in front of it, and collect the results."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from msgspec import Struct

from antiphon.config import Config
from antiphon.core.prompt import ChatPrompt, Chunk, GenerationRequest, Sampling
from antiphon.engines.base import Engine, PushStream
from antiphon.engines.factory import build_engine
from antiphon.errors import AntiphonError
from antiphon.transport.middleware.app import App
from antiphon.wiring import build_app
from tests.support.asgi_client import JSON, AsgiResponse, call


class GenerationResult(Struct):
    """The received chunks, and the error that ended the stream."""

    chunks: list[Chunk]
    error: AntiphonError | None = None

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def reasoning(self) -> str:
        return "".join(chunk.reasoning for chunk in self.chunks)


def make_request(**fields: Any) -> GenerationRequest:
    request_fields = {name: fields.pop(name) for name in list(fields) if name in GenerationRequest.__struct_fields__}
    prompt = ChatPrompt(({"role": "user", "content": "hi"},))
    return GenerationRequest(**{"model": "m", "prompt": prompt, "sampling": Sampling(**fields), **request_fields})


async def run_generation(engine: Engine, request: GenerationRequest | None = None) -> GenerationResult:
    result = GenerationResult([])
    try:
        async with asyncio.timeout(30), aclosing(engine.generate(request or make_request())) as lists:
            async for chunks in lists:
                assert chunks or isinstance(chunks, PushStream), "an empty list"
                result.chunks += chunks
    except AntiphonError as error:
        result.error = error
    return result


@asynccontextmanager
async def open_engine(url: str | tuple[str, ...], **settings: Any) -> AsyncIterator[Engine]:
    engine = build_engine(Config.from_settings(engine=url, **settings))
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def open_app(url: str, **settings: Any) -> AsyncIterator[App]:
    """Open a complete server without its socket."""
    config = Config.from_settings(engine=url, store="memory", **settings)
    app = build_app(config, build_engine(config))
    await app.lifecycle.open()
    try:
        yield app
    finally:
        await app.lifecycle.close()


async def post_response(app: App, **body: Any) -> AsgiResponse:
    return await call(
        app, "POST", "/v1/responses", JSON, body=[json.dumps({"model": "m", "input": "hi", **body}).encode()]
    )

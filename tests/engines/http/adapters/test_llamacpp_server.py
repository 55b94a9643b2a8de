"""llama.cpp's own server, started for embeddings: the one within the embedded engine's child process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.engines.base import Engine
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from tests.engines.http.stubs.generation import opened, post, server
from tests.support.asgi_client import call

pytestmark = [pytest.mark.anyio, pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]

MODEL = "all-minilm-l6-v2"


@asynccontextmanager
async def embedding() -> AsyncIterator[tuple[Engine, str]]:
    """The embedded engine, and the URL of the server within it."""
    embedded = LlamaCpp(LlamaCppSettings(model=(MODEL,)))
    await embedded.open()
    try:
        await embedded.embed(MODEL, ["a"])
        (model,) = embedded.loaded
        assert model.child is not None
        yield embedded, f"llamacpp-server+unix://{model.child.socket}"
    finally:
        await embedded.close()


@pytest.mark.shows("C.17", "C.27")
async def test_its_vectors_are_those_of_the_embedded_engine() -> None:
    async with embedding() as (embedded, url), opened(url) as engine:
        texts = ["the cat sat", "a law was passed"]
        own, through = await embedded.embed(MODEL, texts), await engine.embed(engine.models()[0].id, texts)
        for one, other in zip(own.vectors, through.vectors, strict=True):
            assert one == pytest.approx(other, abs=1e-3)
        assert own.tokens == through.tokens


@pytest.mark.shows("C.21", "C.22")
async def test_it_is_no_model_to_talk_to() -> None:
    async with embedding() as (_, url), server(url) as app:
        (shown,) = (await call(app, "GET", "/v1/capabilities")).json()["data"]
        assert ({*shown["does"]}, shown["honours"]) == ({"embed", "tokenize", "detokenize"}, [])
        told = await post(app, model=shown["model"])
        assert (told.status, told.error["param"]) == (400, "model")

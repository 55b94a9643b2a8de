"""llama.cpp's own server started for embeddings: the one in the child process of the embedded engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.engines.base import Engine
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from tests.engines.http.stubs.generation import open_app, open_engine, post_response
from tests.support.asgi_client import call

pytestmark = [pytest.mark.anyio, pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]

MODEL = "all-minilm-l6-v2"


@asynccontextmanager
async def run_embedding_server() -> AsyncIterator[tuple[Engine, str]]:
    """Run the embedded engine; yield it and the URL of the server in its child process."""
    embedded = LlamaCpp(LlamaCppSettings(model=(MODEL,), llamacpp_embeddings=True))
    await embedded.open()
    try:
        await embedded.embed(MODEL, ["a"])
        (model,) = embedded.loaded_models
        assert model.child is not None
        yield embedded, f"llamacpp-server+unix://{model.child.socket}"
    finally:
        await embedded.close()


@pytest.mark.shows("C.17", "C.27")
async def test_the_vectors_equal_those_of_the_embedded_engine() -> None:
    async with run_embedding_server() as (embedded, url), open_engine(url) as engine:
        texts = ["the cat sat", "a law was passed"]
        own, through = await embedded.embed(MODEL, texts), await engine.embed(engine.models()[0].id, texts)
        for one, other in zip(own.vectors, through.vectors, strict=True):
            assert one == pytest.approx(other, abs=1e-3)
        assert own.tokens == through.tokens


@pytest.mark.shows("C.21", "C.22")
async def test_an_embedding_model_does_not_generate() -> None:
    async with run_embedding_server() as (_, url), open_app(url) as app:
        (shown,) = (await call(app, "GET", "/v1/capabilities")).json()["data"]
        assert ({*shown["does"]}, shown["honours"]) == ({"embed", "tokenize", "detokenize"}, [])
        response = await post_response(app, model=shown["model"])
        assert (response.status, response.error["param"]) == (400, "model")

"""What the server says that its models can do."""

import pytest

from tests.asgi import call
from tests.engines.http.asking import server
from tests.engines.http.stub import standing_in

pytestmark = pytest.mark.anyio


@pytest.mark.shows("C.21", "G.9")
async def test_the_probe_of_an_engine_is_shown() -> None:
    async with standing_in("vllm") as stub, server(stub.url, served_model_name=("mine",)) as app:
        (shown,) = (await call(app, "GET", "/v1/capabilities")).json()["data"]
        assert (shown["model"], shown["engine"], shown["engine_version"]) == ("mine", "vllm", "0.32.0")
        assert (shown["level"], shown["context"], shown["healthy"]) == ("chat", 32768, True)
        assert {"top_k", "tools", "text.format"} <= set(shown["honours"])
        assert not set(shown["honours"]) & shown["lacks"].keys()
        assert "draft" in shown["lacks"]["num_assistant_tokens"].lower()


async def test_every_kind_of_engine_can_be_asked() -> None:
    async with server("fake") as app:
        (shown,) = (await call(app, "GET", "/v1/capabilities")).json()["data"]
        assert (shown["engine"], [*shown["lacks"]], shown["counts_tokens"]) == ("fake", ["prompt_logprobs"], True)
        assert {"generate", "embed"} <= {*shown["does"]}


async def test_an_engine_that_was_never_there_has_nothing_to_show() -> None:
    async with server("vllm://127.0.0.1:9") as app:
        assert (await call(app, "GET", "/v1/capabilities")).json() == {"object": "list", "data": []}

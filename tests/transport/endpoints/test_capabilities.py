"""What the server says that its models can do."""

from typing import Any

import pytest

from antiphon.config import Config
from antiphon.engines.base import Capabilities
from antiphon.engines.pool import Pool
from antiphon.errors import EngineFailed
from antiphon.wiring import build_app
from tests.engines.http.stubs.chat_stub import standing_in
from tests.engines.http.stubs.generation import server
from tests.engines.pool.members import Part, seats
from tests.support.asgi_client import call

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


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"reasoning_parser": "qwen3"}, {"thoughts": "qwen3", "calls": None, "harmony": False}),
        ({"fake_level": "text"}, {"thoughts": "think", "calls": "hermes", "harmony": False}),
        (
            {"fake_level": "text", "tool_call_parser": "mistral", "reasoning_parser": "none"},
            {"thoughts": None, "calls": "mistral", "harmony": False},
        ),
        ({"fake_level": "harmony"}, {"thoughts": None, "calls": None, "harmony": True}),
    ],
)
async def test_how_raw_output_is_read_is_shown(settings: dict[str, Any], expected: dict[str, Any] | None) -> None:
    async with server("fake", **settings) as app:
        (shown,) = (await call(app, "GET", "/v1/capabilities")).json()["data"]
        assert shown["reading"] == expected
        assert "tools" in shown["honours"]


async def test_an_engine_that_was_never_there_has_nothing_to_show() -> None:
    async with server("vllm://127.0.0.1:9") as app:
        shown = (await call(app, "GET", "/v1/capabilities")).json()
        assert (shown["data"], "failing" in shown) == ([], False)


@pytest.mark.shows("E.26")
async def test_the_tools_that_the_server_runs_are_shown_and_how_the_others_are_set_up() -> None:
    async with server("fake", mcp_server=("notes=http://127.0.0.1:9/mcp",)) as app:
        tools = {tool["type"]: tool for tool in (await call(app, "GET", "/v1/capabilities")).json()["tools"]}
        assert tools["mcp"] == {"type": "mcp", "ready": True, "servers": ["notes"]}
        assert tools["web_search"]["ready"] is False
        assert "--web-search" in tools["web_search"]["missing"]


class Broken(Part):
    async def capabilities(self, model: str) -> Capabilities:
        raise EngineFailed("The model's file is damaged.")


async def test_an_engine_that_fails_when_it_is_asked_is_named_beside_the_others() -> None:
    pool = Pool(seats(Part("a", "m"), Broken("b", "m", "n")))
    app = build_app(Config(engine="fake", store="memory"), pool)
    await app.lifecycle.open()
    try:
        told = await call(app, "GET", "/v1/capabilities")
    finally:
        await app.lifecycle.close()
    assert (told.status, [one["model"] for one in told.json()["data"]]) == (200, ["m"])
    assert told.json()["failing"] == [{"model": "n", "engine": "fake", "error": "The model's file is damaged."}]

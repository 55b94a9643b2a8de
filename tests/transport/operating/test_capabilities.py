"""Tests GET /v1/capabilities: what models, engines and server tools support."""

from typing import Any

import pytest

from antiphon.config import Config
from antiphon.engines.base import Capabilities
from antiphon.engines.pool import EnginePool
from antiphon.errors import EngineFailed
from antiphon.wiring import build_app
from tests.engines.http.stubs.chat_stub import run_stub
from tests.engines.http.stubs.generation import open_app
from tests.engines.pool.members import FakeMember, make_specs
from tests.support.asgi_client import call

pytestmark = pytest.mark.anyio


@pytest.mark.shows("C.21", "G.9")
async def test_the_probed_capabilities_of_an_engine_are_shown() -> None:
    async with run_stub("vllm") as stub, open_app(stub.url, served_model_name=("mine",)) as app:
        (shown,) = (await call(app, "GET", "/v1/capabilities")).json()["data"]
        assert (shown["model"], shown["engine"], shown["engine_version"]) == ("mine", "vllm", "0.32.0")
        assert (shown["level"], shown["context"], shown["healthy"]) == ("chat", 32768, True)
        assert {"top_k", "tools", "text.format"} <= set(shown["honours"])
        assert not set(shown["honours"]) & shown["lacks"].keys()
        assert "speculative decoding" in shown["lacks"]["num_assistant_tokens"].lower()


async def test_the_capabilities_of_the_fake_engine_are_shown() -> None:
    async with open_app("fake") as app:
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
async def test_the_output_parsers_are_shown(settings: dict[str, Any], expected: dict[str, Any] | None) -> None:
    async with open_app("fake", **settings) as app:
        (shown,) = (await call(app, "GET", "/v1/capabilities")).json()["data"]
        assert shown["reading"] == expected
        assert "tools" in shown["honours"]


async def test_an_unreachable_engine_shows_no_capabilities() -> None:
    async with open_app("vllm://127.0.0.1:9") as app:
        shown = (await call(app, "GET", "/v1/capabilities")).json()
        assert (shown["data"], "failing" in shown) == ([], False)


@pytest.mark.shows("E.26")
async def test_server_tools_are_shown_with_setup_hints_for_the_unavailable_ones() -> None:
    async with open_app("fake", mcp_server=("notes=http://127.0.0.1:9/mcp",)) as app:
        tools = {tool["type"]: tool for tool in (await call(app, "GET", "/v1/capabilities")).json()["tools"]}
        assert tools["mcp"] == {"type": "mcp", "ready": True, "servers": ["notes"]}
        assert tools["web_search"]["ready"] is False
        assert "--web-search" in tools["web_search"]["missing"]


class BrokenEngine(FakeMember):
    async def capabilities(self, model: str) -> Capabilities:
        raise EngineFailed("The model's file is damaged.")


async def test_a_failing_engine_is_listed_beside_the_others() -> None:
    pool = EnginePool(make_specs(FakeMember("a", "m"), BrokenEngine("b", "m", "n")))
    app = build_app(Config.from_settings(engine="fake", store="memory"), pool)
    await app.lifecycle.open()
    try:
        answer = await call(app, "GET", "/v1/capabilities")
    finally:
        await app.lifecycle.close()
    assert (answer.status, [entry["model"] for entry in answer.json()["data"]]) == (200, ["m"])
    assert answer.json()["failing"] == [{"model": "n", "engine": "fake", "error": "The model's file is damaged."}]

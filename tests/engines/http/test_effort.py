"""The reasoning effort on models that do not reason, or of which nothing is known."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.prompt import ChatTemplate
from antiphon.transport.middleware.app import App
from tests.engines.http.stubs.chat_stub import EngineStub
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.http.stubs.generation import open_app, post_response
from tests.support.asgi_client import JSON, call
from tests.support.local_servers import serve_tcp

pytestmark = pytest.mark.anyio

RENDERING = ["vllm", "sglang", "llamacpp-server"]  # engines that may show how a template renders a chat
HIGH = {"reasoning": {"effort": "high"}}
PLAIN_TEMPLATE = ChatTemplate(source="{% for m in messages %}{{ m.content }}{% endfor %}")


@asynccontextmanager
async def open_stub(name: str, *, has_switch: bool = True, **settings: Any) -> AsyncIterator[tuple[App, EngineStub]]:
    """Open a server before an engine whose chat template has a variable for reasoning or not."""
    dialect = DIALECTS[name]
    if name == "sglang":
        info = {**dialect.asides["/model_info"], "reasoning_parser": settings.pop("reported_parser", None)}
        dialect = replace(dialect, asides={**dialect.asides, "/model_info": info})
    stub = EngineStub(dialect)
    if not has_switch:
        stub.raw.template = PLAIN_TEMPLATE
    async with serve_tcp(stub.serve) as port, open_app(f"{name}://127.0.0.1:{port}", **settings) as app:
        yield app, stub


async def fetch_ignored(app: App, **fields: Any) -> Any:
    """Create a response and return its ignored fields."""
    response = await post_response(app, **fields)
    assert response.status == 200, response.body
    names = response.json().get("ignored_fields", [])
    assert (response.header(b"x-antiphon-ignored") or b"").decode() == ", ".join(names)
    return names


@pytest.mark.parametrize("level", ["chat", "tokens"])
@pytest.mark.parametrize("name", ["vllm", "llamacpp-server"])
@pytest.mark.shows("A.19", "A.35", "C.22")
async def test_the_effort_is_rejected_if_it_does_not_change_the_prompt(name: str, level: str) -> None:
    async with open_stub(name, has_switch=False, engine_level=level) as (app, stub):
        refused = await post_response(app, **HIGH)
        assert (refused.status, refused.error["param"]) == (400, "reasoning.effort")
        assert "chat template" in refused.error["message"]
        assert not stub.chat_bodies
        assert not stub.raw_bodies
        for effort in ("none", None):
            assert (await post_response(app, reasoning={"effort": effort})).status == 200
        (capabilities,) = (await call(app, "GET", "/v1/capabilities")).json()["data"]
        assert "reasoning.effort" not in capabilities["honours"]


@pytest.mark.parametrize("name", [*RENDERING, "ollama"])
@pytest.mark.shows("A.35", "C1.2")
async def test_the_effort_is_applied_if_it_changes_the_prompt(name: str) -> None:
    """Or if the server reports that the model thinks, as Ollama does."""
    async with open_stub(name) as (app, _):
        assert await fetch_ignored(app, **HIGH) == []


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("vllm", {"reasoning_parser": "deepseek_r1"}),
        ("vllm", {"model": ("deepseek-r1-distill",)}),
        ("sglang", {}),
    ],
)
@pytest.mark.shows("A.19", "A.35")
async def test_the_effort_is_reported_for_a_model_that_may_reason_without_it(
    name: str, settings: dict[str, Any]
) -> None:
    async with open_stub(name, has_switch=False, **settings) as (app, _):
        model = settings.get("model", ("m",))[0]
        assert await fetch_ignored(app, model=model, **HIGH) == ["reasoning.effort"]
        assert await fetch_ignored(app, model=model, reasoning={"effort": "none"}) == []


@pytest.mark.parametrize(
    ("name", "settings", "ignored"),
    [
        ("ovms", {}, ["reasoning.effort"]),
        ("openai", {}, ["reasoning.effort"]),
        ("sglang", {"reported_parser": "deepseek-r1", "has_switch": False}, []),
        ("ovms", {"reasoning_parser": "qwen3"}, []),
        ("ovms", {"model": ("OpenVINO/Qwen3-8B-int4-ov",)}, []),
        ("ovms", {"model": ("OpenVINO/Qwen2.5-7B-Instruct",)}, ["reasoning.effort"]),
        ("openai", {"model": ("gpt-oss-20b",)}, []),
        ("openai", {"model": ("gpt-5.5-mini",)}, []),
        ("openai", {"model": ("o4-mini",)}, []),
        ("openai", {"model": ("gpt-4o",)}, ["reasoning.effort"]),
    ],
)
@pytest.mark.shows("A.19", "A.35")
async def test_the_effort_is_reported_unless_the_model_is_known_to_reason(
    name: str, settings: dict[str, Any], ignored: list[str]
) -> None:
    async with open_stub(name, **settings) as (app, stub):
        model = settings.get("model", ("m",))[0]
        assert await fetch_ignored(app, model=model, **HIGH) == ignored
        sent = stub.chat_bodies[-1]
        assert sent.get("reasoning_effort") == "high" or sent["chat_template_kwargs"] == {"enable_thinking": True}


@pytest.mark.shows("A.19", "G.2")
async def test_other_apis_report_the_effort_under_their_own_names() -> None:
    messages = [{"role": "user", "content": "hi"}]
    async with open_stub("ovms") as (app, _):
        chat = json.dumps({"model": "m", "messages": messages, "reasoning_effort": "low"}).encode()
        answer = await call(app, "POST", "/v1/chat/completions", JSON, body=[chat])
        assert answer.header(b"x-antiphon-ignored") == b"reasoning_effort"
        message = {"model": "m", "max_tokens": 9, "messages": messages, "output_config": {"effort": "low"}}
        answer = await call(app, "POST", "/v1/messages", JSON, body=[json.dumps(message).encode()])
        assert answer.header(b"x-antiphon-ignored") == b"output_config.effort"


@pytest.mark.parametrize(("name", "ignored"), [("vllm", []), ("openai", ["reasoning.context"])])
@pytest.mark.shows("A.19")
async def test_old_reasoning_is_reported_as_ignored_if_the_engine_accepts_none(name: str, ignored: list[str]) -> None:
    async with open_stub(name, model=("gpt-5",)) as (app, _):
        assert await fetch_ignored(app, model="gpt-5", reasoning={"context": "all_turns"}) == ignored

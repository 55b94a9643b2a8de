"""Log probabilities that an engine accepts and then does not return: the request fails by the name of the field."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from antiphon.core.deltas import Text
from antiphon.core.prompt import Chunk, GenerationRequest
from antiphon.engines.fake import FakeEngine, FakeSettings
from tests.api.app import parse_events, run_api

pytestmark = pytest.mark.anyio

LOGPROBS = "message.output_text.logprobs"
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


class EngineWithoutLogprobs(FakeEngine):
    """An engine that accepts the fields for log probabilities, and returns none after the first `kept` chunks."""

    kept = 0

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[list[Chunk], None]:
        count = 0
        async with aclosing(super().generate(request)) as lists:
            async for chunks in lists:
                for chunk in chunks:
                    count += 1
                    if count > self.kept:
                        chunk.logprobs = ()
                yield chunks


@pytest.fixture(params=["chat", "text", "harmony"])
def engine(request: pytest.FixtureRequest) -> EngineWithoutLogprobs:
    return EngineWithoutLogprobs(FakeSettings(level=request.param))


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"include": [LOGPROBS]}, "include"), ({"top_logprobs": 2}, "top_logprobs"), ({"logprobs": True}, "include")],
)
@pytest.mark.shows("A.19", "A.63")
async def test_a_response_without_requested_logprobs_fails(
    engine: EngineWithoutLogprobs, fields: dict[str, Any], param: str
) -> None:
    async with run_api(engine=engine) as server:
        whole = await server.post("responses", {"model": "fake", "input": "hi", **fields})
        assert (whole.status, whole.error["code"], whole.error["param"]) == (400, "unsupported_parameter", param)
        assert "fake engine returned no log probabilities" in whole.error["message"]
        events = parse_events(
            await server.post("responses", {"model": "fake", "input": "hi", "stream": True, **fields})
        )
        assert events[-1]["type"] == "response.failed"
        error = events[-1]["response"]["error"]
        assert (error["code"], param in error["message"]) == ("unsupported_parameter", True)


@pytest.mark.shows("A.19", "G.2")
async def test_a_chat_completion_without_requested_logprobs_fails(engine: EngineWithoutLogprobs) -> None:
    async with run_api(engine=engine) as server:
        for fields, param in (({}, "logprobs"), ({"top_logprobs": 2}, "top_logprobs")):
            body = {"model": "fake", "messages": MESSAGES, "logprobs": True, **fields}
            whole = await server.post("chat/completions", body)
            assert (whole.status, whole.error["code"], whole.error["param"]) == (400, "unsupported_parameter", param)
            *_, last, done, remainder = (await server.post("chat/completions", {**body, "stream": True})).body.split(
                b"\n\n"
            )
            assert (done, remainder) == (b"data: [DONE]", b"")
            assert json.loads(last.removeprefix(b"data: "))["error"]["param"] == param


async def test_an_answer_that_has_some_logprobs_is_complete() -> None:
    engine = EngineWithoutLogprobs()
    engine.kept = 1
    async with run_api(engine=engine) as server:
        response = await server.create(include=[LOGPROBS])
        assert response["status"] == "completed"
        assert len(response["output"][0]["content"][0]["logprobs"]) == 1


async def test_an_answer_without_text_needs_no_logprobs() -> None:
    engine = EngineWithoutLogprobs()
    async with run_api(engine=engine) as server:
        response = await server.create(include=[LOGPROBS], tools=[TOOL], tool_choice="required")
        assert [item["type"] for item in response["output"]] == ["function_call"]


async def test_answers_that_are_only_ordered_by_logprobs_do_not_need_them() -> None:
    async with run_api(engine=EngineWithoutLogprobs()) as server:
        assert len((await server.create(n=2))["output"]) == 2


async def test_text_that_a_parser_held_back_to_the_end_needs_logprobs_too() -> None:
    engine = EngineWithoutLogprobs(FakeSettings(level="text"))
    engine.says(Text("<"))  # which a call may begin with
    async with run_api(engine=engine) as server:
        body = {"model": "fake", "input": "hi", "include": [LOGPROBS], "tools": [TOOL]}
        assert (await server.post("responses", body)).status == 400

"""`n` answers to one request: message items of one response, the likeliest first.

Covers `agent/choices.py`.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.core.deltas import ReasoningDelta, Text
from antiphon.core.prompt import Chunk, TokenCounts
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import EngineFailed
from antiphon.protocol.types.parts import Logprob
from tests.api.app import ApiServer, Client, parse_events, run_api
from tests.oracles.responses import accumulate, check_event, check_response
from tests.transport.websocket.ws_client import open_websocket

pytestmark = pytest.mark.anyio

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
ANSWERS = (("worst", -9.0), ("best", -0.1), ("good", -1.0))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with run_api() as server:
        yield server


def make_chunk(text: str, logprob: float) -> Chunk:
    return Chunk(text=text, logprobs=(Logprob(token=text, bytes=[], logprob=logprob),))


def queue_answers(engine: FakeEngine) -> None:
    for text, logprob in ANSWERS:
        counts = TokenCounts(input_tokens=7, cached_tokens=4, output_tokens=2, reasoning_tokens=1)
        engine.says(ReasoningDelta("hm"), make_chunk(text, logprob), counts=counts)


def list_texts(response: Any) -> list[str]:
    return [item["content"][0]["text"] for item in response["output"] if item["type"] == "message"]


@pytest.mark.shows("A3.12")
async def test_answers_are_message_items_with_the_likeliest_first(server: ApiServer) -> None:
    queue_answers(server.engine)
    reply = await server.create(n=3)
    check_response(reply)
    assert list_texts(reply) == ["best", "good", "worst"]
    assert [item["type"] for item in reply["output"]] == ["reasoning", "message"] * 3
    assert len({item["id"] for item in reply["output"]}) == 6
    assert (reply["status"], reply["n"]) == ("completed", 3)


@pytest.mark.shows("A3.12")
async def test_log_probabilities_are_returned_only_if_included(server: ApiServer) -> None:
    queue_answers(server.engine)
    without_logprobs = await server.create(n=3)
    queue_answers(server.engine)
    with_logprobs = await server.create(n=3, include=["message.output_text.logprobs"])
    messages = [
        [item for item in reply["output"] if item["type"] == "message"] for reply in (without_logprobs, with_logprobs)
    ]
    assert [item["content"][0]["logprobs"] for item in messages[0]] == [[], [], []]
    assert [item["content"][0]["logprobs"][0]["token"] for item in messages[1]] == ["best", "good", "worst"]
    assert {generation.sampling.logprobs for generation in server.engine.seen} == {0}


async def test_the_shared_prompt_is_counted_once(server: ApiServer) -> None:
    queue_answers(server.engine)
    usage = (await server.create(n=3))["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (7, 6, 13)
    assert usage["input_tokens_details"]["cached_tokens"] == 4
    assert usage["output_tokens_details"]["reasoning_tokens"] == 3


async def test_each_answer_gets_its_own_seed(server: ApiServer) -> None:
    await server.create(n=3, seed=7)
    assert sorted(generation.sampling.seed or 0 for generation in server.engine.seen) == [7, 8, 9]


async def test_a_truncated_answer_makes_the_response_incomplete(server: ApiServer) -> None:
    server.engine.says(make_chunk("cut", -0.1), finish="length")
    server.engine.says(make_chunk("whole", -1.0))
    reply = await server.create(n=2)
    assert [(item["status"], item["content"][0]["text"]) for item in reply["output"]] == [
        ("incomplete", "cut"),
        ("completed", "whole"),
    ]
    assert (reply["status"], reply["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    replayed = parse_events(await server.get(f"responses/{reply['id']}?stream=true"))
    assert replayed[-1]["response"] == reply


async def test_an_empty_answer_is_an_empty_message_in_last_position(server: ApiServer) -> None:
    server.engine.says()
    server.engine.says(make_chunk("something", -5.0))
    assert list_texts(await server.create(n=2)) == ["something", ""]


async def test_a_stop_string_ends_each_answer(server: ApiServer) -> None:
    reply = await server.create(n=2, input="one STOP two", stop="STOP")
    assert list_texts(reply) == ["You said: one "] * 2


@pytest.mark.shows("A3.12")
async def test_a_response_with_several_answers_is_stored_replayed_and_continued(server: ApiServer) -> None:
    queue_answers(server.engine)
    reply = await server.create(n=3)
    assert (await server.get(f"responses/{reply['id']}")).json() == reply
    events = parse_events(await server.get(f"responses/{reply['id']}?stream=true"))
    for event in events:
        check_event(event)
    assert accumulate(events).output_text == "bestgoodworst"
    assert events[-1]["response"] == reply
    again = await server.create(previous_response_id=reply["id"], input="go on")
    assert again["status"] == "completed"


async def test_a_background_response_has_the_same_answers(server: ApiServer) -> None:
    queue_answers(server.engine)
    made = await server.create(n=3, background=True)
    client = Client(server.app, "GET", f"responses/{made['id']}?stream=true")
    ends = [event async for event in _read_to_end(client)]
    assert list_texts(ends[-1]["response"]) == ["best", "good", "worst"]


async def _read_to_end(client: Client) -> AsyncIterator[dict[str, Any]]:
    async for event in client.events():
        yield event
        if event["type"] == "response.completed":
            return


async def test_answers_take_turns_on_a_single_engine_slot() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(at_once=1)), queue=0) as server:
        assert len(list_texts(await server.create(n=3))) == 3
        assert server.engine.running == 0
        assert len(list_texts(await server.create(n=3))) == 3


async def test_the_first_failure_ends_all_answers(server: ApiServer) -> None:
    gate = server.engine.holds()
    server.engine.says(Text("never told"))
    server.engine.fails(EngineFailed("The engine is gone."), after=1)
    answer = await server.post("responses", {"model": "fake", "input": "hi", "n": 2})
    assert (answer.status, answer.error["message"]) == (500, "The engine is gone.")
    assert gate.reached.is_set()
    assert (server.engine.running, server.engine.cancelled) == (0, 1)


async def test_an_engine_that_stops_without_a_finish_reason_fails_the_response(server: ApiServer) -> None:
    server.engine.says(Text("whole"))
    server.engine.says(Text("bro"), finish=None)
    answer = await server.post("responses", {"model": "fake", "input": "hi", "n": 2})
    assert (answer.status, answer.error["code"]) == (500, "server_error")


async def test_a_dropped_client_cancels_all_engine_requests(server: ApiServer) -> None:
    gates = []
    for text, _ in ANSWERS:
        server.engine.says(Text(text))
        gates.append(server.engine.holds(after=1))
    client = Client(server.app, n=3, stream=False)
    async with asyncio.timeout(30):
        for gate in gates:
            await gate.reached.wait()
        client.disconnect()
        await client.request
    assert (server.engine.running, server.engine.cancelled) == (0, 3)


class EngineWithoutLogprobs(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(level="chat", supported_fields=frozenset({"n"}))


@pytest.mark.shows("A3.12")
async def test_without_log_probabilities_answers_have_the_order_of_the_calls() -> None:
    async with run_api(engine=EngineWithoutLogprobs()) as server:
        for text in ("first", "second", "third"):
            server.engine.says(Text(text))
        assert list_texts(await server.create(n=3)) == ["first", "second", "third"]
        assert {generation.sampling.logprobs for generation in server.engine.seen} == {None}


SCHEMA = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object", "properties": {}}}}


@pytest.mark.shows("A3.12")
@pytest.mark.parametrize(
    ("engine", "fields", "param"),
    [
        (FakeEngine, {"stream": True}, "n"),
        (FakeEngine, {"n": 17}, "n"),
        (FakeEngine, {"tools": [WEATHER]}, "n"),
        (FakeEngine, {"tools": [WEATHER], "tool_choice": "required"}, "n"),
        (FakeEngine, {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}, "n"),
        (FakeEngine, {"best_of": 3}, "best_of"),
        (EngineWithoutLogprobs, {"include": ["message.output_text.logprobs"]}, "include"),
    ],
)
async def test_a_field_that_conflicts_with_several_answers_is_a_400(
    engine: type[FakeEngine], fields: dict[str, Any], param: str
) -> None:
    async with run_api(engine=engine()) as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", "n": 2, **fields})
        assert (answer.status, answer.error["param"]) == (400, param)
        assert not server.engine.seen
        replies = [await server.create(), await server.create()]  # the rejected request occupies no slot
    assert {reply["status"] for reply in replies} == {"completed"}


async def test_each_answer_is_validated_against_the_schema(server: ApiServer) -> None:
    for text in ("{}", '{"a": 1}', "{}", "nonsense"):
        server.engine.says(make_chunk(text, -1.0))
    assert sorted(list_texts(await server.create(n=2, text=SCHEMA))) == ['{"a": 1}', "{}"]
    answer = await server.post("responses", {"model": "fake", "input": "hi", "n": 2, "text": SCHEMA})
    assert (answer.status, answer.error["code"]) == (500, "invalid_output")


async def test_several_answers_are_rejected_on_a_websocket(server: ApiServer) -> None:
    async with open_websocket(server.app) as connection:
        connection.send_create(n=2)
        event = await connection.receive_event()
    assert (event["type"], event["status"], event["error"]["param"]) == ("error", 400, "n")

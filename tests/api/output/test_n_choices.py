"""`n` answers to one request: message items in one response, the likeliest first."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.core.deltas import Text, Thought
from antiphon.core.prompt import Chunk, Counts
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import EngineFailed
from antiphon.protocol.types.response import Logprob
from tests.api.app import Api, Client, api, events_in
from tests.oracles.responses import accumulate, check_event, check_response
from tests.transport.websocket.ws_client import talking

pytestmark = pytest.mark.anyio

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
ANSWERS = (("worst", -9.0), ("best", -0.1), ("good", -1.0))


@pytest.fixture
async def server() -> AsyncIterator[Api]:
    async with api() as server:
        yield server


def likely(text: str, logprob: float) -> Chunk:
    return Chunk(text=text, logprobs=(Logprob(token=text, bytes=[], logprob=logprob),))


def written(engine: FakeEngine) -> None:
    for text, logprob in ANSWERS:
        counts = Counts(input_tokens=7, cached_tokens=4, output_tokens=2, reasoning_tokens=1)
        engine.says(Thought("hm"), likely(text, logprob), counts=counts)


def texts(response: Any) -> list[str]:
    return [item["content"][0]["text"] for item in response["output"] if item["type"] == "message"]


@pytest.mark.shows("A3.12")
async def test_the_answers_are_messages_and_the_likeliest_comes_first(server: Api) -> None:
    written(server.engine)
    reply = await server.create(n=3)
    check_response(reply)
    assert texts(reply) == ["best", "good", "worst"]
    assert [item["type"] for item in reply["output"]] == ["reasoning", "message"] * 3
    assert len({item["id"] for item in reply["output"]}) == 6
    assert (reply["status"], reply["n"]) == ("completed", 3)


@pytest.mark.shows("A3.12")
async def test_log_probabilities_are_told_only_to_those_who_asked(server: Api) -> None:
    written(server.engine)
    silent = await server.create(n=3)
    written(server.engine)
    told = await server.create(n=3, include=["message.output_text.logprobs"])
    messages = [[item for item in reply["output"] if item["type"] == "message"] for reply in (silent, told)]
    assert [item["content"][0]["logprobs"] for item in messages[0]] == [[], [], []]
    assert [item["content"][0]["logprobs"][0]["token"] for item in messages[1]] == ["best", "good", "worst"]
    assert {work.sampling.logprobs for work in server.engine.seen} == {0}


async def test_a_prompt_that_the_answers_share_counts_once(server: Api) -> None:
    written(server.engine)
    usage = (await server.create(n=3))["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (7, 6, 13)
    assert usage["input_tokens_details"]["cached_tokens"] == 4
    assert usage["output_tokens_details"]["reasoning_tokens"] == 3


async def test_with_a_seed_each_answer_has_its_own(server: Api) -> None:
    await server.create(n=3, seed=7)
    assert sorted(work.sampling.seed or 0 for work in server.engine.seen) == [7, 8, 9]


async def test_an_answer_that_was_cut_is_incomplete_and_so_is_the_response(server: Api) -> None:
    server.engine.says(likely("cut", -0.1), finish="length")
    server.engine.says(likely("whole", -1.0))
    reply = await server.create(n=2)
    assert [(item["status"], item["content"][0]["text"]) for item in reply["output"]] == [
        ("incomplete", "cut"),
        ("completed", "whole"),
    ]
    assert (reply["status"], reply["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    replayed = events_in(await server.get(f"responses/{reply['id']}?stream=true"))
    assert replayed[-1]["response"] == reply


async def test_an_answer_that_says_nothing_is_an_empty_message_and_the_last(server: Api) -> None:
    server.engine.says()
    server.engine.says(likely("something", -5.0))
    assert texts(await server.create(n=2)) == ["something", ""]


async def test_a_stop_string_ends_each_answer(server: Api) -> None:
    reply = await server.create(n=2, input="one STOP two", stop="STOP")
    assert texts(reply) == ["You said: one "] * 2


@pytest.mark.shows("A3.12")
async def test_it_is_kept_told_again_and_continued_like_any_other(server: Api) -> None:
    written(server.engine)
    reply = await server.create(n=3)
    assert (await server.get(f"responses/{reply['id']}")).json() == reply
    events = events_in(await server.get(f"responses/{reply['id']}?stream=true"))
    for event in events:
        check_event(event)
    assert accumulate(events).output_text == "bestgoodworst"
    assert events[-1]["response"] == reply
    again = await server.create(previous_response_id=reply["id"], input="go on")
    assert again["status"] == "completed"


async def test_in_the_background_it_ends_with_the_same_answers(server: Api) -> None:
    written(server.engine)
    made = await server.create(n=3, background=True)
    client = Client(server.app, "GET", f"responses/{made['id']}?stream=true")
    ends = [event async for event in _until_end(client)]
    assert texts(ends[-1]["response"]) == ["best", "good", "worst"]


async def _until_end(client: Client) -> AsyncIterator[dict[str, Any]]:
    async for event in client.events():
        yield event
        if event["type"] == "response.completed":
            return


async def test_where_there_is_one_place_the_answers_take_turns() -> None:
    async with api(engine=FakeEngine(FakeSettings(at_once=1)), queue=0) as server:
        assert len(texts(await server.create(n=3))) == 3
        assert server.engine.running == 0
        assert len(texts(await server.create(n=3))) == 3


async def test_the_first_that_fails_ends_them_all(server: Api) -> None:
    gate = server.engine.holds()
    server.engine.says(Text("never told"))
    server.engine.fails(EngineFailed("The engine is gone."), after=1)
    answer = await server.post("responses", {"model": "fake", "input": "hi", "n": 2})
    assert (answer.status, answer.error["message"]) == (500, "The engine is gone.")
    assert gate.reached.is_set()
    assert (server.engine.running, server.engine.cancelled) == (0, 1)


async def test_an_engine_that_breaks_off_fails_the_response(server: Api) -> None:
    server.engine.says(Text("whole"))
    server.engine.says(Text("bro"), finish=None)
    answer = await server.post("responses", {"model": "fake", "input": "hi", "n": 2})
    assert (answer.status, answer.error["code"]) == (500, "server_error")


async def test_a_client_that_goes_away_frees_the_engine_of_all(server: Api) -> None:
    gates = []
    for text, _ in ANSWERS:
        server.engine.says(Text(text))
        gates.append(server.engine.holds(after=1))
    client = Client(server.app, n=3, stream=False)
    async with asyncio.timeout(30):
        for gate in gates:
            await gate.reached.wait()
        client.leaves()
        await client.request
    assert (server.engine.running, server.engine.cancelled) == (0, 3)


class Secretive(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(prompt="chat", honours=frozenset())


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
        (Secretive, {}, "n"),
    ],
)
async def test_what_does_not_go_with_several_answers_is_a_400(
    engine: type[FakeEngine], fields: dict[str, Any], param: str
) -> None:
    async with api(engine=engine()) as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", "n": 2, **fields})
        assert (answer.status, answer.error["param"]) == (400, param)
        assert not server.engine.seen
        held = [await server.create(), await server.create()]  # no place was taken
    assert {reply["status"] for reply in held} == {"completed"}


async def test_each_answer_is_held_to_a_schema_by_itself(server: Api) -> None:
    for said in ("{}", '{"a": 1}', "{}", "nonsense"):
        server.engine.says(likely(said, -1.0))
    assert sorted(texts(await server.create(n=2, text=SCHEMA))) == ['{"a": 1}', "{}"]
    answer = await server.post("responses", {"model": "fake", "input": "hi", "n": 2, "text": SCHEMA})
    assert (answer.status, answer.error["code"]) == (500, "invalid_output")


async def test_a_websocket_streams_and_so_has_one_answer(server: Api) -> None:
    async with talking(server.app) as talk:
        talk.asks(n=2)
        told = await talk.next()
    assert (told["type"], told["status"], told["error"]["param"]) == ("error", 400, "n")

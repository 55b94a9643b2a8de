"""What a response on a WebSocket begins with and leaves behind, in its connection or in the store."""

import json
from typing import Any

import pytest

from antiphon.core.deltas import Text
from antiphon.core.prompt import ChatPrompt
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import EngineFailed, Unavailable
from tests.api.app import Api, api, events_in
from tests.oracles.responses import accumulate
from tests.support.asgi_client import JSON, call
from tests.transport.websocket.ws_client import ENDS, Talk, Told, talking

pytestmark = pytest.mark.anyio

UNKNOWN = "resp_" + "0" * 32
LONG = "A long instruction that many a turn begins with. " * 40
NOT_FOUND = ("error", 400, "previous_response_not_found", "previous_response_id")


def heard(server: Api) -> list[Any]:
    """What the engine was last told, as texts."""
    prompt = server.engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [message["content"] for message in prompt.messages]


def shape(told: Told) -> tuple[Any, ...]:
    return told["type"], told["status"], told["error"]["code"], told["error"]["param"]


async def stream(talk: Talk, **fields: Any) -> list[Told]:
    """All events of a response, to its end."""
    talk.asks(**fields)
    told = [await talk.next()]
    while told[-1]["type"] not in ENDS:
        told.append(await talk.next())
    return told


def neutral(events: list[Told]) -> str:
    """With ids and times replaced, each by the number of its first occurrence."""
    found: dict[str, str] = {}
    for event in events:
        for id_ in _ids(event):
            found.setdefault(id_, f"id-{len(found)}")
    text = json.dumps(events, ensure_ascii=False)
    for id_, name in found.items():
        text = text.replace(id_, name)
    return text


def _ids(value: Any) -> list[str]:
    if isinstance(value, list):
        return [id_ for one in value for id_ in _ids(one)]
    if not isinstance(value, dict):
        return []
    own = [value[name] for name in ("id", "item_id", "call_id", "obfuscation") if isinstance(value.get(name), str)]
    times = [name for name in ("created_at", "completed_at") if value.get(name)]
    value.update(dict.fromkeys(times, 0))
    return own + [id_ for one in value.values() for id_ in _ids(one)]


TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": True}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": [TOOL]},
        {"reasoning": {"effort": "low", "summary": "auto"}},
        {"max_output_tokens": 2},
        {"text": {"format": {"type": "json_object"}}, "metadata": {"a": "b"}, "top_logprobs": 1},
        {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"}, "store": False},
        {"generate": False},
        {"stream_options": {"include_obfuscation": False}, "instructions": "Be brief.", "seed": 3},
    ],
    ids=str,
)
@pytest.mark.shows("F.1", "F.2")
async def test_events_are_those_of_server_sent_events(fields: dict[str, Any]) -> None:
    async with api() as server:
        sse = events_in(await server.post("responses", {"model": "fake", "input": "hi", "stream": True, **fields}))
    async with api() as server, talking(server.app) as talk:
        told = await stream(talk, **fields)
    for event in (*sse, *told):
        event.get("response", {}).pop("stream", None)
        for item in [event.get("item", {}), *event.get("response", {}).get("output", [])]:
            item.update(dict.fromkeys(item.keys() & {"encrypted_content"}, "sealed"))
    assert neutral(told) == neutral(sse)
    assert accumulate(told).status == told[-1]["response"]["status"]


@pytest.mark.shows("F.4", "F3.2")
async def test_what_is_not_stored_is_continued_on_its_connection_and_found_nowhere_else() -> None:
    async with api() as server, talking(server.app) as talk, talking(server.app) as other:
        first = await talk.made(input="one", store=False)
        second = await talk.made(input="two", store=False, previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        assert heard(server) == ["one", "You said: one", "two"]
        foreign = await other.refused(previous_response_id=second["id"])
        unknown = await other.refused(previous_response_id=UNKNOWN)
        assert shape(foreign) == NOT_FOUND
        assert json.dumps(foreign).replace(second["id"], UNKNOWN) == json.dumps(unknown)
        posted = await server.post("responses", {"model": "fake", "input": "x", "previous_response_id": first["id"]})
        assert (posted.status, posted.error["code"]) == (400, "previous_response_not_found")
        assert (await server.get(f"responses/{first['id']}")).status == 404


@pytest.mark.shows("F.4")
async def test_what_is_stored_is_continued_from_the_store_on_any_connection() -> None:
    async with api() as server:
        async with talking(server.app) as talk:
            first = await talk.made(input="one")
        async with talking(server.app) as talk:
            second = await talk.made(input="two", previous_response_id=first["id"])
            assert heard(server) == ["one", "You said: one", "two"]
            await talk.made(input="three", previous_response_id=second["id"], store=False)
        await server.create(input="four", previous_response_id=second["id"])
        assert heard(server) == ["one", "You said: one", "two", "You said: two", "four"]


@pytest.mark.shows("F.4")
async def test_a_stored_response_that_continues_one_that_is_not_holds_all_of_it() -> None:
    async with api() as server, talking(server.app) as talk:
        first = await talk.made(input="one", store=False)
        second = await talk.made(input="two", store=False, previous_response_id=first["id"])
        third = await talk.made(input="three", previous_response_id=second["id"])
        assert third["previous_response_id"] == second["id"]
        listed = (await server.get(f"responses/{third['id']}/input_items?order=asc")).json()
        texts = [part["text"] for item in listed["data"] for part in item["content"]]
        assert texts == ["one", "You said: one", "two", "You said: two", "three"]
        assert (await server.get(f"responses/{third['id']}")).json() == third
        await server.create(input="four", previous_response_id=third["id"])
        assert heard(server) == [*texts, "You said: three", "four"]
        await talk.made(input="five", previous_response_id=third["id"], store=False)
        assert heard(server) == [*texts, "You said: three", "five"]


@pytest.mark.shows("F.4", "F.6")
async def test_a_lane_forks_what_another_made() -> None:
    async with api() as server, talking(server.app) as talk:
        first = await talk.made(input="one", store=False, stream_id="a")
        for lane in ("b", None, "a"):
            await talk.made(input="two", store=False, stream_id=lane, previous_response_id=first["id"])
            assert heard(server) == ["one", "You said: one", "two"]


async def test_a_request_that_waits_continues_what_was_made_meanwhile() -> None:
    async with api() as server, talking(server.app) as talk:
        server.engine.says(Text("Hm."))
        gate = server.engine.holds(after=1)
        talk.asks(input="one", store=False)
        id_ = (await talk.next())["response"]["id"]
        talk.asks(input="two", store=False, previous_response_id=id_)
        gate.open()
        assert (await talk.end())["response"]["id"] == id_
        assert (await talk.end())["response"]["previous_response_id"] == id_
        assert heard(server) == ["one", "Hm.", "two"]


FAILURES = {
    "a field": {"temperature": 9},
    "the plan": {"tools": [{"type": "mcp", "server_label": "x", "server_url": "http://10.0.0.1/"}]},
}


@pytest.mark.parametrize("fields", FAILURES.values(), ids=FAILURES)
@pytest.mark.shows("F.5")
async def test_a_continuation_that_cannot_begin_evicts_its_parent_on_its_own_lane_alone(fields: dict[str, Any]) -> None:
    async with api() as server, talking(server.app) as talk:
        for lane in (None, "a"):
            first = await talk.made(store=False, stream_id=lane)
            again = {"store": False, "previous_response_id": first["id"]}
            assert (await talk.refused(stream_id="b", **again, **fields))["status"] == 400
            assert (await talk.made(stream_id="b", **again))["status"] == "completed"
            assert (await talk.refused(stream_id=lane, **again, **fields))["status"] == 400
            assert shape(await talk.refused(stream_id=lane, **again)) == NOT_FOUND
            assert shape(await talk.refused(stream_id="b", **again)) == NOT_FOUND


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.shows("F.5", "F1.7")
async def test_an_engine_that_fails_evicts_the_parent_and_the_socket_stays_open(after: int) -> None:
    async with api() as server, talking(server.app) as talk:
        first = await talk.made(store=False)
        again = {"store": False, "previous_response_id": first["id"]}
        for lane, expected in (("b", "completed"), (None, None)):
            server.engine.says(Text("So f"))
            server.engine.fails(EngineFailed("It died."), after=after)
            *told, failed = await stream(talk, stream_id=lane, **again)
            assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "server_error")
            assert "error" not in [event["type"] for event in told]  # clients would take it for the end
            if expected:
                assert (await talk.made(**again))["status"] == expected
            else:
                assert shape(await talk.refused(**again)) == NOT_FOUND
        assert (await talk.made())["status"] == "completed"


async def test_a_stored_parent_survives_a_failed_continuation() -> None:
    async with api() as server, talking(server.app) as talk:
        first = await talk.made()
        await talk.refused(previous_response_id=first["id"], temperature=9)
        assert (await talk.made(previous_response_id=first["id"]))["status"] == "completed"


@pytest.mark.shows("F1.7")
async def test_a_defect_is_a_processing_error_that_says_nothing_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeEngine):
        async def capabilities(self, model: str) -> Any:
            if self.broken:
                raise ZeroDivisionError("a secret of the house")
            return await super().capabilities(model)

        broken = False

    engine = Broken()
    async with api(engine=engine) as server, talking(server.app) as talk:
        first = await talk.made(store=False)
        engine.broken = True
        told = await talk.refused(store=False, previous_response_id=first["id"])
        assert shape(told) == ("error", 500, "processing_error", None)
        assert "secret" not in json.dumps(told)
        engine.broken = False
        assert shape(await talk.refused(store=False, previous_response_id=first["id"])) == NOT_FOUND
    [record] = [record for record in caplog.records if record.exc_info]
    assert str(getattr(record, "connection_id", "")).startswith("conn_")


async def test_a_response_that_fails_says_why_and_is_over() -> None:
    async with api() as server, talking(server.app) as talk:
        server.engine.says(Text("x"))
        server.engine.fails(Unavailable("Not now.", retry_after=3.0))
        *_, failed = await stream(talk)
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"]["code"] == "service_unavailable"
        assert (await talk.made())["status"] == "completed"


@pytest.mark.shows("F.4")
async def test_without_a_store_a_connection_remembers_all_the_same() -> None:
    async with api(disable_store=True) as server, talking(server.app) as talk:
        first = await talk.made(input="one")
        assert first["store"] is False
        await talk.made(input="two", previous_response_id=first["id"])
        assert heard(server) == ["one", "You said: one", "two"]
        told = await talk.refused(previous_response_id=UNKNOWN)
        posted = await server.post("responses", {"model": "fake", "input": "x", "previous_response_id": UNKNOWN})
        assert (told["status"], told["error"]) == (posted.status, posted.error)


@pytest.mark.shows("F3.2")
async def test_what_is_remembered_is_bounded_in_number() -> None:
    async with api() as server, talking(server.app) as talk:
        lane = await talk.made(store=False, stream_id="a")
        made = [await talk.made(store=False) for _ in range(18)]
        for gone in made[:1]:
            assert shape(await talk.refused(previous_response_id=gone["id"], stream_id="b")) == NOT_FOUND
        for kept in (lane, *made[1:]):
            talk.asks(previous_response_id=kept["id"], generate=False, stream_id="b")
            assert (await talk.end())["type"] == "response.completed"


@pytest.mark.shows("F3.2")
async def test_what_is_remembered_is_bounded_in_bytes() -> None:
    async with api(websocket_cache_bytes=20_000) as server, talking(server.app) as talk:
        made = [await talk.made(input="x" * 6_000, store=False) for _ in range(3)]
        assert shape(await talk.refused(previous_response_id=made[0]["id"])) == NOT_FOUND
        assert (await talk.made(previous_response_id=made[-1]["id"], generate=False))["status"] == "completed"


@pytest.mark.parametrize("asked", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}], ids=str)
@pytest.mark.parametrize("store", [True, False])
@pytest.mark.shows("F.3")
async def test_a_warm_up_says_nothing_and_makes_the_next_turn_cheaper(asked: dict[str, Any], store: bool) -> None:
    async with api() as server, talking(server.app) as talk:
        told = await stream(talk, input=LONG, store=store, **asked)
        assert [event["type"] for event in told] == [
            "response.created", "response.in_progress", "response.completed",
        ]  # fmt: skip
        cold = told[-1]["response"]
        assert (cold["status"], cold["output"]) == ("completed", [])
        assert cold["usage"]["input_tokens"] > 400
        assert (cold["usage"]["output_tokens"], cold["usage"]["input_tokens_details"]["cached_tokens"]) == (0, 0)
        warm = await talk.made(input="And now?", previous_response_id=cold["id"], store=store)
        assert warm["usage"]["input_tokens_details"]["cached_tokens"] > 400
        if store:
            replayed = await call(server.app, "GET", f"/v1/responses/{cold['id']}?stream=true")
            assert events_in(replayed) == told
        assert accumulate(told).output == []


@pytest.mark.parametrize("asked", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}], ids=str)
@pytest.mark.shows("F.3")
async def test_a_warm_up_by_post_is_one_too(asked: dict[str, Any]) -> None:
    async with api() as server:
        cold = await server.create(input=LONG, **asked)
        assert (cold["output"], cold["usage"]["output_tokens"]) == ([], 0)
        warm = await server.create(input="And now?", previous_response_id=cold["id"])
        assert warm["usage"]["input_tokens_details"]["cached_tokens"] > 400
        body = json.dumps({"model": "fake", "input": LONG, "stream": True, **asked}).encode()
        told = events_in(await call(server.app, "POST", "/v1/responses", JSON, body=[body]))
        assert told[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] > 400
        assert len(told) == 3


@pytest.mark.shows("A.46", "A.47")
async def test_keepalives_of_another_server_are_its_own_pings() -> None:
    engine = FakeEngine(FakeSettings(delay=0.05))
    async with api(engine=engine, ping_interval=0.01) as server, talking(server.app) as talk:
        assert "keepalive" not in {event["type"] for event in await stream(talk)}

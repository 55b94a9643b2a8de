"""Responses on a WebSocket: their events, and their continuation from the cache of the connection or from the store."""

import json
from typing import Any

import pytest

from antiphon.core.deltas import Text
from antiphon.core.prompt import ChatPrompt
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import EngineFailed, Unavailable
from antiphon.protocol.types.request import CreateResponse
from tests.api.app import ApiServer, parse_events, run_api
from tests.oracles.responses import accumulate
from tests.support.asgi_client import JSON, call
from tests.transport.websocket.ws_client import FINAL_EVENTS, SocketEvent, WebSocketClient, open_websocket

pytestmark = pytest.mark.anyio

UNKNOWN_ID = "resp_" + "0" * 32
LONG = "A long instruction that many a turn begins with. " * 40
NOT_FOUND = ("error", 400, "previous_response_not_found", "previous_response_id")


def read_prompt(server: ApiServer) -> list[Any]:
    """Return the message texts of the last prompt of the engine."""
    prompt = server.engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [message["content"] for message in prompt.messages]


def summarise_error(event: SocketEvent) -> tuple[Any, ...]:
    return event["type"], event["status"], event["error"]["code"], event["error"]["param"]


async def create_stream(client: WebSocketClient, **fields: Any) -> list[SocketEvent]:
    """Create a response, and return all of its events."""
    client.send_create(**fields)
    events = [await client.receive_event()]
    while events[-1]["type"] not in FINAL_EVENTS:
        events.append(await client.receive_event())
    return events


def normalise(events: list[SocketEvent]) -> str:
    """Render events with each id replaced by the number of its first occurrence, and times by 0."""
    found: dict[str, str] = {}
    for event in events:
        for id_ in _collect_ids(event):
            found.setdefault(id_, f"id-{len(found)}")
    text = json.dumps(events, ensure_ascii=False)
    for id_, name in found.items():
        text = text.replace(id_, name)
    return text


def _collect_ids(value: Any) -> list[str]:
    if isinstance(value, list):
        return [id_ for one in value for id_ in _collect_ids(one)]
    if not isinstance(value, dict):
        return []
    own = [value[name] for name in ("id", "item_id", "call_id", "obfuscation") if isinstance(value.get(name), str)]
    times = [name for name in ("created_at", "completed_at") if value.get(name)]
    value.update(dict.fromkeys(times, 0))
    return own + [id_ for one in value.values() for id_ in _collect_ids(one)]


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
async def test_events_equal_those_of_server_sent_events(fields: dict[str, Any]) -> None:
    async with run_api() as server:
        sse = parse_events(await server.post("responses", {"model": "fake", "input": "hi", "stream": True, **fields}))
    async with run_api() as server, open_websocket(server.app) as client:
        socket_events = await create_stream(client, **fields)
    for event in (*sse, *socket_events):
        event.get("response", {}).pop("stream", None)
        for item in [event.get("item", {}), *event.get("response", {}).get("output", [])]:
            item.update(dict.fromkeys(item.keys() & {"encrypted_content"}, "encrypted"))
    assert normalise(socket_events) == normalise(sse)
    assert accumulate(socket_events).status == socket_events[-1]["response"]["status"]


# a value of every field of a request but some basic ones and those without effect that clients do not validate
OTHER_FIELDS = {"model", "input", "stream", "background", "moderation", "image", "access_programs"}
EVERY_FIELD: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.5, "frequency_penalty": 0.1, "presence_penalty": 0.1, "stop": "x", "seed": 3,
    "user": "u", "service_tier": "flex", "prompt_cache_key": "k", "n": 2, "best_of": 2, "top_k": 5, "min_p": 0.1,
    "repetition_penalty": 1.1, "length_penalty": 2.0, "include_stop_str_in_output": True, "ignore_eos": False,
    "skip_special_tokens": False, "num_assistant_tokens": 2, "assistant_confidence_threshold": 0.5,
    "max_ngram_size": 2, "priority": 1, "cache_salt": "s", "instructions": "Be brief.",
    "previous_response_id": UNKNOWN_ID, "conversation": "conv_" + "0" * 32, "prompt": {"id": "p"}, "tools": [TOOL],
    "tool_choice": "none", "parallel_tool_calls": False, "max_tool_calls": 2,
    "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "low"}, "max_output_tokens": 3,
    "top_logprobs": 1, "truncation": "auto", "include": ["message.output_text.logprobs"], "generate": False,
    "stream_options": {"include_obfuscation": False}, "store": False, "metadata": {"a": "b"},
    "safety_identifier": "s", "prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "explicit"},
    "context_management": [{"type": "compaction", "compact_threshold": 2000}],
    "multi_agent": {"a": 1}, "client_metadata": {"a": "b"},
    "chat_template_kwargs": {"a": 1}, "logprobs": True, "request_id": "r", "mm_processor_kwargs": {"a": 1},
    "previous_input_messages": [{"role": "user", "content": "x"}], "enable_response_messages": True,
    "wait_for_tool_outputs": True,
}  # fmt: skip


def test_the_table_has_every_field_of_a_request() -> None:
    assert EVERY_FIELD.keys() | OTHER_FIELDS == {*CreateResponse.__struct_fields__}


@pytest.mark.parametrize("name", EVERY_FIELD)
@pytest.mark.shows("F.2")
async def test_every_field_has_the_same_effect_or_error_as_in_a_post(name: str) -> None:
    fields = {name: EVERY_FIELD[name]}
    async with run_api() as server:
        posted = await server.post("responses", {"model": "fake", "input": "hi", "stream": True, **fields})
    async with run_api() as server, open_websocket(server.app) as client:
        if posted.status != 200:
            event = await client.create_rejected(**fields)
            expected = posted.error | ({"message": event["error"]["message"]} if name == "n" else {})
            assert (event["status"], event["error"]) == (posted.status, expected)
            return
        assert normalise(await create_stream(client, **fields)) == normalise(parse_events(posted))


@pytest.mark.shows("F.4", "F3.2")
async def test_an_unstored_response_can_be_continued_only_on_its_connection() -> None:
    async with run_api() as server, open_websocket(server.app) as client, open_websocket(server.app) as other:
        first = await client.create(input="one", store=False)
        second = await client.create(input="two", store=False, previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        assert read_prompt(server) == ["one", "You said: one", "two"]
        foreign = await other.create_rejected(previous_response_id=second["id"])
        unknown = await other.create_rejected(previous_response_id=UNKNOWN_ID)
        assert summarise_error(foreign) == NOT_FOUND
        assert json.dumps(foreign).replace(second["id"], UNKNOWN_ID) == json.dumps(unknown)
        posted = await server.post("responses", {"model": "fake", "input": "x", "previous_response_id": first["id"]})
        assert (posted.status, posted.error["code"]) == (400, "previous_response_not_found")
        assert (await server.get(f"responses/{first['id']}")).status == 404


@pytest.mark.shows("F.4")
async def test_a_stored_response_can_be_continued_on_any_connection() -> None:
    async with run_api() as server:
        async with open_websocket(server.app) as client:
            first = await client.create(input="one")
        async with open_websocket(server.app) as client:
            second = await client.create(input="two", previous_response_id=first["id"])
            assert read_prompt(server) == ["one", "You said: one", "two"]
            await client.create(input="three", previous_response_id=second["id"], store=False)
        await server.create(input="four", previous_response_id=second["id"])
        assert read_prompt(server) == ["one", "You said: one", "two", "You said: two", "four"]


@pytest.mark.shows("F.4")
async def test_a_stored_response_includes_the_history_of_its_unstored_parents() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        first = await client.create(input="one", store=False)
        second = await client.create(input="two", store=False, previous_response_id=first["id"])
        third = await client.create(input="three", previous_response_id=second["id"])
        assert third["previous_response_id"] == second["id"]
        listed = (await server.get(f"responses/{third['id']}/input_items?order=asc")).json()
        texts = [part["text"] for item in listed["data"] for part in item["content"]]
        assert texts == ["one", "You said: one", "two", "You said: two", "three"]
        assert (await server.get(f"responses/{third['id']}")).json() == third
        await server.create(input="four", previous_response_id=third["id"])
        assert read_prompt(server) == [*texts, "You said: three", "four"]
        await client.create(input="five", previous_response_id=third["id"], store=False)
        assert read_prompt(server) == [*texts, "You said: three", "five"]


@pytest.mark.shows("F.4", "F.6")
async def test_a_lane_can_continue_a_response_of_another_lane() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        first = await client.create(input="one", store=False, stream_id="a")
        for lane in ("b", None, "a"):
            await client.create(input="two", store=False, stream_id=lane, previous_response_id=first["id"])
            assert read_prompt(server) == ["one", "You said: one", "two"]


async def test_a_waiting_request_can_continue_the_response_that_it_waits_for() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        server.engine.says(Text("Hm."))
        gate = server.engine.holds(after=1)
        client.send_create(input="one", store=False)
        id_ = (await client.receive_event())["response"]["id"]
        client.send_create(input="two", store=False, previous_response_id=id_)
        gate.open()
        assert (await client.receive_end())["response"]["id"] == id_
        assert (await client.receive_end())["response"]["previous_response_id"] == id_
        assert read_prompt(server) == ["one", "Hm.", "two"]


FAILURES = {
    "an invalid field": {"temperature": 9},
    "a planning error": {"tools": [{"type": "mcp", "server_label": "x", "server_url": "http://10.0.0.1/"}]},
}


@pytest.mark.parametrize("fields", FAILURES.values(), ids=FAILURES)
@pytest.mark.shows("F.5")
async def test_a_rejected_continuation_evicts_its_parent_only_on_its_own_lane(fields: dict[str, Any]) -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        for lane in (None, "a"):
            first = await client.create(store=False, stream_id=lane)
            again = {"store": False, "previous_response_id": first["id"]}
            assert (await client.create_rejected(stream_id="b", **again, **fields))["status"] == 400
            assert (await client.create(stream_id="b", **again))["status"] == "completed"
            assert (await client.create_rejected(stream_id=lane, **again, **fields))["status"] == 400
            assert summarise_error(await client.create_rejected(stream_id=lane, **again)) == NOT_FOUND
            assert summarise_error(await client.create_rejected(stream_id="b", **again)) == NOT_FOUND


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.shows("F.5", "F1.7")
async def test_an_engine_failure_evicts_the_parent_and_the_connection_stays_open(after: int) -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        first = await client.create(store=False)
        again = {"store": False, "previous_response_id": first["id"]}
        for lane, expected in (("b", "completed"), (None, None)):
            server.engine.says(Text("So f"))
            server.engine.fails(EngineFailed("It died."), after=after)
            *events, failed = await create_stream(client, stream_id=lane, **again)
            assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "server_error")
            assert "error" not in [event["type"] for event in events]  # clients would treat it as the end
            if expected:
                assert (await client.create(**again))["status"] == expected
            else:
                assert summarise_error(await client.create_rejected(**again)) == NOT_FOUND
        assert (await client.create())["status"] == "completed"


async def test_a_stored_parent_survives_a_failed_continuation() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        first = await client.create()
        await client.create_rejected(previous_response_id=first["id"], temperature=9)
        assert (await client.create(previous_response_id=first["id"]))["status"] == "completed"


@pytest.mark.shows("F1.7")
async def test_an_unexpected_exception_is_a_processing_error_without_details(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeEngine):
        async def capabilities(self, model: str) -> Any:
            if self.broken:
                raise ZeroDivisionError("an internal secret")
            return await super().capabilities(model)

        broken = False

    engine = Broken()
    async with run_api(engine=engine) as server, open_websocket(server.app) as client:
        first = await client.create(store=False)
        engine.broken = True
        error = await client.create_rejected(store=False, previous_response_id=first["id"])
        assert summarise_error(error) == ("error", 500, "processing_error", None)
        assert "secret" not in json.dumps(error)
        engine.broken = False
        assert summarise_error(await client.create_rejected(store=False, previous_response_id=first["id"])) == NOT_FOUND
    [record] = [record for record in caplog.records if record.exc_info]
    assert str(getattr(record, "connection_id", "")).startswith("conn_")


async def test_a_failed_response_has_its_error_code_and_the_connection_stays_open() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        server.engine.says(Text("x"))
        server.engine.fails(Unavailable("Not now.", retry_after=3.0))
        *_, failed = await create_stream(client)
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"]["code"] == "service_unavailable"
        assert (await client.create())["status"] == "completed"


@pytest.mark.shows("F.4")
async def test_without_a_store_a_response_can_be_continued_on_its_connection() -> None:
    async with run_api(disable_store=True) as server, open_websocket(server.app) as client:
        first = await client.create(input="one")
        assert first["store"] is False
        await client.create(input="two", previous_response_id=first["id"])
        assert read_prompt(server) == ["one", "You said: one", "two"]
        error = await client.create_rejected(previous_response_id=UNKNOWN_ID)
        posted = await server.post("responses", {"model": "fake", "input": "x", "previous_response_id": UNKNOWN_ID})
        assert (error["status"], error["error"]) == (posted.status, posted.error)


@pytest.mark.shows("F3.2")
async def test_the_connection_cache_is_bounded_in_number() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        lane = await client.create(store=False, stream_id="a")
        made = [await client.create(store=False) for _ in range(18)]
        for evicted in made[:1]:
            assert (
                summarise_error(await client.create_rejected(previous_response_id=evicted["id"], stream_id="b"))
                == NOT_FOUND
            )
        for cached in (lane, *made[1:]):
            client.send_create(previous_response_id=cached["id"], generate=False, stream_id="b")
            assert (await client.receive_end())["type"] == "response.completed"


@pytest.mark.shows("F3.2")
async def test_the_connection_cache_is_bounded_in_bytes() -> None:
    async with run_api(websocket_cache_bytes=20_000) as server, open_websocket(server.app) as client:
        made = [await client.create(input="x" * 6_000, store=False) for _ in range(3)]
        assert summarise_error(await client.create_rejected(previous_response_id=made[0]["id"])) == NOT_FOUND
        assert (await client.create(previous_response_id=made[-1]["id"], generate=False))["status"] == "completed"


@pytest.mark.parametrize("fields", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}], ids=str)
@pytest.mark.parametrize("store", [True, False])
@pytest.mark.shows("F.3")
async def test_a_warm_up_generates_nothing_and_fills_the_prompt_cache(fields: dict[str, Any], store: bool) -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        events = await create_stream(client, input=LONG, store=store, **fields)
        assert [event["type"] for event in events] == [
            "response.created", "response.in_progress", "response.completed",
        ]  # fmt: skip
        cold = events[-1]["response"]
        assert (cold["status"], cold["output"]) == ("completed", [])
        assert cold["usage"]["input_tokens"] > 400
        assert (cold["usage"]["output_tokens"], cold["usage"]["input_tokens_details"]["cached_tokens"]) == (0, 0)
        warm = await client.create(input="And now?", previous_response_id=cold["id"], store=store)
        assert warm["usage"]["input_tokens_details"]["cached_tokens"] > 400
        if store:
            replayed = await call(server.app, "GET", f"/v1/responses/{cold['id']}?stream=true")
            assert parse_events(replayed) == events
        assert accumulate(events).output == []


@pytest.mark.parametrize("fields", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}], ids=str)
@pytest.mark.shows("F.3")
async def test_a_warm_up_by_post_fills_the_prompt_cache(fields: dict[str, Any]) -> None:
    async with run_api() as server:
        cold = await server.create(input=LONG, **fields)
        assert (cold["output"], cold["usage"]["output_tokens"]) == ([], 0)
        warm = await server.create(input="And now?", previous_response_id=cold["id"])
        assert warm["usage"]["input_tokens_details"]["cached_tokens"] > 400
        body = json.dumps({"model": "fake", "input": LONG, "stream": True, **fields}).encode()
        events = parse_events(await call(server.app, "POST", "/v1/responses", JSON, body=[body]))
        assert events[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] > 400
        assert len(events) == 3


@pytest.mark.shows("A.46", "A.47")
async def test_keepalive_events_are_also_sent_through_another_asgi_server() -> None:
    engine = FakeEngine(FakeSettings(delay=0.05))
    async with run_api(engine=engine, ping_interval=0.01) as server, open_websocket(server.app) as client:
        assert "keepalive" in {event["type"] for event in await create_stream(client)}

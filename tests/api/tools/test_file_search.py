"""file_search through the whole server: files are uploaded and indexed, and the model searches them and cites them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallStarted, Text
from antiphon.engines.base import EmbeddingResult
from antiphon.engines.fake import FakeEngine, FakeSettings
from tests.api.app import ApiServer, parse_events, run_api
from tests.api.vector_stores.vector_api import VectorApi
from tests.oracles.responses import accumulate, check_event, check_response
from tests.support.asgi_client import JSON, call
from tests.transport.websocket.ws_client import open_websocket

pytestmark = pytest.mark.anyio

OTTERS = "Otters hold hands while they sleep, so that they do not drift apart."
FISH = "Trout and salmon swim up the river in autumn."
EVENTS = ["file_search_call.in_progress", "file_search_call.searching", "file_search_call.completed"]


def declare(store: Any, **options: Any) -> dict[str, Any]:
    return {"type": "file_search", "vector_store_ids": [store["id"]], **options}


def queue_search(server: ApiServer, *queries: str) -> None:
    arguments = json.dumps({"queries": queries or ["how do otters sleep", "otters hands"]})
    server.engine.says(CallStarted(0, "file_search"), CallDelta(0, arguments))


def queue_turns(server: ApiServer) -> None:
    queue_search(server)
    server.engine.says(Text("They hold hands 【1"), Text("†0.tx"), Text("t】. Nobody knows more【9†x】."))


def check_answer(response: Any, file_id: str) -> None:
    """Check that the model has searched, and that its mark is now a citation."""
    check_response(response)
    search, message = response["output"]
    assert (search["type"], search["status"]) == ("file_search_call", "completed")
    assert search["queries"] == ["how do otters sleep", "otters hands"]
    part = message["content"][0]
    assert part["text"] == "They hold hands . Nobody knows more."
    assert part["annotations"] == [
        {"type": "file_citation", "file_id": file_id, "filename": "0.txt", "index": len("They hold hands ")}
    ]


@pytest.mark.shows("E.16", "E.27")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_searches_files_and_cites_them(stream: bool) -> None:
    async with run_api() as server:
        api = VectorApi(server)
        store = await api.create_indexed(OTTERS, FISH)
        queue_turns(server)
        answer = await server.post(
            "responses", {"model": "fake", "input": "How do otters sleep?", "tools": [declare(store)], "stream": stream}
        )
        assert answer.status == 200, answer.body
        response = parse_events(answer)[-1]["response"] if stream else answer.json()
        check_answer(response, api.file_ids[0])
        assert response["output"][0]["results"] is None
        assert f"【1†0.txt】 {api.file_ids[0]}" in repr(server.engine.seen[-1])
        assert OTTERS in repr(server.engine.seen[-1])


@pytest.mark.shows("E.21", "E.27")
async def test_the_stream_contains_every_step_and_each_citation_after_its_text() -> None:
    async with run_api() as server:
        store = await VectorApi(server).create_indexed(OTTERS, FISH)
        queue_turns(server)
        body = {"model": "fake", "input": "?", "tools": [declare(store)], "stream": True}
        events = parse_events(await server.post("responses", body))
        for event in events:
            check_event(event)
        assert accumulate(events).output_text == "They hold hands . Nobody knows more."
        assert [event["type"][9:] for event in events if "file_search_call" in event["type"]] == EVENTS
        added = next(event["item"] for event in events if event["type"] == "response.output_item.added")
        assert (added["queries"], added["results"]) == ([], None)
        text = ""
        for event in events:
            text += event["delta"] if event["type"] == "response.output_text.delta" else ""
            if event["type"] == "response.output_text.annotation.added":
                assert text == "They hold hands "


@pytest.mark.shows("A4.7", "E.16")
async def test_results_are_shown_if_included_and_options_select_them() -> None:
    async with run_api() as server:
        api = VectorApi(server)
        store = await api.create(name="animals")
        texts = {OTTERS: {"year": 2024}, FISH: {"year": 2026}}
        files = [await api.upload(text, "a.txt") for text in texts]
        for file_id, attributes in zip(files, texts.values(), strict=True):
            await api.post(f"{store['id']}/files", {"file_id": file_id, "attributes": attributes})
        await api.wait(store["id"])
        queue_search(server, "otters", "salmon")
        condition = {"type": "gte", "key": "year", "value": 2025}
        weights = {"hybrid_search": {"embedding_weight": 0.5, "text_weight": 1}}
        tool = declare(store, filters=condition, max_num_results=1, ranking_options=weights)
        response = await server.create(tools=[tool], include=["file_search_call.results"])
        check_response(response)
        (result,) = response["output"][0]["results"]
        assert 0 < result.pop("score") <= 1
        assert result == {"file_id": files[1], "filename": "a.txt", "attributes": {"year": 2026}, "text": FISH}
        defaults = {"ranker": "auto", "score_threshold": 0.0}
        assert response["tools"] == [{**tool, "ranking_options": {**defaults, **weights}}]


async def test_the_tool_is_echoed_with_its_defaults() -> None:
    async with run_api() as server:
        store = await VectorApi(server).create_indexed(OTTERS)
        response = await server.create(tools=[declare(store)])
        defaults = {"filters": None, "max_num_results": 20, "ranking_options": {"ranker": "auto", "score_threshold": 0}}
        assert response["tools"] == [{**declare(store), **defaults}]


@pytest.mark.shows("E.27")
async def test_the_only_file_is_cited_at_the_end_of_an_answer_without_marks() -> None:
    async with run_api() as server:
        api = VectorApi(server)
        store = await api.create_indexed(OTTERS)
        queue_search(server)
        server.engine.says(Text("They hold hands."))
        part = (await server.create(tools=[declare(store)], tool_choice={"type": "file_search"}))["output"][1][
            "content"
        ]
        assert part[0]["annotations"] == [
            {"type": "file_citation", "file_id": api.file_ids[0], "filename": "0.txt", "index": 16}
        ]


@pytest.mark.shows("E.16")
@pytest.mark.parametrize("included", [False, True])
async def test_the_next_response_sees_the_passages_again_without_their_marks(included: bool) -> None:
    async with run_api() as server:
        store = await VectorApi(server).create_indexed(OTTERS, FISH)
        queue_turns(server)
        include = ["file_search_call.results"] if included else []
        first = await server.create(tools=[declare(store)], include=include)
        server.engine.says(Text("As I said."))
        second = await server.create(tools=[declare(store)], previous_response_id=first["id"])
        seen = repr(server.engine.seen[-1].prompt)
        assert OTTERS in seen
        assert "[0.txt]" in seen
        assert "【" not in repr(server.engine.seen[-1].prompt.messages)  # type: ignore[union-attr]  # a chat
        assert second["output"][0]["content"][0]["annotations"] == []


async def test_file_search_works_over_a_websocket_and_in_the_background() -> None:
    async with run_api() as server:
        api = VectorApi(server)
        store = await api.create_indexed(OTTERS, FISH)
        queue_turns(server)
        async with open_websocket(server.app) as client:
            check_answer(await client.create(tools=[declare(store)]), api.file_ids[0])
        queue_turns(server)
        created = await server.create(tools=[declare(store)], background=True)
        replay = await server.get(f"responses/{created['id']}?stream=true")
        check_answer(parse_events(replay)[-1]["response"], api.file_ids[0])


@pytest.mark.shows("D.4")
async def test_harmony_models_reach_the_tool_as_a_function() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(level="harmony"))) as server:
        api = VectorApi(server)
        store = await api.create_indexed(OTTERS, FISH)
        queue_turns(server)
        check_answer(await server.create(tools=[declare(store)]), api.file_ids[0])


@pytest.mark.shows("E.28")
@pytest.mark.parametrize("background", [False, True])
async def test_an_unknown_or_foreign_store_is_rejected_before_anything_happens(
    background: bool, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one key-of-one\ntwo key-of-two\n")
    async with run_api(api_key_file=keys) as server:

        async def post(tenant: str, path: str, body: Any) -> Any:
            content = json.dumps(body).encode()
            headers = [
                (b"authorization", f"Bearer key-of-{tenant}".encode()),
                (b"content-length", b"%d" % len(content)),
            ]
            return await call(server.app, "POST", f"/v1/{path}", JSON, *headers, body=[content])

        own, foreign = [(await post(tenant, "vector_stores", {})).json()["id"] for tenant in ("one", "two")]
        for store_id in (foreign, "vs_0", "x" * 500):
            tool = {"type": "file_search", "vector_store_ids": [own, store_id]}
            body = {"model": "fake", "input": "hi", "background": background, "tools": [{"type": "shell"}, tool]}
            answer = await post("one", "responses", body)
            assert (answer.status, answer.error["param"]) == (400, "tools[1].vector_store_ids[1]")
            assert store_id[:64] in answer.error["message"]
        assert not server.engine.seen


class GatedEngine(FakeEngine):
    """An engine that embeds nothing before `gate` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def embed(
        self,
        model: str,
        inputs: Sequence[str | Sequence[int]],
        dimensions: int | None = None,
        truncate: int | None = None,
    ) -> EmbeddingResult:
        await self.gate.wait()
        return await super().embed(model, inputs, dimensions, truncate)


@pytest.mark.shows("E.28")
async def test_files_that_are_being_indexed_are_waited_for() -> None:
    engine = GatedEngine()
    async with run_api(engine=engine) as server:
        api = VectorApi(server)
        file_id = await api.upload(OTTERS, "0.txt")
        store = await api.create(file_ids=[file_id])
        queue_turns(server)
        created = await server.create(tools=[declare(store)], background=True)
        assert not engine.seen
        engine.gate.set()
        replay = await server.get(f"responses/{created['id']}?stream=true")
        check_answer(parse_events(replay)[-1]["response"], file_id)


@pytest.mark.shows("E.28")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_fails_if_indexing_takes_too_long(stream: bool) -> None:
    engine = GatedEngine()
    async with run_api(engine=engine, vector_store_timeout=0.05) as server:
        api = VectorApi(server)
        store = await api.create(file_ids=[await api.upload(OTTERS)])
        body = {"model": "fake", "input": "hi", "tools": [declare(store)], "stream": stream}
        answer = await server.post("responses", body)
        if stream:
            failed = parse_events(answer)[-1]
            assert failed["type"] == "response.failed"
            assert failed["response"]["error"]["code"] == "vector_store_timeout"
        else:
            assert (answer.status, answer.error["code"]) == (503, "vector_store_timeout")
        assert not engine.seen
        engine.gate.set()


async def test_a_search_without_its_embedding_model_is_a_failed_item() -> None:
    engine = GatedEngine()
    engine.gate.set()
    async with run_api(engine=engine, tool_timeout=0.1) as server:
        store = await VectorApi(server).create_indexed(OTTERS)
        engine.gate.clear()
        queue_search(server)
        server.engine.says(Text("I could not search."))
        response = await server.create(tools=[declare(store)])
        assert response["output"][0]["status"] == "failed"
        assert "Error: This took longer than" in repr(engine.seen[-1])
        assert response["output"][1]["content"][0]["annotations"] == []


@pytest.mark.shows("E.26")
async def test_the_tool_is_rejected_on_a_server_that_stores_nothing() -> None:
    async with run_api(disable_store=True) as server:
        answer = await server.post(
            "responses", {"model": "fake", "input": "hi", "tools": [declare({"id": "vs_1"})], "store": False}
        )
        assert (answer.status, answer.error["param"]) == (400, "tools[0]")
        assert "--disable-store" in answer.error["message"]

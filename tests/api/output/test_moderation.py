"""Moderation: /v1/moderations, and the `moderation` field on every transport.

The moderation model is the fake engine, which flags the categories whose names a text contains, or a scripted chat
model. Covers `agent/moderation.py`, `service/tool_loop/moderation.py`, `protocol/bodies/moderations.py` and
`transport/endpoints/moderations.py`.
"""

import asyncio
import json
from typing import Any, Literal, get_args

import pytest
from msgspec.structs import replace
from openai.types import ModerationCreateResponse

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, ReasoningDelta, Text
from antiphon.core.prompt import Sampling
from antiphon.engines.base import JSON_MEDIA_TYPE, Capabilities, PassthroughReply, Task
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.protocol.bodies.moderations import CATEGORIES
from antiphon.service.tool_loop.moderation import MAX_PIECE_CHARS, MAX_PIECES, split_text
from tests.api.app import ApiServer, parse_events, run_api
from tests.oracles.chat import check_chat, check_chunk, parse_chunks
from tests.oracles.responses import accumulate, check_event, check_response
from tests.support.asgi_client import call
from tests.support.media_files import encode_data_url, png
from tests.transport.websocket.ws_client import FINAL_EVENTS, open_websocket

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
Transport = Literal["json", "sse", "websocket", "background", "chat", "chat stream"]
TRANSPORTS: tuple[Transport, ...] = get_args(Transport)
PNG = encode_data_url(png())
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


def image_part(url: str) -> Json:
    return {"type": "image_url", "image_url": {"url": url}}


def block(*sides: str) -> Json:
    return {"model": "omni-moderation-latest", "policy": {side: {"mode": "block"} for side in sides}}


SCORE: Json = {"model": "fake"}


class BrokenClassifier(FakeEngine):
    """An engine whose moderation fails, does not end, or returns something else."""

    def __init__(self, reply: bytes | None = None) -> None:
        super().__init__()
        self._reply = reply

    async def pass_through(
        self, model: str, task: Task, body: bytes, media_type: str = JSON_MEDIA_TYPE
    ) -> PassthroughReply:
        if self._reply is None:
            await asyncio.Event().wait()
        return PassthroughReply(self._reply or b"")


class ChatOnly(FakeEngine):
    """An engine without /moderations: its model is asked in a chat."""

    async def capabilities(self, model: str) -> Capabilities:
        return replace(await super().capabilities(model), tasks=frozenset({"generate"}))

    def judges(self, **scores: int) -> None:
        self.says(Text(json.dumps({name: scores.get(name, 0) for name in CATEGORIES})))


class Outcome:
    """The end of a moderated request, in the same form for every transport."""

    def __init__(self, reason: str | None, text: str, moderation: Json, streamed: str = "") -> None:
        self.reason = reason
        self.text = text
        self.streamed = streamed
        self.input, self.output = (self._join(moderation[side]) for side in ("input", "output"))

    @staticmethod
    def _join(verdict: Json) -> Json:
        results = verdict.get("results")
        return verdict if results is None else results[0]


def read_response(response: Json, events: list[Json]) -> Outcome:
    check_response(response)
    details = response["incomplete_details"]
    text = "".join([part["text"] for item in response["output"] for part in item.get("content") or ()])
    deltas = "".join([event["delta"] for event in events if event["type"].endswith(".delta")])
    return Outcome(details and details["reason"], text, response["moderation"], deltas)


async def send(server: ApiServer, transport: Transport, text: str, **fields: Any) -> Outcome:
    if transport.startswith("chat"):
        return await send_chat(server, transport == "chat stream", text, **fields)
    body = {"model": "fake", "input": text, **fields}
    if transport == "websocket":
        events: list[Json] = []
        async with open_websocket(server.app) as client:
            client.send_create(**body)
            while not events or events[-1]["type"] not in FINAL_EVENTS:
                events.append(await client.receive_event())
        return read_response(events[-1]["response"], events)
    if transport == "sse":
        events = parse_events(await server.post("responses", {**body, "stream": True}))
        for event in events:
            check_event(event)
        accumulate(events)
        return read_response(events[-1]["response"], events)
    if transport == "json":
        return read_response(await server.post_ok("responses", body), [])
    queued = await server.post_ok("responses", {**body, "background": True})
    events = parse_events(await server.get(f"responses/{queued['id']}?stream=true"))
    stored = (await server.get(f"responses/{queued['id']}")).json()
    assert stored == events[-1]["response"]
    return read_response(stored, events)


async def send_chat(server: ApiServer, stream: bool, text: str, **fields: Any) -> Outcome:
    body = {"model": "fake", "messages": [{"role": "user", "content": text}], "stream": stream, **fields}
    answer = await server.post("chat/completions", body)
    assert answer.status == 200, answer.body
    if not stream:
        completion = answer.json()
        check_chat(completion)
        choice = completion["choices"][0]
        reason = choice["finish_reason"]
        return Outcome(reason if reason != "stop" else None, choice["message"]["content"], completion["moderation"])
    chunks = parse_chunks(answer.body)
    for chunk in chunks:
        check_chunk(chunk)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join([choice["delta"].get("content") or "" for choice in choices])
    reason = choices[-1]["finish_reason"]
    [moderation] = [chunk["moderation"] for chunk in chunks if "moderation" in chunk]
    return Outcome(reason if reason != "stop" else None, text, moderation, text)


# ---- /v1/moderations


@pytest.mark.shows("G3.1")
async def test_every_form_of_input_is_judged() -> None:
    async with run_api(moderation_model="fake") as server:
        for value, flags in (
            ("some violence", [True]),
            (["all is well", "some hate"], [False, True]),
            ([{"type": "text", "text": "violence"}, image_part(PNG)], [True]),
            ([image_part(PNG)], [False]),
        ):
            reply = await server.post_ok("moderations", {"input": value, "model": "omni-moderation-latest"})
            parsed = ModerationCreateResponse.model_validate_json(json.dumps(reply), strict=True)
            assert [one.flagged for one in parsed.results] == flags
            assert reply["model"] == "fake"
            assert all(one["categories"].keys() == CATEGORIES.keys() for one in reply["results"])


async def test_the_endpoint_is_described() -> None:
    async with run_api() as server:
        document = (await call(server.app, "GET", "/openapi.json")).json()
    assert "ModerationList" in json.dumps(document["paths"]["/v1/moderations"]["post"]["responses"]["200"])


async def test_categories_apply_to_the_kinds_of_input_that_were_sent() -> None:
    async with run_api(moderation_model="fake") as server:
        [image] = (await server.post_ok("moderations", {"input": [image_part(PNG)]}))["results"]
        [text] = (await server.post_ok("moderations", {"input": "hate"}))["results"]
    applied = image["category_applied_input_types"]
    assert (applied["violence"], applied["hate"]) == (["image"], [])
    assert text["category_applied_input_types"]["hate"] == ["text"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", {"type": "text", "text": "b"}]}, "input"),
        ({"input": ["a"] * 129}, "input"),
        ({"input": [image_part("data:image/png;base64,AAAA")]}, "input[0].image_url.url"),
        ({"input": [image_part("http://127.0.0.1/a")]}, "input[0].image_url.url"),
    ],
)
async def test_an_invalid_input_is_refused_by_name(body: Json, param: str) -> None:
    async with run_api(moderation_model="fake") as server:
        answer = await server.post("moderations", body)
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_another_model_than_the_configured_one_is_unknown() -> None:
    async with run_api(moderation_model="fake") as server:
        answer = await server.post("moderations", {"input": "a", "model": "other"})
        field = await server.post("responses", {"model": "fake", "input": "a", "moderation": {"model": "other"}})
    assert (answer.status, answer.error["param"], answer.error["code"]) == (404, "model", "model_not_found")
    assert (field.status, field.error["param"]) == (404, "moderation.model")


async def test_a_server_without_a_moderation_model_refuses_and_names_the_setting() -> None:
    async with run_api() as server:
        endpoint = await server.post("moderations", {})
        response = await server.post("responses", {"model": "fake", "input": "a", "moderation": SCORE})
        chat = await server.post(
            "chat/completions", {"model": "fake", "messages": [{"role": "user", "content": "a"}], "moderation": SCORE}
        )
        assert server.engine.requests == 0
    assert endpoint.status == 404
    assert [(one.status, one.error["param"]) for one in (response, chat)] == [(400, "moderation")] * 2
    assert all("--moderation-model" in one.error["message"] for one in (endpoint, response, chat))


@pytest.mark.shows("G3.1")
async def test_a_chat_model_judges_with_a_schema_and_never_follows_the_content() -> None:
    engine = ChatOnly()
    engine.judges(violence=7, hate=4)
    async with run_api(engine=engine, moderation_model="fake") as server:
        [result] = (await server.post_ok("moderations", {"input": "Say hello."}))["results"]
    assert result["flagged"]
    assert [name for name, flag in result["categories"].items() if flag] == ["violence"]
    assert (result["category_scores"]["violence"], result["category_scores"]["hate"]) == (0.7, 0.4)
    [request] = engine.seen
    assert request.constraint is not None
    assert request.sampling == Sampling(temperature=0.0, max_tokens=4096)
    system, user = request.prompt.messages  # type: ignore[union-attr]  # a chat
    assert "never follow" in system["content"]
    assert user["content"] == "Say hello."


async def test_a_chat_model_that_does_not_answer_in_the_format_is_an_engine_error() -> None:
    engine = ChatOnly()
    async with run_api(engine=engine, moderation_model="fake", insist=0) as server:
        engine.says(Text("It is fine."))
        assert (await server.post("moderations", {"input": "a"})).status == 500


async def test_content_that_an_engine_flags_by_a_category_of_its_own_is_blocked() -> None:
    reply = b'{"results": [{"flagged": true, "categories": {"spam": true}, "category_scores": {"spam": 1}}]}'
    async with run_api(engine=BrokenClassifier(reply), moderation_model="fake") as server:
        made = await server.create(moderation=block("input"))
    check_response(made)
    assert (made["incomplete_details"], made["moderation"]["input"]["flagged"]) == ({"reason": "content_filter"}, True)


@pytest.mark.parametrize("reply", [b"<html>", b"{}", b'{"results": []}'])
async def test_a_reply_that_is_no_moderation_is_an_engine_error(reply: bytes) -> None:
    async with run_api(engine=BrokenClassifier(reply), moderation_model="fake") as server:
        answer = await server.post("moderations", {"input": "a"})
    assert (answer.status, answer.error["code"]) == (500, "server_error")


async def test_a_silent_moderation_model_is_an_error_after_the_deadline() -> None:
    async with run_api(engine=BrokenClassifier(), moderation_model="fake", moderation_timeout=0.05) as server:
        answer = await server.post("moderations", {"input": "a"})
    assert (answer.status, answer.error["code"]) == (500, "server_error")
    assert "0.05 seconds" in answer.error["message"]


# ---- the `moderation` field


@pytest.mark.shows("G3.2")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_scores_annotate_the_response(transport: Transport) -> None:
    async with run_api(moderation_model="fake") as server:
        outcome = await send(server, transport, "some violence", moderation=SCORE)
    assert (outcome.reason, outcome.text) == (None, "You said: some violence")
    for verdict in (outcome.input, outcome.output):  # the fake engine repeats the input
        assert (verdict["type"], verdict["flagged"], verdict["model"]) == ("moderation_result", True, "fake")
        assert [name for name, flag in verdict["categories"].items() if flag] == ["violence"]


@pytest.mark.shows("G3.2")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_flagged_input_is_blocked_before_the_model_reads_it(transport: Transport) -> None:
    async with run_api(moderation_model="fake") as server:
        outcome = await send(server, transport, "some violence", moderation=block("input"))
        assert server.engine.requests == 0
    assert (outcome.reason, outcome.text, outcome.streamed) == ("content_filter", "", "")
    assert outcome.input["flagged"]
    assert (outcome.output["type"], outcome.output["code"]) == ("error", "not_moderated")


@pytest.mark.shows("G3.2")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_flagged_output_is_blocked_and_none_of_it_is_sent(transport: Transport) -> None:
    async with run_api(moderation_model="fake") as server:
        server.engine.says(ReasoningDelta("Why not?"), Text("some "), Text("violence"))
        outcome = await send(server, transport, "hi", moderation=block("input", "output"))
    assert (outcome.reason, outcome.text, outcome.streamed) == ("content_filter", "", "")
    assert (outcome.input["flagged"], outcome.output["flagged"]) == (False, True)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_output_that_passes_is_sent_completely(transport: Transport) -> None:
    async with run_api(moderation_model="fake") as server:
        outcome = await send(server, transport, "hi", moderation=block("input", "output"))
    assert (outcome.reason, outcome.text) == (None, "You said: hi")
    assert (outcome.input["flagged"], outcome.output["flagged"]) == (False, False)


@pytest.mark.shows("G3.2")
@pytest.mark.parametrize("reply", [b"{}", None], ids=["wrong", "silent"])
@pytest.mark.parametrize("side", ["input", "output"])
async def test_a_policy_that_blocks_fails_closed(side: str, reply: bytes | None) -> None:
    engine = BrokenClassifier(reply)
    async with run_api(engine=engine, moderation_model="fake", moderation_timeout=0.05) as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", "moderation": block(side)})
        assert (answer.status, answer.error["code"]) == (500, "server_error")
        events = parse_events(
            await server.post("responses", {"model": "fake", "input": "hi", "moderation": block(side), "stream": True})
        )
        chat = await server.post(
            "chat/completions",
            {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "moderation": block(side)},
        )
        assert server.engine.requests == (0 if side == "input" else 3)
    assert [events[0]["type"], events[-1]["type"]] == ["response.created", "response.failed"]
    assert not [event for event in events if event["type"].endswith(".delta")]
    assert chat.status == 500


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_failure_is_reported_in_place_of_a_score(transport: Transport) -> None:
    async with run_api(engine=BrokenClassifier(b"{}"), moderation_model="fake") as server:
        outcome = await send(server, transport, "hi", moderation=SCORE)
    assert (outcome.reason, outcome.text) == (None, "You said: hi")
    assert [(one["type"], one["code"]) for one in (outcome.input, outcome.output)] == [("error", "server_error")] * 2


async def test_a_moderated_response_is_stored_and_replayed_with_its_results() -> None:
    async with run_api(moderation_model="fake") as server:
        server.engine.says(Text("violence"))
        blocked = await server.create(moderation=block("output"))
        stored = (await server.get(f"responses/{blocked['id']}")).json()
        replayed = parse_events(await server.get(f"responses/{blocked['id']}?stream=true"))
    assert stored == blocked == replayed[-1]["response"]
    assert (blocked["status"], blocked["output"]) == ("incomplete", [])
    assert "moderation" not in replayed[0]["response"]
    assert blocked["usage"]["output_tokens"] > 0


async def test_a_blocked_input_is_blocked_again_when_the_conversation_continues() -> None:
    async with run_api(moderation_model="fake") as server:
        blocked = await server.create(input="some violence", moderation=block("input"))
        again = await server.create(input="go on", previous_response_id=blocked["id"], moderation=block("input"))
        assert again["incomplete_details"] == {"reason": "content_filter"}
        assert server.engine.requests == 0


async def test_instructions_are_not_judged() -> None:
    async with run_api(moderation_model="fake") as server:
        made = await server.create(instructions="Avoid violence.", moderation=block("input"))
    assert made["status"] == "completed"


@pytest.mark.parametrize("is_flagged", [False, True])
async def test_a_summary_of_reasoning_is_held_back_with_the_output(is_flagged: bool) -> None:
    async with run_api(moderation_model="fake", reasoning_summaries="model") as server:
        server.engine.says(ReasoningDelta("Hm."), Text("Fine."))
        server.engine.says(Text("About violence." if is_flagged else "About it."))
        reasoning = {"effort": "low", "summary": "auto"}
        outcome = await send(server, "sse", "hi", reasoning=reasoning, moderation=block("output"))
    assert outcome.reason == ("content_filter" if is_flagged else None)
    assert outcome.streamed == ("" if is_flagged else "Hm.About it.Fine.")


async def test_tool_calls_that_are_flagged_are_blocked() -> None:
    async with run_api(moderation_model="fake") as server:
        server.engine.says(CallStarted(0, "f"), CallDelta(0, '{"a": "violence"}'), CallDone(0))
        made = await server.create(tools=[FUNCTION], moderation=block("output"))
    assert (made["output"], made["incomplete_details"]) == ([], {"reason": "content_filter"})


async def test_one_flagged_choice_is_blocked_alone_in_a_chat() -> None:
    async with run_api(moderation_model="fake") as server:
        server.engine.says(Text("fine"))
        server.engine.says(Text("violence"))
        body = {"model": "fake", "messages": [{"role": "user", "content": "a"}], "n": 2, "moderation": block("output")}
        completion = await server.post_ok("chat/completions", body)
    check_chat(completion)
    ends = sorted([(one["message"]["content"], one["finish_reason"]) for one in completion["choices"]])
    assert ends == [("", "content_filter"), ("fine", "stop")]
    flags = [one["flagged"] for one in completion["moderation"]["output"]["results"]]
    assert [one["finish_reason"] == "content_filter" for one in completion["choices"]] == flags


async def test_several_choices_of_a_response_are_judged_together() -> None:
    async with run_api(moderation_model="fake") as server:
        server.engine.says(Text("fine"))
        server.engine.says(Text("violence"))
        made = await server.create(n=2, moderation=block("output"))
    assert (made["output"], made["moderation"]["output"]["flagged"]) == ([], True)


async def test_token_ids_of_a_blocked_output_are_not_sent() -> None:
    engine = FakeEngine(FakeSettings(level="tokens"))
    async with run_api(engine=engine, moderation_model="fake") as server:
        body = {"model": "fake", "messages": [{"role": "user", "content": "violence"}], "return_token_ids": True}
        completion = await server.post_ok("chat/completions", {**body, "moderation": block("output")})
    assert "token_ids" not in completion["choices"][0]


async def test_audio_cannot_be_judged() -> None:
    audio = {"data": "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=", "format": "wav"}
    message = {"role": "user", "content": [{"type": "input_audio", "input_audio": audio}]}
    async with run_api(moderation_model="fake") as server:
        body = {"model": "fake", "input": [message], "moderation": block("input")}
        answer = await server.post("responses", body)
    assert (answer.status, answer.error["param"]) == (400, "moderation")


async def test_a_model_with_one_slot_judges_itself() -> None:
    """While the input is judged, the response holds no slot of the model."""
    engine = ChatOnly(FakeSettings(at_once=1))
    engine.judges()
    engine.says(Text("Hello."))
    engine.judges(violence=9)
    async with asyncio.timeout(30), run_api(engine=engine, moderation_model="fake") as server:
        made = await server.create(moderation=block("input", "output"))
    assert made["incomplete_details"] == {"reason": "content_filter"}
    assert made["moderation"]["output"]["category_scores"]["violence"] == 0.9


def test_a_long_text_is_judged_in_pieces_that_overlap() -> None:
    text = "x" * MAX_PIECE_CHARS + "violence"
    first, second = split_text(text)
    assert len(first) == MAX_PIECE_CHARS
    assert second.startswith("x" * 100)
    assert second.endswith("violence")
    assert split_text(" ") == []
    with pytest.raises(Exception, match="cannot be moderated"):
        split_text("x" * MAX_PIECE_CHARS * (MAX_PIECES + 1))

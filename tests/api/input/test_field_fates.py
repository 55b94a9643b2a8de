"""The fate of every request field, on every transport and kind of engine: it is honoured, which shows in the request to
the engine or in the response; it is refused by name; or it is listed in `ignored_fields`. None is dropped silently.
"""

from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, get_args, get_type_hints

import pytest
from msgspec import Struct
from msgspec.structs import replace
from openai.types.responses import (
    ComputerUsePreviewToolParam,
    FunctionToolParam,
    ResponseFormatTextJSONSchemaConfigParam,
    ResponseTextConfigParam,
)
from openai.types.responses.response_create_params import (
    Moderation,
    ResponseCreateParamsBase,
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from openai.types.shared_params import Reasoning

from antiphon.config.rate_limits import SheddingSettings
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.protocol.types.request import CreateResponse
from tests.api.app import ApiServer, parse_events, run_api
from tests.engines.http.stubs.chat_stub import run_stub
from tests.engines.http.stubs.generation import open_app
from tests.support.media_files import png
from tests.transport.websocket.ws_client import FINAL_EVENTS, open_websocket

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
Transport = Literal["json", "sse", "websocket"]
TRANSPORTS: tuple[Transport, ...] = get_args(Transport)
# an engine whose prompts are rendered and parsed here, a server with chat completions, and one with no optional field
EngineKind = Literal["embedded", "http", "minimal"]


class Sent(Struct, frozen=True):
    """Honoured: the request to the engine differs from that without the field."""


class Shown(Struct, frozen=True):
    """Honoured: `check` is true of the events or the response with the field, and false of those without it."""

    check: Callable[[Json, Sequence[Json]], bool]


class Refused(Struct, frozen=True):
    param: str
    code: str = "unsupported_parameter"


class Ignored(Struct, frozen=True):
    """Listed in `ignored_fields`."""

    name: str


class Indifferent(Struct, frozen=True):
    """Documented to change nothing here: data of the client, or what the transport does anyway."""


Fate = Sent | Shown | Refused | Ignored | Indifferent


class Row(Struct, frozen=True):
    """A value of a field and its fate; `others` has the exceptions, by engine or by transport.

    `base`: further fields of the request. The values RESPONSE and CONVERSATION stand for ids.
    """

    value: Any
    fate: Fate
    others: dict[str, Fate] = {}
    base: Json = {}

    def find_fate(self, engine: EngineKind, transport: Transport) -> Fate:
        others = self.others
        return others.get(f"{engine} {transport}") or others.get(engine) or others.get(transport) or self.fate


def echoes(name: str, value: Any) -> Shown:
    return Shown(lambda response, _: response.get(name) == value)


def has_item(kind: str) -> Shown:
    return Shown(lambda response, _: kind in [item["type"] for item in response.get("output", ())])


def refuses(name: str, *engines: str) -> dict[str, Fate]:
    return dict.fromkeys(engines or ("minimal",), Refused(name))


TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
IMAGES = {"type": "image_generation"}
MASK = f"data:image/png;base64,{b64encode(png()).decode()}"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
LONG = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "so it is " * 900},
    {"role": "user", "content": "b"},
]
HUGE = [{"role": "user", "content": "many words " * 40_000}, {"role": "user", "content": "short"}]
THOUGHT = [
    {"role": "user", "content": "a"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "a thought"}]},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
]
FORMAT = {"type": "json_schema", "name": "answer", "schema": SCHEMA}
OBFUSCATION = Shown(lambda _, events: any("obfuscation" in event for event in events))
UNSTREAMED = Refused("n", "invalid_value")
LOW = {"effort": "low"}
NOT_CALLABLE = Ignored("programmatic_tool_calling")
LOGPROBS = ["message.output_text.logprobs"]
JUDGED = Shown(lambda response, _: response.get("moderation", {}).get("input", {}).get("type") == "moderation_result")
BLOCKED = Shown(lambda response, _: response["incomplete_details"] == {"reason": "content_filter"})
SUMMARY = Shown(lambda response, _: any(item.get("summary") for item in response.get("output", ())))


def supported(name: str, value: Any, *refusing: str, **base: Any) -> dict[str, Row]:
    """Return the row of a field that reaches all engines but these and the minimal one."""
    return {name: Row(value, Sent(), refuses(name, "minimal", *refusing), base)}


def compat_only(name: str, value: Any) -> dict[str, Row]:
    """Return the row of a field that is refused unless compatibility mode is off."""
    return {name: Row(value, Refused(name))}


ROWS: dict[str, Row] = {
    "model": Row("other", Sent(), {"http": Refused("model", "model_not_found")}),
    "input": Row("ho", Sent()),
    "instructions": Row("Be brief.", Sent()),
    "previous_response_id": Row("RESPONSE", Sent()),
    "conversation": Row("CONVERSATION", Shown(lambda response, _: bool(response["conversation"]))),
    "prompt": Row({"id": "pmpt_1"}, Refused("prompt")),
    "tools": Row([TOOL], Sent(), refuses("tools")),
    "tool_choice": Row("required", Sent(), refuses("tools"), {"tools": [TOOL]}),
    "parallel_tool_calls": Row(False, echoes("parallel_tool_calls", False), refuses("tools"), {"tools": [TOOL]}),
    "max_tool_calls": Row(3, echoes("max_tool_calls", 3)),
    "text": Row({"format": {"type": "json_object"}}, Sent(), refuses("text.format")),
    "reasoning": Row({"effort": "low"}, Sent(), refuses("reasoning.effort")),
    "max_output_tokens": Row(2, Sent()),
    **supported("temperature", 0.5),
    **supported("top_p", 0.9),
    **supported("top_logprobs", 2),
    "truncation": Row("auto", echoes("status", "completed"), refuses("truncation"), {"input": HUGE}),
    "include": Row(LOGPROBS, Sent(), refuses("include")),
    "background": Row(True, echoes("background", True), refuses("background", "websocket")),
    "metadata": Row({"a": "b"}, echoes("metadata", {"a": "b"})),
    "service_tier": Row("flex", echoes("service_tier", "flex")),
    "safety_identifier": Row("me", echoes("safety_identifier", "me")),
    "user": Row("me", echoes("user", "me")),
    "prompt_cache_key": Row("key", Ignored("prompt_cache_key")),
    "prompt_cache_retention": Row("24h", Ignored("prompt_cache_retention")),
    "prompt_cache_options": Row({"mode": "implicit"}, Ignored("prompt_cache_options")),
    "context_management": Row(
        [{"type": "compaction", "compact_threshold": 1000}], has_item("compaction"), {}, {"input": LONG}
    ),
    "moderation": Row({"model": "omni-moderation-latest"}, JUDGED),
    "image": Row({"context_compression": "enabled"}, Ignored("image")),
    "access_programs": Row({"cyber": "standard"}, Ignored("access_programs")),
    "store": Row(False, echoes("store", False)),
    "stream": Row(True, Shown(lambda _, events: bool(events)), dict.fromkeys(("sse", "websocket"), Indifferent())),
    "stream_options": Row({"include_obfuscation": True}, OBFUSCATION, {"json": Ignored("stream_options")}),
    # Extensions of OpenAI's API.
    "multi_agent": Row({"a": 1}, Refused("multi_agent")),
    **supported("top_k", 5),
    **supported("min_p", 0.1),
    **supported("repetition_penalty", 1.1),
    **supported("frequency_penalty", 0.5),
    **supported("presence_penalty", 0.5),
    **supported("stop", ["x"]),
    **supported("include_stop_str_in_output", True),
    **supported("seed", 7),
    **supported("ignore_eos", True, max_output_tokens=9),
    "n": Row(2, Sent(), {"minimal json": Refused("n"), "sse": UNSTREAMED, "websocket": UNSTREAMED}),
    **supported("best_of", 2, "embedded"),
    **supported("length_penalty", 0.5, "embedded"),
    **supported("skip_special_tokens", False),
    **supported("chat_template_kwargs", {"enable_thinking": True}),
    "logprobs": Row(True, Sent(), refuses("include")),
    **{name: Row(1, Refused(name)) for name in ("num_assistant_tokens", "max_ngram_size")},
    "assistant_confidence_threshold": Row(0.5, Refused("assistant_confidence_threshold")),
    **compat_only("request_id", "r"),
    **compat_only("priority", 3),
    **compat_only("cache_salt", "s"),
    **compat_only("mm_processor_kwargs", {"a": 1}),
    **compat_only("previous_input_messages", [{"role": "user"}]),
    **compat_only("enable_response_messages", True),
    "wait_for_tool_outputs": Row(True, Indifferent(), {"json": Refused("wait_for_tool_outputs")}),
    "client_metadata": Row({"session": "s"}, Indifferent()),
    "generate": Row(False, echoes("output", [])),
}


def format_field(name: str, value: Any) -> dict[str, Row]:
    """Return the row of a field of a JSON schema format."""
    base = {"text": {"format": FORMAT}}
    return {f"text.format.{name}": Row({"format": {**FORMAT, name: value}}, Sent(), refuses("text.format"), base)}


def tool_field(name: str, value: Any, fate: Fate, **others: Fate) -> dict[str, Row]:
    """Return the row of a field of a function tool."""
    return {f"tools.{name}": Row([{**TOOL, name: value}], fate, {**refuses("tools"), **others}, {"tools": [TOOL]})}


COMPUTER = {"type": "computer_use_preview", "display_width": 640, "display_height": 480, "environment": "mac"}
NO_IMAGES = {"embedded": Refused("tools[0]"), **refuses("tools")}


def computer_field(name: str, value: Any) -> dict[str, Row]:
    """Return the row of a field of a computer, for which the model has to see."""
    base = {"tools": [COMPUTER]}
    return {f"tools.computer_use_preview.{name}": Row([{**COMPUTER, name: value}], Sent(), NO_IMAGES, base)}


def image_field(name: str, value: Any, fate: Fate | None = None, code: str = "unsupported_parameter") -> dict[str, Row]:
    """Return the row of a field of image_generation on the fake image service; refused unless it has a fate."""
    tool, refused = {**IMAGES, name: value}, Refused(f"tools[0].{name}", code)
    return {f"tools.image_generation.{name}": Row([tool], fate or refused, refuses("tools"), {"tools": [IMAGES]})}


def image_echo(name: str, value: Any) -> dict[str, Row]:
    return image_field(name, value, Shown(lambda response, _: response["tools"][0].get(name) == value))


NESTED_ROWS: dict[str, Row] = {
    **image_field("size", "512x512", Sent()),  # the model is asked for what the declaration leaves open
    **image_field("action", "generate", Sent()),
    **image_echo("model", "fake-image"),
    **image_echo("background", "opaque"),
    **image_echo("moderation", "low"),
    **image_echo("partial_images", 2),
    **image_field("output_compression", 50),  # the fake service makes PNG images
    **image_echo("input_fidelity", "high"),
    **image_echo("input_image_mask", {"image_url": MASK}),
    **image_field("quality", "high"),
    **image_field("output_format", "gif"),
    **image_field("complexity", "low"),
    **image_field("frame_count", 2),
    **image_field("frame_duration_ms", 100),
    **image_field("svg", {"model": "m"}),
    "reasoning.effort": ROWS["reasoning"],
    "reasoning.summary": Row({**LOW, "summary": "auto"}, SUMMARY, refuses("reasoning.effort"), {"reasoning": LOW}),
    "reasoning.generate_summary": Row(
        {**LOW, "generate_summary": "auto"}, SUMMARY, refuses("reasoning.effort"), {"reasoning": LOW}
    ),
    "reasoning.context": Row(
        {"context": "all_turns"}, Ignored("reasoning.context"), {"http": Sent()}, {"input": THOUGHT}
    ),
    "reasoning.mode": Row({"mode": "pro"}, Ignored("reasoning.mode")),
    "moderation.model": ROWS["moderation"],
    # the fake engine flags a text by its words; a chat model behind HTTP is asked, and flags nothing
    "moderation.policy": Row(
        {"model": "omni-moderation-latest", "policy": {"input": {"mode": "block"}}},
        BLOCKED,
        {"http": JUDGED},
        {"input": "violence"},
    ),
    "text.format": ROWS["text"],
    "text.verbosity": Row({"verbosity": "low"}, Sent()),
    **format_field("name", "thing"),
    **format_field("schema", {**SCHEMA, "title": "T"}),
    **format_field("strict", False),
    **tool_field("name", "g", Sent()),
    **tool_field("parameters", SCHEMA, Sent()),
    **tool_field("description", "It does.", Sent()),
    **format_field("description", "A thing."),
    **tool_field("strict", True, Sent()),
    **tool_field("allowed_callers", ["programmatic"], NOT_CALLABLE, minimal=NOT_CALLABLE),
    **tool_field("async", True, Ignored("tools.async")),
    **tool_field("defer_loading", True, Ignored("tools.defer_loading")),
    **tool_field("output_schema", SCHEMA, Ignored("tools.output_schema")),
    "tools.computer": Row([{"type": "computer"}], Sent(), NO_IMAGES),
    **computer_field("display_width", 800),
    **computer_field("display_height", 600),
    **computer_field("environment", "windows"),
    "tool_choice.computer": Row({"type": "computer"}, Sent(), NO_IMAGES, {"tools": [COMPUTER]}),
}


@asynccontextmanager
async def run_server(kind: EngineKind) -> AsyncIterator[tuple[ApiServer, Callable[[], Sequence[Any]]]]:
    """Run a server with an engine of a kind. Also returns a function that lists the last requests to the engine."""
    if kind != "http":
        engine = FakeEngine(FakeSettings(level="text")) if kind == "embedded" else MinimalEngine()
        settings: Json = {"enable_computer_call": True, "moderation_model": "fake", "image_service": ("fake",)}
        async with run_api(engine=engine, **settings) as server:
            yield server, lambda: [*engine.seen]
        return
    settings = {
        "shed": SheddingSettings(lag=0.0),
        "enable_computer_call": True,
        "moderation_model": "m",
        "image_service": ("fake",),
    }
    async with run_stub("vllm") as stub, open_app(stub.url, **settings) as app:
        yield ApiServer(app, stub.engine), lambda: stub.chat_bodies


class MinimalEngine(FakeEngine):
    """An engine that supports a prompt and no optional field, and reports no context size."""

    async def capabilities(self, model: str) -> Capabilities:
        return replace(await super().capabilities(model), supported_fields=frozenset(), context=None)


async def send_request(server: ApiServer, transport: Transport, body: Json) -> tuple[Json, list[Json]]:
    """Return the response or the error of a request, and its events."""
    events: list[Json] = []
    if transport == "websocket":
        async with open_websocket(server.app) as client:
            client.send_create(**body)
            while not events or events[-1]["type"] not in FINAL_EVENTS | {"error"}:
                events.append(await client.receive_event())
    else:
        answer = await server.post("responses", {**({"stream": True} if transport == "sse" else {}), **body})
        if answer.status != 200:
            return answer.error, []
        if not answer.body.startswith(b"event:"):
            return answer.json(), []
        events = parse_events(answer)
    return events[-1].get("error") or events[-1]["response"], events


class Outcome(Struct, frozen=True):
    """A response or error, its events, and the last request to the engine."""

    result: Json
    events: list[Json]
    engine_request: Any = None  # None: the engine was not called


async def make_value(server: ApiServer, value: Any, model: str) -> Any:
    """Return the value, or the id for which it stands."""
    if value == "RESPONSE":
        return (await server.post_ok("responses", {"model": model, "input": "before"}))["id"]
    return (await server.post_ok("conversations", {}))["id"] if value == "CONVERSATION" else value


def check_outcome(fate: Fate, without: Outcome, outcome: Outcome) -> None:
    result, ignored = outcome.result, outcome.result.get("ignored_fields", [])
    if isinstance(fate, Refused):
        assert (result.get("code"), result.get("param")) == (fate.code, fate.param)
        assert outcome.engine_request is None
        return
    assert "status" in result, result
    assert ignored == ([fate.name] if isinstance(fate, Ignored) else [])
    match fate:
        case Sent():
            assert outcome.engine_request != without.engine_request
        case Shown(check=check):
            assert check(result, outcome.events)
            assert not check(without.result, without.events)
        case Indifferent():
            assert outcome.engine_request == without.engine_request
            assert result.keys() == without.result.keys()


@pytest.mark.parametrize("kind", get_args(EngineKind))
@pytest.mark.parametrize("name", [*ROWS, *NESTED_ROWS])
@pytest.mark.shows("A.13", "A.18", "A.19", "A.21", "A.65", "A5.1", "C.22", "E.26")
async def test_a_field_is_honoured_refused_by_name_or_listed_as_ignored(name: str, kind: EngineKind) -> None:
    """Each request is sent without the field, and then with it."""
    row, field, model = {**ROWS, **NESTED_ROWS}[name], name.partition(".")[0], "m" if kind == "http" else "fake"
    async with run_server(kind) as (server, list_engine_requests):
        for transport in TRANSPORTS:
            outcomes = []
            for fields in ({}, {field: await make_value(server, row.value, model)}):
                before = [*map(id, list_engine_requests())]
                body = {"model": model, "input": "hi", **row.base, **fields}
                result, events = await send_request(server, transport, body)
                sent = [request for request in list_engine_requests() if id(request) not in before]
                outcomes.append(Outcome(result, events, sent[-1] if sent else None))
            check_outcome(row.find_fate(kind, transport), *outcomes)


@pytest.mark.shows("A.13")
def test_every_request_field_has_a_row() -> None:
    """Those of this server, and those of the openai package."""
    assert ROWS.keys() == set(CreateResponse.__struct_fields__)
    kinds = (ResponseCreateParamsBase, ResponseCreateParamsNonStreaming, ResponseCreateParamsStreaming)
    assert {name for kind in kinds for name in get_type_hints(kind)} <= ROWS.keys()


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [
        ("reasoning", Reasoning),
        ("text", ResponseTextConfigParam),
        ("text.format", ResponseFormatTextJSONSchemaConfigParam),
        ("tools", FunctionToolParam),
        ("tools.computer_use_preview", ComputerUsePreviewToolParam),
        ("moderation", Moderation),
    ],
)
def test_every_nested_field_of_the_openai_package_has_a_row(prefix: str, kind: type) -> None:
    names = get_type_hints(kind).keys() - {"type"}
    assert {f"{prefix}.{name}" for name in names} <= NESTED_ROWS.keys()

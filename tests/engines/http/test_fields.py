"""Every cell of the field table, through a complete server: the field is sent to the engine as expected, or rejected by
a 400 that names the field and the engine.

The expectations are written independently, by hand.
"""

from typing import Any

import pytest

from antiphon.core.prompt import Grammar, JsonObject, StructuralTag
from antiphon.engines.http.fields import CHAT_FIELDS
from antiphon.errors import EngineFailed
from tests.api.app import parse_events
from tests.engines.http.stubs.chat_stub import run_stub
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.http.stubs.generation import make_request, open_app, open_engine, post_response, run_generation
from tools.engines_page import ENGINE_CLASSES

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
NAMES = tuple(DIALECTS)
UNSUPPORTED = None
STANDARD_FIELDS = {"model", "messages", "stream", "stream_options", "return_progress"}

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "name": "thing", "schema": SCHEMA, "strict": True, "description": "A thing."}
WIRE_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True, "description": "A thing."},
}
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": None}
WIRE_TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
WIRE_OTHER = {"type": "function", "function": {"name": "subtract", "parameters": {"type": "object", "properties": {}}}}
NAMED = {"type": "function", "function": {"name": "add"}}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAAAAABWESUoAAAAFklEQVR42mNoIAAYRhWMKhhVMFIVAABCAAAfN5c2"
    "AAAAAABJRU5ErkJggg=="
)
AUDIO = {"data": "UklGRgAAAABXQVZF", "format": "wav"}
AUDIO_INPUT = [{"role": "user", "content": [{"type": "input_audio", "input_audio": AUDIO}]}]
IMAGE_INPUT = [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE, "detail": "low"}]}]


def only_for(*engines: str, fields: Json) -> dict[str, Json | None]:
    return {name: fields if name in engines else UNSUPPORTED for name in NAMES}


def all_except(fields: Json, **others: Json | None) -> dict[str, Json | None]:
    """Return these fields for every engine, with exceptions."""
    exceptions = {name.replace("_", "-"): other for name, other in others.items()}
    return {name: exceptions.get(name, fields) for name in NAMES}


def same_for_all(**fields: Any) -> dict[str, Json | None]:
    return all_except(fields)


EFFORT = {"reasoning_effort": "max", "chat_template_kwargs": {"enable_thinking": True}}
# field → the request, and the fields that each engine is sent
RESPONSE_CASES: dict[str, tuple[Json, dict[str, Json | None]]] = {
    "max_output_tokens": (
        {"max_output_tokens": 7},
        all_except({"max_completion_tokens": 7}, llamacpp_server={"max_tokens": 7}, ollama={"max_tokens": 7}),
    ),
    "temperature": ({"temperature": 0.5}, same_for_all(temperature=0.5)),
    "top_p": ({"top_p": 0.25}, same_for_all(top_p=0.25)),
    "top_k": (
        {"top_k": -1},
        all_except({"top_k": -1}, llamacpp_server={"top_k": 0}, ollama=UNSUPPORTED, openai=UNSUPPORTED),
    ),
    "min_p": ({"min_p": 0.125}, all_except({"min_p": 0.125}, ollama=UNSUPPORTED, openai=UNSUPPORTED)),
    "repetition_penalty": (
        {"repetition_penalty": 1.5},
        all_except(
            {"repetition_penalty": 1.5},
            llamacpp_server={"repeat_penalty": 1.5},
            ollama=UNSUPPORTED,
            openai=UNSUPPORTED,
        ),
    ),
    "frequency_penalty": ({"frequency_penalty": 0.5}, same_for_all(frequency_penalty=0.5)),
    "presence_penalty": ({"presence_penalty": -0.5}, same_for_all(presence_penalty=-0.5)),
    "stop": ({"stop": ["##"]}, same_for_all(stop=["##"])),
    "include_stop_str_in_output": (
        {"include_stop_str_in_output": True},
        only_for("vllm", "ovms", fields={"include_stop_str_in_output": True}) | {"sglang": {"no_stop_trim": True}},
    ),
    "seed": ({"seed": 2**32 - 1}, all_except({"seed": 2**32 - 1}, llamacpp_server={"seed": 2**32 - 2})),
    "ignore_eos": (
        {"ignore_eos": True, "max_output_tokens": 5},
        all_except(
            {"ignore_eos": True, "max_completion_tokens": 5},
            llamacpp_server={"ignore_eos": True, "max_tokens": 5},
            ollama=UNSUPPORTED,
            openai=UNSUPPORTED,
        ),
    ),
    "skip_special_tokens": (
        {"skip_special_tokens": False},
        only_for("vllm", "sglang", "ovms", fields={"skip_special_tokens": False}),
    ),
    "best_of": (
        {"best_of": 3},
        only_for("ovms", fields={"best_of": 3}) | {"vllm": {"n": 3, "use_beam_search": True}},
    ),
    "length_penalty": ({"length_penalty": 0.5}, only_for("vllm", "ovms", fields={"length_penalty": 0.5})),
    "top_logprobs": (
        {"top_logprobs": 2},
        all_except({"logprobs": True, "top_logprobs": 2}, ovms=UNSUPPORTED),
    ),
    "num_assistant_tokens": ({"num_assistant_tokens": 4}, only_for("ovms", fields={"num_assistant_tokens": 4})),
    "assistant_confidence_threshold": (
        {"assistant_confidence_threshold": 0.5},
        only_for("ovms", fields={"assistant_confidence_threshold": 0.5}),
    ),
    "max_ngram_size": ({"max_ngram_size": 3}, only_for("ovms", fields={"max_ngram_size": 3})),
    "text.format": ({"text": {"format": FORMAT}}, same_for_all(response_format=WIRE_FORMAT)),
    "reasoning.effort": (
        {"reasoning": {"effort": "max"}},
        all_except(
            EFFORT,
            ovms={"chat_template_kwargs": {"enable_thinking": True}},
            ollama={"reasoning_effort": "high"},
            openai={"reasoning_effort": "max"},
        ),
    ),
    "chat_template_kwargs": (
        {"chat_template_kwargs": {"tone": "dry"}},
        all_except({"chat_template_kwargs": {"tone": "dry"}}, ollama=UNSUPPORTED, openai=UNSUPPORTED),
    ),
    "structural_tag": (
        {"text": {"format": {"type": "structural_tag", "format": {"type": "any_text"}}}},
        only_for("vllm", "sglang", fields={"response_format": TAG})
        | {"ovms": {"response_format": {"type": "any_text"}}},
    ),
    "prompt_cache_key": ({"prompt_cache_key": "k"}, all_except({}, openai={"prompt_cache_key": "k"})),
    "tools": ({"tools": [TOOL]}, same_for_all(tools=WIRE_TOOLS)),
    "tool_choice": (
        {"tools": [TOOL, {**TOOL, "name": "subtract"}], "tool_choice": {"type": "function", "name": "add"}},
        all_except({"tools": [*WIRE_TOOLS, WIRE_OTHER], "tool_choice": NAMED}, ollama={"tools": WIRE_TOOLS}),
    ),
    "parallel_tool_calls": (
        {"tools": [TOOL], "parallel_tool_calls": False},
        all_except(
            {"tools": WIRE_TOOLS, "parallel_tool_calls": False},
            ovms={"tools": WIRE_TOOLS},
            ollama={"tools": WIRE_TOOLS},
        ),
    ),
    # the stub of llama.cpp reports neither vision nor audio
    "input_image": ({"input": IMAGE_INPUT}, all_except({}, llamacpp_server=UNSUPPORTED)),
    "input_audio": ({"input": AUDIO_INPUT}, only_for("vllm", "openai", fields={})),
}
# Fields that are tested on the engine directly, not through the service.
ENGINE_CASES: dict[str, tuple[Json, dict[str, Json | None]]] = {
    "priority": ({"priority": 3}, only_for("vllm", "sglang", fields={"priority": 3})),
    "request_id": ({"request_id": "r"}, only_for("vllm", fields={"request_id": "r"}) | {"sglang": {"rid": "r"}}),
    "mm_processor_kwargs": (
        {"mm_processor_kwargs": {"a": 1}},
        only_for("vllm", fields={"mm_processor_kwargs": {"a": 1}}),
    ),
    "grammar.regex": (
        {"constraint": Grammar("regex", "[ab]")},
        only_for("vllm", fields={"structured_outputs": {"regex": "[ab]"}})
        | {"sglang": {"regex": "[ab]"}, "ovms": {"response_format": {"type": "regex", "pattern": "[ab]"}}},
    ),
    "grammar.gbnf": (
        {"constraint": Grammar("gbnf", "root ::= [ab]")},
        {
            **only_for("vllm", fields={"structured_outputs": {"grammar": "root ::= [ab]"}}),
            "sglang": {"ebnf": "root ::= [ab]"},
            "ovms": {"response_format": {"type": "grammar", "grammar": "root ::= [ab]"}},
            "llamacpp-server": {"grammar": "root ::= [ab]"},
        },
    ),
    "grammar.lark": (
        {"constraint": Grammar("lark", 'start: "a"')},
        only_for("vllm", fields={"structured_outputs": {"grammar": 'start: "a"'}}),
    ),
    "logit_bias": (
        {"logit_bias": {"7": -1.5}},
        only_for("vllm", "sglang", "openai", fields={"logit_bias": {"7": -1.5}})
        | {"llamacpp-server": {"logit_bias": [[7, -1.5]]}},
    ),
    "min_tokens": ({"min_tokens": 2}, only_for("vllm", "sglang", fields={"min_tokens": 2})),
    "stop_token_ids": ({"stop_token_ids": (2, 3)}, only_for("vllm", "sglang", fields={"stop_token_ids": [2, 3]})),
    "prompt_logprobs": ({"prompt_logprobs": 1}, only_for("vllm", fields={"prompt_logprobs": 1})),
    "return_token_ids": ({"return_token_ids": True}, only_for("vllm", fields={"return_token_ids": True})),
    "kv_transfer_params": (
        {"kv_transfer_params": {"do_remote_decode": True}},
        only_for("vllm", fields={"kv_transfer_params": {"do_remote_decode": True}}),
    ),
    "cache_salt": ({"salt": "s"}, all_except({}, vllm={"cache_salt": "s"}, sglang={"cache_salt": "s"})),
}


ENGINE_ROWS = {"vllm": "C.14", "sglang": "C.15", "ovms": "C.16", "llamacpp-server": "C.17", "ollama": "C.18"}
FIELD_ROWS = dict.fromkeys(("num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size"), "A3.15")


def list_cells(fields: dict[str, tuple[Json, dict[str, Json | None]]]) -> list[Any]:
    return [
        pytest.param(field, engine, marks=pytest.mark.shows(*list_rows(field, engine, expected[engine])))
        for field, (_, expected) in fields.items()
        for engine in NAMES
    ]


def list_rows(field: str, engine: str, expected: Json | None) -> list[str]:
    """Return the requirements that do not hold if the test of this cell fails."""
    engine_row = "C.22" if expected is UNSUPPORTED else ENGINE_ROWS.get(engine, "C.19")
    return [engine_row, *([FIELD_ROWS[field]] if field in FIELD_ROWS else [])]


def test_every_field_of_the_table_has_a_case() -> None:
    assert RESPONSE_CASES.keys() | ENGINE_CASES.keys() | {"reasoning items", "n"} == CHAT_FIELDS.keys()
    assert DIALECTS.keys() <= ENGINE_CLASSES.keys()


def test_an_engine_replaces_only_cells_of_the_table() -> None:
    for kind in ENGINE_CLASSES.values():
        assert kind.chat_column().keys() == kind.raw_column().keys() == CHAT_FIELDS.keys()
        assert not [field for field, cell in kind.fields.items() if cell == CHAT_FIELDS[field]]


@pytest.mark.parametrize(("field", "engine"), list_cells(RESPONSE_CASES))
@pytest.mark.shows("A3.13")
async def test_a_field_is_sent_to_the_engine_or_rejected_by_name(field: str, engine: str) -> None:
    fields, expected = RESPONSE_CASES[field]
    expected_fields = expected[engine]
    async with run_stub(engine) as stub, open_app(stub.url) as app:
        answer = await post_response(app, **fields)
        if expected_fields is UNSUPPORTED:
            assert answer.status == 400
            assert answer.error["code"] == "unsupported_parameter"
            assert field in (answer.error["param"], "input_image", "input_audio", "structural_tag")
            assert field in answer.error["message"] or field == "structural_tag"
            assert field in ("input_image", "input_audio") or f"on the {engine} engine" in answer.error["message"]
            assert not stub.chat_bodies
            return
        assert answer.status == 200, answer.body
        assert (await post_response(app, **fields, stream=True)).status == 200
        whole, streamed = stub.chat_bodies
        for sent in (whole, streamed):
            assert {name: value for name, value in sent.items() if name not in STANDARD_FIELDS} == expected_fields
            assert sent["model"] == "m"
        if field != "best_of":
            assert streamed["stream"] is True
            assert streamed["stream_options"] == {"include_usage": True}
        if field != "top_logprobs":
            assert whole["stream"] is False
            assert "stream_options" not in whole


@pytest.mark.parametrize(("field", "engine"), list_cells(ENGINE_CASES))
async def test_a_field_of_the_engine_interface_is_sent_or_rejected(field: str, engine: str) -> None:
    fields, expected = ENGINE_CASES[field]
    expected_fields = expected[engine]
    async with run_stub(engine) as stub, open_engine(stub.url) as under_test:
        result = await run_generation(under_test, make_request(**fields))
        if expected_fields is UNSUPPORTED:
            assert result.error is not None
            assert (result.error.status, result.error.param) == (400, field)
            assert f"the {engine} engine" in result.error.message
        else:
            assert result.error is None
            assert {
                name: value for name, value in stub.chat_bodies[0].items() if name not in STANDARD_FIELDS
            } == expected_fields


async def test_an_image_is_sent_as_a_data_url_and_never_as_another_url() -> None:
    async with run_stub("vllm") as stub, open_app(stub.url) as app:
        assert (await post_response(app, input=IMAGE_INPUT)).status == 200
        part = stub.chat_bodies[0]["messages"][0]["content"][0]
        assert part == {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}}
        url = [{"role": "user", "content": [{"type": "input_image", "image_url": "http://169.254.169.254/"}]}]
        answer = await post_response(app, input=url)
        assert answer.status == 400
        assert answer.error["param"].startswith("input")
        assert len(stub.chat_bodies) == 1


@pytest.mark.parametrize("engine", NAMES)
async def test_reasoning_of_the_current_turn_is_sent_back_in_the_field_of_the_engine(engine: str) -> None:
    items = [
        {"role": "user", "content": "add"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "3"},
    ]
    async with run_stub(engine) as stub, open_app(stub.url) as app:
        assert (await post_response(app, input=items, tools=[TOOL])).status == 200
        (called,) = [message for message in stub.chat_bodies[0]["messages"] if message["role"] == "assistant"]
        reasoning = {name: value for name, value in called.items() if name.startswith("reasoning")}
        assert reasoning == {"ollama": {"reasoning": "Hm."}, "openai": {}}.get(engine, {"reasoning_content": "Hm."})


async def test_the_prompt_cache_key_is_mixed_with_the_salt_of_the_tenant() -> None:
    async with run_stub("openai") as stub, open_engine(stub.url) as engine:
        for salt in ("one", "two", "two"):
            await run_generation(engine, make_request(cache_key="k", salt=salt))
        keys = [body["prompt_cache_key"] for body in stub.chat_bodies]
        assert len({"k", *keys}) == 3
        assert keys[1] == keys[2]


async def test_ovms_rejects_structural_tags_of_the_older_form() -> None:
    async with run_stub("ovms") as stub, open_engine(stub.url) as engine:
        result = await run_generation(
            engine, make_request(constraint=StructuralTag({"structures": [], "triggers": ["<f"]}))
        )
        assert result.error is not None
        assert (result.error.status, result.error.param) == (400, "text.format")
        assert not stub.chat_bodies


async def test_a_json_object_is_requested_by_a_schema_from_ovms() -> None:
    async with run_stub("ovms") as stub, open_engine(stub.url) as engine:
        assert (await run_generation(engine, make_request(constraint=JsonObject()))).text == "{}"
        assert stub.chat_bodies[0]["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize("engine", [name for name in NAMES if name not in ("ollama", "openai")])
@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("minimal", True), ("high", True)])
async def test_the_reasoning_effort_sets_enable_thinking(engine: str, effort: str, thinks: bool) -> None:
    async with run_stub(engine) as stub, open_app(stub.url) as app:
        assert (await post_response(app, reasoning={"effort": effort})).status == 200
        assert stub.chat_bodies[0]["chat_template_kwargs"] == {"enable_thinking": thinks}
        agreed = {"enable_thinking": thinks, "tone": "dry"}
        assert (await post_response(app, reasoning={"effort": effort}, chat_template_kwargs=agreed)).status == 200
        assert stub.chat_bodies[1]["chat_template_kwargs"] == agreed
        response = await post_response(
            app, reasoning={"effort": effort}, chat_template_kwargs={"enable_thinking": not thinks}
        )
        assert response.status == 400
        assert response.error["param"].startswith("chat_template_kwargs")
        assert len(stub.chat_bodies) == 2


@pytest.mark.parametrize("engine", NAMES)
async def test_fields_with_their_default_values_are_not_rejected(engine: str) -> None:
    nothing = {"repetition_penalty": 1, "n": 1, "best_of": 1, "ignore_eos": False, "skip_special_tokens": True}
    async with run_stub(engine) as stub, open_app(stub.url) as app:
        assert (await post_response(app, include_stop_str_in_output=False, logprobs=False, **nothing)).status == 200
        assert stub.chat_bodies[0].keys() <= STANDARD_FIELDS | {"repetition_penalty", "repeat_penalty"}


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.shows("A3.12")
async def test_several_choices_are_separate_engine_calls(engine: str) -> None:
    async with run_stub(engine) as stub, open_app(stub.url) as app:
        answer = await post_response(app, n=3)
        assert [item["content"][0]["text"] for item in answer.json()["output"]] == ["You said: hi"] * 3
        assert ["n" in sent for sent in stub.chat_bodies] == [False] * 3
        assert [sent["logprobs"] for sent in stub.chat_bodies] == [True] * 3  # by which they are ordered


@pytest.mark.shows("A3.13")
@pytest.mark.parametrize("engine", ["vllm", "ovms"])
async def test_n_with_best_of_returns_the_best_beams_in_the_order_of_the_engine(engine: str) -> None:
    async with run_stub(engine) as stub, open_app(stub.url) as app:
        answer = await post_response(app, n=3, best_of=4)
        texts = [item["content"][0]["text"] for item in answer.json()["output"]]
        assert texts == ["You said: hi", "You said: hi (1)", "You said: hi (2)"]
        beams = [4, 4, 4] if engine == "vllm" else [None, 2, 3]
        assert sorted([sent.get("n") for sent in stub.chat_bodies], key=lambda count: count or 0) == beams
        assert not [sent for sent in stub.chat_bodies if "logprobs" in sent or sent["stream"]]


async def test_a_beam_that_the_engine_does_not_return_fails_the_response() -> None:
    async with run_stub("vllm") as stub, open_engine(stub.url) as engine:
        result = await run_generation(engine, make_request(best_of=2, beam=2))
        assert isinstance(result.error, EngineFailed)
        assert "2 of at least 3 answers" in result.error.message


@pytest.mark.parametrize("engine", [name for name in NAMES if name not in ("vllm", "ovms")])
async def test_n_with_best_of_is_rejected_where_the_engine_has_no_beam_search(engine: str) -> None:
    async with run_stub(engine) as stub, open_app(stub.url) as app:
        answer = await post_response(app, n=2, best_of=3)
        assert (answer.status, answer.error["param"], stub.chat_bodies) == (400, "best_of", [])


@pytest.mark.shows("C.16")
@pytest.mark.parametrize("stream", [False, True])
async def test_ovms_returns_log_probabilities_of_the_chosen_tokens_unstreamed(stream: bool) -> None:
    async with run_stub("ovms") as stub, open_app(stub.url) as app:
        answer = await post_response(app, logprobs=True, stream=stream)
        response = parse_events(answer)[-1]["response"] if stream else answer.json()
        logprobs = response["output"][0]["content"][0]["logprobs"]
        assert "".join([one["token"] for one in logprobs]) == "You said: hi"
        assert [one["top_logprobs"] for one in logprobs] == [[]] * len(logprobs)
        assert (stub.chat_bodies[0]["logprobs"], stub.chat_bodies[0]["stream"]) == (True, False)
        rejected = await post_response(app, top_logprobs=1)
        assert (rejected.status, rejected.error["param"]) == (400, "top_logprobs")
        assert "chosen tokens only" in rejected.error["message"]


async def test_a_beam_search_returns_the_best_choice() -> None:
    async with run_stub("vllm") as stub, open_engine(stub.url) as engine:
        result = await run_generation(engine, make_request(best_of=2))
        assert [chunk.text for chunk in result.chunks if chunk.text] == ["You said: hi"]
        assert result.chunks[-1].finish == "stop"
        assert result.chunks[-1].counts is not None
        assert (stub.chat_bodies[0]["stream"], stub.chat_bodies[0]["n"]) == (False, 2)


async def test_every_engine_returns_tool_calls() -> None:
    for name in NAMES:
        async with run_stub(name) as stub, open_app(stub.url) as app:
            body = (await post_response(app, tools=[TOOL])).json()
            (call,) = body["output"]
            assert (call["type"], call["name"], call["arguments"]) == ("function_call", "add", "{}"), name
            assert body["status"] == "completed"


@pytest.mark.parametrize("engine", [name for name in NAMES if name != "openai"])
async def test_reasoning_is_recognised_under_the_field_name_of_each_engine(engine: str) -> None:
    async with run_stub(engine) as stub, open_app(stub.url) as app:
        body = (await post_response(app, reasoning={"effort": "high"})).json()
        kinds = [item["type"] for item in body["output"]]
        assert kinds == ["reasoning", "message"]

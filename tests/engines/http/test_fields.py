"""Every cell of the table of fields: asked for over a whole server, it is on the wire as expected, or it is a 400 that
names the field and the engine. What is expected is written here once more, by hand.
"""

from typing import Any

import pytest

from antiphon.core.prompt import Grammar, JsonObject, StructuralTag
from antiphon.engines.http.fields import NAMES, TABLE
from antiphon.engines.registry import ENGINES
from tests.engines.http.stubs.chat_stub import DIALECTS, standing_in
from tests.engines.http.stubs.generation import ask, opened, post, server, work

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
REFUSED = None
ALWAYS = {"model", "messages", "stream", "stream_options", "return_progress"}

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "name": "thing", "schema": SCHEMA, "strict": True}
WIRE_FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": None}
WIRE_TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
WIRE_OTHER = {"type": "function", "function": {"name": "subtract", "parameters": {"type": "object", "properties": {}}}}
NAMED = {"type": "function", "function": {"name": "add"}}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAAAAABWESUoAAAAFklEQVR42mNoIAAYRhWMKhhVMFIVAABCAAAfN5c2"
    "AAAAAABJRU5ErkJggg=="
)
SEES = [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE, "detail": "low"}]}]


def only(*engines: str, wire: Json) -> dict[str, Json | None]:
    return {name: wire if name in engines else REFUSED for name in NAMES}


def but(wire: Json, **others: Json | None) -> dict[str, Json | None]:
    """For every engine, with exceptions."""
    given = {name.replace("_", "-"): other for name, other in others.items()}
    return {name: given.get(name, wire) for name in NAMES}


def same(**wire: Any) -> dict[str, Json | None]:
    return but(wire)


EFFORT = {"reasoning_effort": "max", "chat_template_kwargs": {"enable_thinking": True}}
# A field → what is asked for, and what of it each engine gets.
ASKED: dict[str, tuple[Json, dict[str, Json | None]]] = {
    "max_output_tokens": (
        {"max_output_tokens": 7},
        but({"max_completion_tokens": 7}, llamacpp_server={"max_tokens": 7}, ollama={"max_tokens": 7}),
    ),
    "temperature": ({"temperature": 0.5}, same(temperature=0.5)),
    "top_p": ({"top_p": 0.25}, same(top_p=0.25)),
    "top_k": ({"top_k": -1}, but({"top_k": -1}, llamacpp_server={"top_k": 0}, ollama=REFUSED, openai=REFUSED)),
    "min_p": ({"min_p": 0.125}, but({"min_p": 0.125}, ollama=REFUSED, openai=REFUSED)),
    "repetition_penalty": (
        {"repetition_penalty": 1.5},
        but(
            {"repetition_penalty": 1.5},
            llamacpp_server={"repeat_penalty": 1.5},
            ollama=REFUSED,
            openai=REFUSED,
        ),
    ),
    "frequency_penalty": ({"frequency_penalty": 0.5}, same(frequency_penalty=0.5)),
    "presence_penalty": ({"presence_penalty": -0.5}, same(presence_penalty=-0.5)),
    "stop": ({"stop": ["##"]}, same(stop=["##"])),
    "include_stop_str_in_output": (
        {"include_stop_str_in_output": True},
        only("vllm", "ovms", wire={"include_stop_str_in_output": True}) | {"sglang": {"no_stop_trim": True}},
    ),
    "seed": ({"seed": 2**32 - 1}, but({"seed": 2**32 - 1}, llamacpp_server={"seed": 2**32 - 2})),
    "ignore_eos": (
        {"ignore_eos": True, "max_output_tokens": 5},
        but(
            {"ignore_eos": True, "max_completion_tokens": 5},
            llamacpp_server={"ignore_eos": True, "max_tokens": 5},
            ollama=REFUSED,
            openai=REFUSED,
        ),
    ),
    "skip_special_tokens": (
        {"skip_special_tokens": False},
        only("vllm", "sglang", "ovms", wire={"skip_special_tokens": False}),
    ),
    "best_of": (
        {"best_of": 3},
        only("ovms", wire={"best_of": 3}) | {"vllm": {"n": 3, "use_beam_search": True}},
    ),
    "length_penalty": ({"length_penalty": 0.5}, only("vllm", "ovms", wire={"length_penalty": 0.5})),
    "top_logprobs": (
        {"top_logprobs": 2},
        but({"logprobs": True, "top_logprobs": 2}, ovms=REFUSED),
    ),
    "num_assistant_tokens": ({"num_assistant_tokens": 4}, only("ovms", wire={"num_assistant_tokens": 4})),
    "assistant_confidence_threshold": (
        {"assistant_confidence_threshold": 0.5},
        only("ovms", wire={"assistant_confidence_threshold": 0.5}),
    ),
    "max_ngram_size": ({"max_ngram_size": 3}, only("ovms", wire={"max_ngram_size": 3})),
    "text.format": ({"text": {"format": FORMAT}}, same(response_format=WIRE_FORMAT)),
    "reasoning.effort": (
        {"reasoning": {"effort": "max"}},
        but(
            EFFORT,
            ovms={"chat_template_kwargs": {"enable_thinking": True}},
            ollama={"reasoning_effort": "high"},
            openai={"reasoning_effort": "max"},
        ),
    ),
    "chat_template_kwargs": (
        {"chat_template_kwargs": {"tone": "dry"}},
        but({"chat_template_kwargs": {"tone": "dry"}}, ollama=REFUSED, openai=REFUSED),
    ),
    "structural_tag": (
        {"text": {"format": {"type": "structural_tag", "format": {"type": "any_text"}}}},
        only("vllm", "sglang", wire={"response_format": TAG}) | {"ovms": {"response_format": {"type": "any_text"}}},
    ),
    "prompt_cache_key": ({"prompt_cache_key": "k"}, but({}, openai={"prompt_cache_key": "k"})),
    "tools": ({"tools": [TOOL]}, same(tools=WIRE_TOOLS)),
    "tool_choice": (
        {"tools": [TOOL, {**TOOL, "name": "subtract"}], "tool_choice": {"type": "function", "name": "add"}},
        but({"tools": [*WIRE_TOOLS, WIRE_OTHER], "tool_choice": NAMED}, ollama={"tools": WIRE_TOOLS}),
    ),
    "parallel_tool_calls": (
        {"tools": [TOOL], "parallel_tool_calls": False},
        but(
            {"tools": WIRE_TOOLS, "parallel_tool_calls": False},
            ovms={"tools": WIRE_TOOLS},
            ollama={"tools": WIRE_TOOLS},
        ),
    ),
    "input_image": ({"input": SEES}, but({}, llamacpp_server=REFUSED)),  # the stand-in says that it is blind
}
# What the service does not let through yet, asked of the engine itself.
WORK: dict[str, tuple[Json, dict[str, Json | None]]] = {
    "priority": ({"priority": 3}, only("vllm", "sglang", wire={"priority": 3})),
    "request_id": ({"request_id": "r"}, only("vllm", wire={"request_id": "r"}) | {"sglang": {"rid": "r"}}),
    "mm_processor_kwargs": ({"mm_processor_kwargs": {"a": 1}}, only("vllm", wire={"mm_processor_kwargs": {"a": 1}})),
    "grammar.regex": (
        {"constraint": Grammar("regex", "[ab]")},
        only("vllm", wire={"structured_outputs": {"regex": "[ab]"}})
        | {"sglang": {"regex": "[ab]"}, "ovms": {"response_format": {"type": "regex", "pattern": "[ab]"}}},
    ),
    "grammar.gbnf": (
        {"constraint": Grammar("gbnf", "root ::= [ab]")},
        {
            **only("vllm", wire={"structured_outputs": {"grammar": "root ::= [ab]"}}),
            "sglang": {"ebnf": "root ::= [ab]"},
            "ovms": {"response_format": {"type": "grammar", "grammar": "root ::= [ab]"}},
            "llamacpp-server": {"grammar": "root ::= [ab]"},
        },
    ),
    "grammar.lark": (
        {"constraint": Grammar("lark", 'start: "a"')},
        only("vllm", wire={"structured_outputs": {"grammar": 'start: "a"'}}),
    ),
    "logit_bias": (
        {"logit_bias": {"7": -1.5}},
        only("vllm", "sglang", "openai", wire={"logit_bias": {"7": -1.5}})
        | {"llamacpp-server": {"logit_bias": [[7, -1.5]]}},
    ),
    "min_tokens": ({"min_tokens": 2}, only("vllm", "sglang", wire={"min_tokens": 2})),
    "stop_token_ids": ({"stop_token_ids": (2, 3)}, only("vllm", "sglang", wire={"stop_token_ids": [2, 3]})),
    "prompt_logprobs": ({"prompt_logprobs": 1}, only("vllm", wire={"prompt_logprobs": 1})),
    "return_token_ids": ({"return_token_ids": True}, only("vllm", wire={"return_token_ids": True})),
    "kv_transfer_params": (
        {"kv_transfer_params": {"do_remote_decode": True}},
        only("vllm", wire={"kv_transfer_params": {"do_remote_decode": True}}),
    ),
    "cache_salt": ({"salt": "s"}, but({}, vllm={"cache_salt": "s"}, sglang={"cache_salt": "s"})),
}


def cells(fields: dict[str, tuple[Json, dict[str, Json | None]]]) -> list[tuple[str, str]]:
    return [(field, engine) for field in fields for engine in NAMES]


def test_every_cell_of_the_table_is_posted_here() -> None:
    assert ASKED.keys() | WORK.keys() | {"reasoning items", "n"} == TABLE.keys()
    assert {engine for row in TABLE.values() for engine in row} == set(NAMES) == DIALECTS.keys()
    assert set(NAMES) <= ENGINES.keys()


@pytest.mark.parametrize(("field", "engine"), cells(ASKED))
@pytest.mark.shows("C.14", "C.15", "C.16", "C.17", "C.18", "C.19", "C.22", "A3.13", "A3.15")
async def test_a_field_is_on_the_wire_or_a_400_names_it(field: str, engine: str) -> None:
    asked, expected = ASKED[field]
    wire = expected[engine]
    async with standing_in(engine) as stub, server(stub.url) as app:
        answer = await post(app, **asked)
        if wire is REFUSED:
            assert answer.status == 400
            assert answer.error["code"] == "unsupported_parameter"
            assert field in (answer.error["param"], "input_image", "structural_tag")
            assert field in answer.error["message"] or field == "structural_tag"
            assert field == "input_image" or f"on the {engine} engine" in answer.error["message"]
            assert not stub.seen
            return
        assert answer.status == 200, answer.body
        assert (await post(app, **asked, stream=True)).status == 200
        whole, streamed = stub.seen
        for sent in (whole, streamed):
            assert {name: value for name, value in sent.items() if name not in ALWAYS} == wire
            assert sent["model"] == "m"
        if field != "best_of":
            assert streamed["stream"] is True
            assert streamed["stream_options"] == {"include_usage": True}
        if field != "top_logprobs":
            assert whole["stream"] is False
            assert "stream_options" not in whole


@pytest.mark.parametrize(("field", "engine"), cells(WORK))
async def test_a_field_that_only_engines_know_is_on_the_wire_or_refused(field: str, engine: str) -> None:
    asked, expected = WORK[field]
    wire = expected[engine]
    async with standing_in(engine) as stub, opened(stub.url) as under_test:
        said = await ask(under_test, work(**asked))
        if wire is REFUSED:
            assert said.error is not None
            assert (said.error.status, said.error.param) == (400, field)
            assert f"the {engine} engine" in said.error.message
        else:
            assert said.error is None
            assert {name: value for name, value in stub.seen[0].items() if name not in ALWAYS} == wire


async def test_an_image_is_sent_as_data_and_never_as_another_url() -> None:
    async with standing_in("vllm") as stub, server(stub.url) as app:
        assert (await post(app, input=SEES)).status == 200
        part = stub.seen[0]["messages"][0]["content"][0]
        assert part == {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}}
        url = [{"role": "user", "content": [{"type": "input_image", "image_url": "http://169.254.169.254/"}]}]
        answer = await post(app, input=url)
        assert answer.status == 400
        assert answer.error["param"].startswith("input")
        assert len(stub.seen) == 1


@pytest.mark.parametrize("engine", NAMES)
async def test_thoughts_of_the_turn_under_way_are_sent_back_under_the_engines_name(engine: str) -> None:
    items = [
        {"role": "user", "content": "add"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "3"},
    ]
    async with standing_in(engine) as stub, server(stub.url) as app:
        assert (await post(app, input=items, tools=[TOOL])).status == 200
        (called,) = [message for message in stub.seen[0]["messages"] if message["role"] == "assistant"]
        thoughts = {name: value for name, value in called.items() if name.startswith("reasoning")}
        assert thoughts == {"ollama": {"reasoning": "Hm."}, "openai": {}}.get(engine, {"reasoning_content": "Hm."})


async def test_a_key_for_the_cache_is_mixed_with_the_tenants_salt() -> None:
    async with standing_in("openai") as stub, opened(stub.url) as engine:
        for salt in ("one", "two", "two"):
            await ask(engine, work(cache_key="k", salt=salt))
        keys = [body["prompt_cache_key"] for body in stub.seen]
        assert len({"k", *keys}) == 3
        assert keys[1] == keys[2]


async def test_an_older_structural_tag_is_refused_by_who_knows_the_new_ones_only() -> None:
    async with standing_in("ovms") as stub, opened(stub.url) as engine:
        said = await ask(engine, work(constraint=StructuralTag({"structures": [], "triggers": ["<f"]})))
        assert said.error is not None
        assert (said.error.status, said.error.param) == (400, "text.format")
        assert not stub.seen


async def test_an_object_is_asked_for_by_a_schema_where_there_is_no_other_way() -> None:
    async with standing_in("ovms") as stub, opened(stub.url) as engine:
        assert (await ask(engine, work(constraint=JsonObject()))).text == "{}"
        assert stub.seen[0]["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize("engine", [name for name in NAMES if name not in ("ollama", "openai")])
@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("minimal", True), ("high", True)])
async def test_an_effort_tells_the_template_whether_to_think(engine: str, effort: str, thinks: bool) -> None:
    async with standing_in(engine) as stub, server(stub.url) as app:
        assert (await post(app, reasoning={"effort": effort})).status == 200
        assert stub.seen[0]["chat_template_kwargs"] == {"enable_thinking": thinks}
        agreed = {"enable_thinking": thinks, "tone": "dry"}
        assert (await post(app, reasoning={"effort": effort}, chat_template_kwargs=agreed)).status == 200
        assert stub.seen[1]["chat_template_kwargs"] == agreed
        told = await post(app, reasoning={"effort": effort}, chat_template_kwargs={"enable_thinking": not thinks})
        assert told.status == 400
        assert told.error["param"].startswith("chat_template_kwargs")
        assert len(stub.seen) == 2


@pytest.mark.parametrize("engine", NAMES)
async def test_what_asks_for_nothing_is_not_refused(engine: str) -> None:
    nothing = {"repetition_penalty": 1, "n": 1, "best_of": 1, "ignore_eos": False, "skip_special_tokens": True}
    async with standing_in(engine) as stub, server(stub.url) as app:
        assert (await post(app, include_stop_str_in_output=False, logprobs=False, **nothing)).status == 200
        assert stub.seen[0].keys() <= ALWAYS | {"repetition_penalty", "repeat_penalty"}


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.shows("A3.12")
async def test_several_answers_are_so_many_calls(engine: str) -> None:
    async with standing_in(engine) as stub, server(stub.url) as app:
        answer = await post(app, n=3)
        if engine == "ovms":
            assert (answer.status, answer.error["param"]) == (400, "n")
            assert "log probabilities" in answer.error["message"]
            return
        assert [item["content"][0]["text"] for item in answer.json()["output"]] == ["You said: hi"] * 3
        assert ["n" in sent for sent in stub.seen] == [False] * 3


async def test_of_a_beam_search_the_best_is_taken() -> None:
    async with standing_in("vllm") as stub, opened(stub.url) as engine:
        said = await ask(engine, work(best_of=2))
        assert [chunk.text for chunk in said.chunks if chunk.text] == ["You said: hi"]
        assert said.chunks[-1].finish == "stop"
        assert said.chunks[-1].counts is not None
        assert (stub.seen[0]["stream"], stub.seen[0]["n"]) == (False, 2)


async def test_tools_of_a_server_that_sends_whole_calls_are_called() -> None:
    for name in NAMES:
        async with standing_in(name) as stub, server(stub.url) as app:
            body = (await post(app, tools=[TOOL])).json()
            (call,) = body["output"]
            assert (call["type"], call["name"], call["arguments"]) == ("function_call", "add", "{}"), name
            assert body["status"] == "completed"


@pytest.mark.parametrize("engine", [name for name in NAMES if name != "openai"])
async def test_thoughts_are_told_apart_under_whichever_name(engine: str) -> None:
    async with standing_in(engine) as stub, server(stub.url) as app:
        body = (await post(app, reasoning={"effort": "high"})).json()
        kinds = [item["type"] for item in body["output"]]
        assert kinds == ["reasoning", "message"]

"""Translation of Chat Completions requests to Responses requests, and of errors back to Chat Completions' parameter
names.

Covers `core/dialects/chat_items.py`, `core/dialects/completion_fields.py` and `core/dialects/completion_fields.py`.
"""

import json
from typing import Any

import pytest
from msgspec import UNSET

from antiphon.core.dialects.chat_request import ChatRequest, read_chat
from antiphon.core.prompt import Grammar
from antiphon.errors import (
    BadRequest,
    ContextTooLong,
    InvalidValue,
    MissingParameter,
    MutuallyExclusive,
    UnsupportedParameter,
)
from antiphon.limits import Limits
from antiphon.protocol.types.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Message,
    Reasoning,
)
from antiphon.protocol.types.parts import (
    InputAudio,
    InputFile,
    InputImage,
    InputText,
    OutputText,
    ReasoningText,
    RefusalPart,
)
from antiphon.protocol.types.response import JsonObjectFormat, JsonSchemaFormat, StructuralTagFormat
from antiphon.protocol.types.tool_choice import AllowedTools, CustomChoice, FunctionChoice
from antiphon.protocol.types.tools import CustomTool, FunctionTool, GrammarInput
from tests.support.cpu import cpu_timer

USER = {"role": "user", "content": "hi"}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}, "strict": None}}
SQL = {
    "type": "custom",
    "custom": {"name": "sql", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}},
}
NESTED_GRAMMAR = 'root ::= "(" (item ("," item)*)? ")" [^)]* # ((\nitem ::= "\\"(((" ' + " ".join(['("a")'] * 100)
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def make_request(*messages: Any, **fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [*messages] or [USER], **fields}
    return read_chat(json.dumps(body).encode(), Limits())


def get_rejection(*messages: Any, **fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as raised:
        make_request(*messages, **fields)
    assert str(raised.value)
    return raised.value


def test_messages_of_every_role_become_items_in_order() -> None:
    made = make_request(
        {"role": "system", "content": "s"},
        {"role": "developer", "content": [{"type": "text", "text": "d"}]},
        USER,
        {"role": "assistant", "content": "a", "refusal": "no", "reasoning_content": "hm"},
    )
    assert made.decoded.request.input == [
        Message(role="system", content=[InputText(text="s")]),
        Message(role="developer", content=[InputText(text="d")]),
        Message(role="user", content=[InputText(text="hi")]),
        Reasoning(content=[ReasoningText(text="hm")]),
        Message(role="assistant", content=[OutputText(text="a"), RefusalPart(refusal="no")]),
    ]
    assert made.decoded.ignored == []


def test_every_kind_of_part_is_translated() -> None:
    made = make_request(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
                {"type": "image_url", "image_url": "data:y"},
                {"type": "file", "file": {"file_data": "data:z", "filename": "f.txt"}},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
            ],
        }
    )
    (message,) = made.decoded.request.input
    assert isinstance(message, Message)
    text, low, plain, file, audio = message.content
    assert text == InputText(text="look")
    assert low == InputImage(image_url="data:x", detail="low")
    assert plain == InputImage(image_url="data:y")
    assert file == InputFile(file_data="data:z", filename="f.txt")
    assert isinstance(audio, InputAudio)


def test_calls_and_outputs_are_paired() -> None:
    made = make_request(
        USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "c2", "type": "custom", "custom": {"name": "sql", "input": "x"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
    )
    assert made.decoded.request.input[1:] == [
        FunctionCall(call_id="c1", name="f", arguments="{}"),
        CustomToolCall(call_id="c2", name="sql", input="x"),
        CustomToolCallOutput(call_id="c2", output=[InputText(text="two")]),
        FunctionCallOutput(call_id="c1", output="one"),
    ]


def test_call_ids_may_repeat_in_a_later_turn() -> None:
    call = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    output = {"role": "tool", "tool_call_id": "c"}
    made = make_request(USER, call, {**output, "content": "1"}, call, {**output, "content": "2"})
    first, one, second, two = made.decoded.request.input[1:]
    assert isinstance(first, FunctionCall)
    assert isinstance(second, FunctionCall)
    assert first.call_id != second.call_id
    assert one == FunctionCallOutput(call_id=first.call_id, output="1")
    assert two == FunctionCallOutput(call_id=second.call_id, output="2")


def test_repeated_call_ids_take_linear_time() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    with cpu_timer() as spent:
        made = make_request(USER, *[{"role": "assistant", "tool_calls": [call] * 1000}] * 10)
        assert len({item.call_id for item in made.decoded.request.input if isinstance(item, FunctionCall)}) == 10_000
    assert spent.seconds < 2


def test_legacy_function_messages_are_paired_by_order() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    made = make_request(USER, call, {"role": "function", "name": "f", "content": "1"}, functions=[{"name": "f"}])
    called, output = made.decoded.request.input[1:]
    assert isinstance(called, FunctionCall)
    assert output == FunctionCallOutput(call_id=called.call_id, output="1")
    assert made.decoded.request.tools == [FunctionTool(name="f")]
    assert made.decoded.request.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "assistant"}], "messages[0].content"),
        ([USER, {"role": "tool", "content": "x"}], "messages[1].tool_call_id"),
        ([{"role": "function", "content": "x"}], "messages[0].name"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "video", "video": 1}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "file", "file": {}}]}], "messages[0].content[0].file.file_data"),
        ([{"role": "assistant", "content": "x", "audio": {"id": "a"}}], "messages[0].audio"),
        (
            [{"role": "assistant", "content": [{"type": "image_url", "image_url": "data:x"}]}],
            "messages[0].content[0]",
        ),
    ],
)
def test_an_invalid_message_is_rejected_with_its_parameter(messages: list[Any], param: str) -> None:
    assert get_rejection(*messages).param == param


def test_shared_parameter_names_are_translated_to_chat_names() -> None:
    names = make_request(
        {"role": "system", "content": "s"},
        {"role": "assistant", "reasoning": "hm", "content": "a", "tool_calls": [
            {"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": "data:x"}]},
        tools=[WEATHER, SQL],
        max_tokens=5,
    ).names  # fmt: skip
    assert {
        name: names.translate_param(name)
        for name in (
            "input", "input[0].content[0]", "input[2].content[0]", "input[3]", "input[4].call_id", "input[4].output[0]",
            "input[5].content[1]", "input[5].content[1].image_url", "input[99]", "max_output_tokens", "text.format",
            "text.format.schema", "reasoning.effort", "include", "tools[0].parameters", "tools[1].format.definition",
            "tool_choice.tools[3]", "temperature",
        )
    } == {
        "input": "messages",
        "input[0].content[0]": "messages[0].content",
        "input[2].content[0]": "messages[1].content",
        "input[3]": "messages[1].tool_calls[0]",
        "input[4].call_id": "messages[2].tool_call_id",
        "input[4].output[0]": "messages[2].content[0]",
        "input[5].content[1]": "messages[3].content[1].image_url",
        "input[5].content[1].image_url": "messages[3].content[1].image_url",
        "input[99]": "messages",
        "max_output_tokens": "max_tokens",
        "text.format": "response_format",
        "text.format.schema": "response_format.json_schema.schema",
        "reasoning.effort": "reasoning_effort",
        "include": "logprobs",
        "tools[0].parameters": "tools[0].function.parameters",
        "tools[1].format.definition": "tools[1].custom.format.grammar.definition",
        "tool_choice.tools[3]": "tool_choice.allowed_tools.tools[3]",
        "temperature": "temperature",
    }  # fmt: skip


def test_an_error_is_translated_in_a_copy() -> None:
    error = ContextTooLong("Too long: 'input'.", param="input", retry_after=1.5)
    translated = make_request().names.translate_error(error)
    assert (translated.param, translated.message, translated.retry_after, type(translated)) == (
        "messages", "Too long: 'messages'.", 1.5, ContextTooLong,
    )  # fmt: skip
    assert error.param == "input"


def test_a_position_after_the_last_one_has_the_name_of_the_whole() -> None:
    names = make_request({"role": "user", "content": [{"type": "text", "text": "x"}]}, tools=[WEATHER]).names
    positions = ("input[1]", "input[0].content[1]", "tools[1].name", "max_output_tokens")
    assert [names.translate_param(name) for name in positions] == [
        "messages", "messages[0]", "tools[1].name", "max_completion_tokens",
    ]  # fmt: skip


def test_parts_of_an_assistant_message_are_text_and_refusals() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}]
    (item,) = make_request({"role": "assistant", "content": parts}).decoded.request.input
    assert isinstance(item, Message)
    assert item.content == [OutputText(text="a"), RefusalPart(refusal="no")]


def test_tools_and_choices_are_flattened() -> None:
    request = make_request(
        tools=[WEATHER, SQL], tool_choice={"type": "function", "function": {"name": "f"}}
    ).decoded.request
    assert request.tools == [
        FunctionTool(name="get_weather", parameters={"type": "object"}),
        CustomTool(name="sql", format=GrammarInput(syntax="regex", definition="a+")),
    ]
    assert request.tool_choice == FunctionChoice(name="f")


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("none", "none"),
        ("required", "required"),
        ({"type": "custom", "custom": {"name": "sql"}}, CustomChoice(name="sql")),
        (
            {"type": "allowed_tools", "allowed_tools": {"tools": [{"type": "custom", "name": "sql"}, {"name": "f"}]}},
            AllowedTools(tools=[CustomChoice(name="sql"), FunctionChoice(name="f")]),
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
            AllowedTools(mode="required", tools=[FunctionChoice(name="f")]),
        ),
    ],
)
def test_every_kind_of_tool_choice_is_translated(sent: Any, expected: Any) -> None:
    assert make_request(tools=[WEATHER], tool_choice=sent).decoded.request.tool_choice == expected


@pytest.mark.parametrize(("sent", "expected"), [("auto", "auto"), ({"name": "f"}, FunctionChoice(name="f"))])
def test_the_legacy_function_call_choice_is_translated(sent: Any, expected: Any) -> None:
    assert make_request(functions=[{"name": "f"}], function_call=sent).decoded.request.tool_choice == expected


def test_response_format_becomes_the_text_format() -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    assert make_request(response_format=response_format).decoded.request.text.format == JsonSchemaFormat(
        name="n", schema=SCHEMA, strict=True
    )
    assert make_request(response_format={"type": "json_object"}).decoded.request.text.format == JsonObjectFormat()
    assert "text" not in make_request(response_format={"type": "text"}).decoded.sent


@pytest.mark.shows("A3.18")
def test_a_structural_tag_becomes_the_text_format() -> None:
    tag = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a>"]}
    expected = StructuralTagFormat(structures=tag["structures"], triggers=["<a>"])  # type: ignore[arg-type]  # as sent
    assert make_request(response_format={"type": "structural_tag", **tag}).decoded.request.text.format == expected
    assert make_request(structured_outputs={"structural_tag": json.dumps(tag)}).decoded.request.text.format == expected


def test_schemas_and_patterns_within_a_structural_tag_are_validated() -> None:
    bad = {"type": "object", "properties": {"a": {"type": "x"}}}
    for tag in (
        {"structures": [{"begin": "<a>", "schema": bad, "end": "</a>"}], "triggers": ["<a>"]},
        {"format": {"type": "sequence", "elements": [{"type": "json_schema", "json_schema": bad}]}},
        {"format": {"type": "regex", "pattern": "("}},
    ):
        error = get_rejection(response_format={"type": "structural_tag", **tag})
        assert isinstance(error, InvalidValue)
        assert error.param == "response_format"


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"guided_regex": "a+"}, Grammar("regex", "a+")),
        ({"structured_outputs": {"regex": "a+"}}, Grammar("regex", "a+")),
        ({"guided_choice": ["a.b", "c"]}, Grammar("regex", r"(a\.b|c)")),
        ({"structured_outputs": {"choice": ["x"]}}, Grammar("regex", "(x)")),
        ({"guided_grammar": 'root ::= "a"'}, Grammar("gbnf", 'root ::= "a"')),
        ({"guided_grammar": NESTED_GRAMMAR}, Grammar("gbnf", NESTED_GRAMMAR)),
    ],
)
def test_vllm_guided_fields_become_a_grammar(fields: Any, grammar: Grammar) -> None:
    assert make_request(**fields).output_format.grammar == grammar


@pytest.mark.parametrize("sent", [SCHEMA, json.dumps(SCHEMA)])
def test_a_guided_schema_is_validated(sent: Any) -> None:
    assert make_request(guided_json=sent).decoded.request.text.format == JsonSchemaFormat(
        name="answer", schema=SCHEMA, strict=True
    )
    assert get_rejection(guided_json={"type": "nonsense"}).param == "guided_json"
    assert get_rejection(structured_outputs={"json": {"type": "nonsense"}}).param == "structured_outputs.json"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_regex": "a" * 10_000}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a" * (256 * 1024 + 1)]}, "guided_choice"),
        ({"guided_grammar": ""}, "guided_grammar"),
        ({"guided_grammar": 'root ::= "' + "a" * 300_000 + '"'}, "guided_grammar"),
        ({"structured_outputs": {"grammar": "root ::= " + "(" * 33 + '"a"' + ")" * 33}}, "structured_outputs.grammar"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"structured_outputs": {"structural_tag": {"structures": 7}}}, "structured_outputs.structural_tag"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "x"}}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)
def test_an_invalid_format_is_rejected_with_its_parameter(fields: Any, param: str) -> None:
    assert get_rejection(**fields).param == param


def test_two_formats_are_mutually_exclusive() -> None:
    error = get_rejection(guided_regex="a", response_format={"type": "json_object"})
    assert isinstance(error, MutuallyExclusive)
    assert error.param == "guided_regex"


def test_shared_fields_are_carried_over() -> None:
    made = make_request(
        temperature=0.5, top_p=0.5, top_k=3, min_p=0.1, seed=7, stop=["x"], ignore_eos=True, logprobs=True,
        top_logprobs=2, prompt_cache_key="k", reasoning_effort="low", verbosity="high", truncation="auto",
        chat_template_kwargs={"a": 1}, service_tier="flex",
    )  # fmt: skip
    request = made.decoded.request
    assert (request.temperature, request.top_p, request.top_k, request.min_p, request.seed) == (0.5, 0.5, 3, 0.1, 7)
    assert (request.stop, request.ignore_eos, request.logprobs, request.top_logprobs) == (["x"], True, True, 2)
    assert (request.prompt_cache_key, request.truncation, request.service_tier) == ("k", "auto", "flex")
    assert request.chat_template_kwargs == {"a": 1}
    assert (request.reasoning.effort, request.text.verbosity) == ("low", "high")
    assert request.reasoning.summary is None
    assert {"reasoning", "text", "temperature", "service_tier"} <= made.decoded.sent
    assert request.n is None


def test_ignored_fields_are_reported() -> None:
    made = make_request(
        {"role": "user", "content": "x", "name": "bob", "tool_calls": [], "reasoning": "hm"},
        store=True, metadata={"a": "b"}, user="u", safety_identifier="s", prediction={"content": "x"},
        invented=1, stream_options={"include_usage": True},
    )  # fmt: skip
    assert set(made.decoded.ignored) == {
        "invented", "messages.name", "messages.reasoning", "store", "metadata", "prediction", "stream_options",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"audio": {"voice": "alloy", "format": "wav"}}, UnsupportedParameter, "audio"),
        ({"modalities": ["text", "audio"]}, UnsupportedParameter, "modalities"),
        ({"web_search_options": {}}, UnsupportedParameter, "web_search_options"),
        ({"echo": True}, UnsupportedParameter, "echo"),
        ({"continue_final_message": True}, UnsupportedParameter, "continue_final_message"),
        ({"chat_template": "x"}, UnsupportedParameter, "chat_template"),
        ({"use_beam_search": True}, UnsupportedParameter, "use_beam_search"),
        ({"bad_words": ["x"]}, UnsupportedParameter, "bad_words"),
        ({"best_of": 4, "n": 2}, UnsupportedParameter, "best_of"),
        ({"tools": [WEATHER], "functions": [{"name": "f"}]}, MutuallyExclusive, "functions"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, MutuallyExclusive, "max_tokens"),
        ({"top_logprobs": 2}, InvalidValue, "top_logprobs"),
        ({"n": 17}, InvalidValue, "n"),
        ({"n": 0}, InvalidValue, "n"),
        ({"logit_bias": {"x": 1}}, InvalidValue, "logit_bias"),
        ({"logit_bias": {"12345678901": 1}}, InvalidValue, "logit_bias"),
        ({"logit_bias": {str(token): 1 for token in range(2_001)}}, InvalidValue, "logit_bias"),
        ({"min_tokens": 6, "max_tokens": 5}, InvalidValue, "min_tokens"),
        ({"function_call": "auto", "tool_choice": "auto"}, MutuallyExclusive, "function_call"),
        ({"logit_bias": {"1": 101}}, InvalidValue, "logit_bias"),
        ({"stop": ["a"] * 5}, InvalidValue, "stop"),
        ({"max_completion_tokens": 10**9}, InvalidValue, "max_completion_tokens"),
        ({"metadata": {"a" * 65: "b"}}, InvalidValue, "metadata"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, InvalidValue, "tools[0].function.name"),
        ({"functions": [{"name": "a b"}]}, InvalidValue, "functions[0].name"),
        ({"tools": [{"type": "function", "function": {}}]}, MissingParameter, "tools[0].function.name"),
    ],
)
def test_unsupported_and_invalid_fields_are_rejected_with_their_parameter(
    fields: Any, kind: type[BadRequest], param: str
) -> None:
    error = get_rejection(**fields)
    assert isinstance(error, kind)
    assert error.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"modalities": ["text"]},
        {"echo": False},
        {"add_generation_prompt": True},
        {"use_beam_search": False},
        {"max_tokens": 5, "max_completion_tokens": 5},
        {"best_of": 4, "n": 1},
        {"best_of": 1, "n": 1},
        {"min_tokens": 5, "max_tokens": 5},
        {"logit_bias": {"1234567890": 1}},
        {"logit_bias": {str(token): 1 for token in range(2_000)}},
        {"guided_grammar": "root ::= " + "(" * 32 + '"a"' + ")" * 32},
        {"guided_choice": ["a" * (256 * 1024)]},
        {"documents": []},
        {"temperature": None, "tools": None, "stop": None, "response_format": None, "stream_options": None},
    ],
)
def test_neutral_values_are_accepted(fields: Any) -> None:
    assert make_request(**fields).decoded.request.model == "m"


def test_a_null_description_is_unset() -> None:
    (tool,) = make_request(
        tools=[{"type": "function", "function": {"name": "f", "description": None}}]
    ).decoded.request.tools
    assert isinstance(tool, FunctionTool)
    assert tool.description is UNSET

"""The different forms in which clients write a request are normalised to the one form of the types."""

import json

import pytest
from msgspec import UNSET

from antiphon.errors import InvalidValue
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.items import (
    ComputerCallOutput,
    FunctionCallOutput,
    ItemReference,
    McpCall,
    Message,
    Reasoning,
)
from antiphon.protocol.types.parts import InputText, OutputText, Screenshot
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import JsonSchemaFormat
from antiphon.protocol.types.tool_choice import AllowedTools, FunctionChoice
from antiphon.protocol.types.tools import FunctionTool, Json, WebSearchTool
from tests.protocol.decoding.requests import decode, decode_fields


@pytest.mark.shows("A.14")
def test_input_may_be_a_string() -> None:
    assert decode_fields(input="hello").input == [Message(role="user", content=[InputText(text="hello")])]


@pytest.mark.shows("A.14", "A.15")
def test_a_message_needs_no_type_and_its_content_may_be_a_string() -> None:
    user, assistant, system = decode_fields(
        input=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "system", "content": [{"type": "input_text", "text": "c"}]},
        ]
    ).input
    assert user == Message(role="user", content=[InputText(text="a")])
    assert assistant == Message(role="assistant", content=[OutputText(text="b")])
    assert system == Message(role="system", content=[InputText(text="c")])


def test_a_reference_needs_no_type() -> None:
    assert decode_fields(input=[{"id": "msg_1"}]).input == [ItemReference(id="msg_1")]


def test_items_without_ids_stay_without_ids() -> None:
    assert decode_fields(input="hello").input[0].id is UNSET


@pytest.mark.shows("A.15")
def test_null_is_treated_as_absent() -> None:
    sent = {
        "model": None,
        "temperature": None,
        "tools": None,
        "text": None,
        "input": [
            {"type": "reasoning", "id": "rs_1", "content": None, "encrypted_content": None, "status": None},
            {"role": "assistant", "phase": None, "content": [{"type": "output_text", "text": "", "logprobs": None}]},
        ],
    }
    decoded = decode(sent).request
    assert decoded.input == [Reasoning(id="rs_1"), Message(role="assistant", content=[OutputText(text="")])]
    assert b"null" not in encode(decoded.input)
    assert decoded.temperature is None
    assert decoded.tools == []


def test_null_in_a_screenshot_is_treated_as_absent() -> None:
    shot = {"type": "computer_screenshot", "image_url": "data:,", "file_id": None, "detail": None}
    (item,) = decode_fields(input=[{"type": "computer_call_output", "call_id": "c", "output": shot}]).input
    assert isinstance(item, ComputerCallOutput)
    assert item.output == Screenshot(image_url="data:,")


def test_tool_outputs_are_strings_or_parts() -> None:
    text, parts = decode_fields(
        input=[
            {"type": "function_call_output", "call_id": "c", "output": "42"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "output_text", "text": "42"}]},
        ]
    ).input
    assert text == FunctionCallOutput(call_id="c", output="42")
    assert parts == FunctionCallOutput(call_id="c", output=[InputText(text="42")])


def test_an_mcp_error_may_be_a_string_as_in_older_versions() -> None:
    call = decode_fields(
        input=[{"type": "mcp_call", "id": "m", "server_label": "s", "name": "n", "arguments": "{}", "error": "no"}]
    ).input[0]
    assert isinstance(call, McpCall)
    assert json.loads(encode(call.error)) == {"type": "mcp_tool_execution_error", "content": "no"}


@pytest.mark.shows("A.17", "A3.19")
def test_functions_may_be_declared_and_chosen_in_the_nested_form() -> None:
    nested = {"type": "function", "function": {"name": "f", "description": None, "parameters": {"type": "object"}}}
    decoded = decode({"tools": [nested], "tool_choice": {"type": "function", "function": {"name": "f"}}})
    assert decoded.request.tools == [FunctionTool(name="f", parameters={"type": "object"})]
    assert decoded.request.tool_choice == FunctionChoice(name="f")
    assert decoded.ignored == []


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "name": "f"},
        {"name": "f", "server_label": None},
        {"type": "function", "function": {"name": "f"}},
    ],
)
def test_allowed_tools_need_no_mode_and_may_have_the_nested_form(tool: Json) -> None:
    decoded = decode({"tool_choice": {"type": "allowed_tools", "tools": [tool]}})
    assert decoded.request.tool_choice == AllowedTools(tools=[FunctionChoice(name="f")], mode="auto")
    assert decoded.ignored == []


def test_an_allowed_tool_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(InvalidValue) as refused:
        decode({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "functoin", "name": "f"}]}})
    assert refused.value.param == "tool_choice.tools[0].type"


@pytest.mark.shows("A3.17")
def test_response_format_is_an_alias_of_text_format() -> None:
    schema = {"type": "object"}
    chat = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    expected = JsonSchemaFormat(name="n", schema=schema, strict=True)
    assert decode_fields(response_format=chat).text.format == expected
    assert decode_fields(text={"format": chat, "verbosity": "low"}).text.format == expected
    assert decode_fields(text={"format": chat}, response_format=chat).text.format == expected


@pytest.mark.shows("A3.17")
def test_two_different_formats_are_refused() -> None:
    with pytest.raises(InvalidValue) as caught:
        decode_fields(text={"format": {"type": "text"}}, response_format={"type": "json_object"})
    assert caught.value.param == "response_format"


def test_dated_and_preview_names_of_web_search_are_echoed_unchanged() -> None:
    names = ["web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"]
    tools = decode_fields(tools=[{"type": name} for name in names]).tools
    assert all(isinstance(tool, WebSearchTool) for tool in tools)
    assert [tool["type"] for tool in json.loads(encode(tools))] == names


def test_a_conversation_is_a_string_or_an_object() -> None:
    assert decode_fields(conversation="conv_1") == decode_fields(conversation={"id": "conv_1"})


def test_the_last_of_duplicate_keys_wins() -> None:
    assert decode(b'{"model":"a","model":"b"}').request.model == "b"


def test_nul_is_preserved_in_text() -> None:
    message = decode(b'{"input":"a\\u0000b"}').request.input[0]
    assert isinstance(message, Message)
    assert message.content == [InputText(text="a\0b")]


def test_an_empty_request_has_every_default() -> None:
    assert decode(b"{}").request == CreateResponse()

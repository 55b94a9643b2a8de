"""Encoded output has every field that clients rely on, omits fields that break clients as null, and contains no
secrets.

Covers `protocol/types/tools.py`.
"""

import json
from typing import Any

import msgspec
import pytest

from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.events import Error, ErrorBody, FunctionCallArgumentsDone, OutputTextDelta
from antiphon.protocol.types.items import FunctionCall, McpListedTool, McpListTools, Message, Reasoning
from antiphon.protocol.types.parts import OutputText
from antiphon.protocol.types.response import Response, Usage
from antiphon.protocol.types.tools import CodeInterpreterTool, FunctionTool, McpTool, Tool
from tests.support.cpu import cpu_timer


def encode_to_dict(value: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(encode(value))
    return decoded


@pytest.mark.shows("A.20")
def test_a_response_has_every_field_with_its_default() -> None:
    assert encode_to_dict(Response(id="resp_1", created_at=1, model="m")) == {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "in_progress",
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "previous_response_id": None,
        "conversation": None,
        "model": "m",
        "output": [],
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": 1.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "truncation": "disabled",
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": None, "summary": None},
        "usage": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "safety_identifier": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "prompt": None,
        "store": True,
        "background": False,
        "service_tier": "default",
        "user": None,
    }


@pytest.mark.shows("A7.2", "A7.4")
def test_usage_has_every_count_and_omits_empty_turns() -> None:
    assert encode_to_dict(Usage()) == {
        "input_tokens": 0,
        "input_tokens_details": {
            "cached_tokens": 0,
            "cache_write_tokens": 0,
        },
        "output_tokens": 0,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
        },
        "total_tokens": 0,
    }


@pytest.mark.shows("A.22")
def test_text_always_has_annotations_and_logprobs() -> None:
    assert encode_to_dict(OutputText(text="a")) == {
        "type": "output_text",
        "text": "a",
        "annotations": [],
        "logprobs": [],
    }


@pytest.mark.shows("A.22", "A.44")
def test_fields_that_break_clients_as_null_are_omitted() -> None:
    message = Message(id="msg_1", role="assistant", status="completed", content=[])
    assert encode_to_dict(message).keys() == {"type", "id", "role", "status", "content"}
    assert encode_to_dict(Reasoning(id="rs_1")).keys() == {"type", "id", "summary"}
    call = FunctionCall(id="fc_1", call_id="call_1", name="f", arguments="", status="in_progress")
    assert encode_to_dict(call).keys() == {"type", "id", "call_id", "name", "arguments", "status"}
    listing = McpListTools(id="mcpl_1", server_label="s", tools=[McpListedTool(name="t", input_schema={})])
    assert encode_to_dict(listing).keys() == {"type", "id", "server_label", "tools"}
    assert encode_to_dict(listing)["tools"] == [{"name": "t", "input_schema": {}}]


def test_a_function_is_echoed_with_parameters_and_strict_but_without_an_absent_description() -> None:
    assert encode_to_dict(FunctionTool(name="f")) == {
        "type": "function",
        "name": "f",
        "parameters": None,
        "strict": None,
    }


@pytest.mark.shows("A.48")
def test_an_error_event_has_flat_fields_and_a_nested_error() -> None:
    body = ErrorBody(type="server_error", code="server_error", message="no")
    error = Error(sequence_number=3, code="server_error", message="no", error=body)
    assert encode_to_dict(error) == {
        "type": "error",
        "sequence_number": 3,
        "code": "server_error",
        "message": "no",
        "param": None,
        "error": {"type": "server_error", "code": "server_error", "message": "no", "param": None},
    }


@pytest.mark.shows("A.60")
def test_finished_arguments_have_their_event_type_and_function_name() -> None:
    event = FunctionCallArgumentsDone(sequence_number=1, item_id="fc_1", output_index=0, name="f", arguments="{}")
    assert event.type == "response.function_call_arguments.done" == encode_to_dict(event)["type"]
    assert encode_to_dict(event)["name"] == "f"


CANARY = "CANARY"
SECRET_TOOLS: list[Any] = [
    {"type": "mcp", "server_label": "s", "headers": {"X-Key": CANARY}, "authorization": CANARY},
    {
        "type": "code_interpreter",
        "container": {
            "type": "auto",
            "network_policy": {
                "type": "allowlist",
                "allowed_domains": [],
                "domain_secrets": [{"domain": "d", "name": "n", "value": CANARY}],
            },
        },
    },
]


@pytest.mark.parametrize("declared", SECRET_TOOLS, ids=lambda tool: tool["type"])
def test_tool_secrets_are_not_in_echoes_reprs_or_copies(declared: Any) -> None:
    tool: Any = msgspec.convert(declared, Tool)
    shown = [encode(tool).decode(), repr(tool), str(msgspec.to_builtins(tool)), repr(msgspec.structs.asdict(tool))]
    assert CANARY not in "".join(shown)
    assert CANARY not in encode(Response(id="r", created_at=1, model="m", tools=[tool])).decode()
    assert msgspec.json.decode(encode(tool), type=Tool) == tool


def test_tool_secrets_are_available_to_the_tool() -> None:
    mcp, code = (msgspec.convert(declared, Tool) for declared in SECRET_TOOLS)
    assert isinstance(mcp, McpTool)
    assert (mcp.credentials.headers, mcp.credentials.authorization) == ({"X-Key": CANARY}, CANARY)
    assert CANARY not in repr(mcp.credentials)
    assert isinstance(code, CodeInterpreterTool)
    policy: Any = code.container.network_policy  # type: ignore[union-attr]  # the sample above has one
    assert policy.secrets[0].value == CANARY
    assert CANARY not in repr(policy.secrets)


def test_encoding_a_text_delta_takes_microseconds() -> None:
    event = OutputTextDelta(sequence_number=4, item_id="msg_1", output_index=0, content_index=0, delta=" hello")
    with cpu_timer() as spent:
        for _ in range(20_000):
            encode(event)
    assert spent.seconds / 20_000 < 3e-6  # 0.3 µs on an idle machine

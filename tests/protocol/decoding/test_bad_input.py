"""Invalid requests are rejected with the parameter at fault and a helpful message."""

from typing import Any

import pytest

from antiphon.errors import (
    AntiphonError,
    BadRequest,
    InvalidJson,
    InvalidType,
    InvalidValue,
    MissingParameter,
    MutuallyExclusive,
)
from antiphon.limits import Limits
from tests.protocol.decoding.requests import decode, decode_fields
from tests.support.cpu import measure_min_cpu_seconds

TOO_LONG = "x" * 513


def make_user_message(part: Any) -> Any:
    return {"role": "user", "content": [part]}


def make_file_search(**options: Any) -> Any:
    return {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"], **options}]}


def nest_filter(depth: int) -> Any:
    """Return a filter that is nested this deep."""
    nested: Any = {"type": "eq", "key": "a", "value": 1}
    for _ in range(depth - 1):
        nested = {"type": "and", "filters": [nested]}
    return nested


INVALID: list[tuple[Any, type[AntiphonError], str | None]] = [
    (b"", InvalidJson, None),
    (b"  ", InvalidJson, None),
    (b"{", InvalidJson, None),
    (b'{"a":}', InvalidJson, None),
    (b'{"a":1}x', InvalidJson, None),
    (b"\xef\xbb\xbf{}", InvalidJson, None),
    (b'{"input":"\\ud800"}', InvalidJson, None),
    (b'{"input":"\xff"}', InvalidJson, None),
    (b'{"input":"\xed\xa0\x80"}', InvalidJson, None),
    (b"[]", InvalidType, None),
    (b'"hello"', InvalidType, None),
    (b"null", InvalidType, None),
    (b'{"temperature":NaN}', InvalidValue, "temperature"),
    (b'{"temperature":1e400}', InvalidValue, "temperature"),
    (b'{"tools":[{"a":-Infinity}]}', InvalidValue, "tools[0].a"),
    (b'{"seed":' + b"9" * 5000 + b"}", BadRequest, None),
    ({"temperature": "hot"}, InvalidType, "temperature"),
    ({"temperature": True}, InvalidType, "temperature"),
    ({"temperature": 2.1}, InvalidValue, "temperature"),
    ({"temperature": -0.1}, InvalidValue, "temperature"),
    ({"temperature": 10**400}, InvalidValue, "temperature"),
    ({"top_p": 1.5}, InvalidValue, "top_p"),
    ({"min_p": 1}, InvalidValue, "min_p"),
    ({"top_k": 0}, InvalidValue, "top_k"),
    ({"top_k": -2}, InvalidValue, "top_k"),
    ({"top_k": 1.0}, InvalidType, "top_k"),
    ({"repetition_penalty": 0}, InvalidValue, "repetition_penalty"),
    ({"frequency_penalty": 3}, InvalidValue, "frequency_penalty"),
    ({"presence_penalty": -3}, InvalidValue, "presence_penalty"),
    ({"seed": -1}, InvalidValue, "seed"),
    ({"seed": 2**32}, InvalidValue, "seed"),
    ({"seed": True}, InvalidType, "seed"),
    ({"priority": 2**63}, InvalidValue, "priority"),
    ({"max_output_tokens": 0}, InvalidValue, "max_output_tokens"),
    ({"max_output_tokens": 2**63}, InvalidValue, "max_output_tokens"),
    ({"max_tool_calls": 0}, InvalidValue, "max_tool_calls"),
    ({"max_tool_calls": 2**63}, InvalidValue, "max_tool_calls"),
    ({"top_logprobs": 21}, InvalidValue, "top_logprobs"),
    ({"top_logprobs": -1}, InvalidValue, "top_logprobs"),
    ({"stop": ["a"] * 5}, InvalidValue, "stop"),
    ({"stop": ""}, InvalidValue, "stop"),
    ({"stop": ["x" * 257]}, InvalidValue, "stop"),
    ({"stop": 3}, InvalidType, "stop"),
    ({"n": 0}, InvalidValue, "n"),
    ({"n": 17}, InvalidValue, "n"),
    ({"n": 2, "stream": True}, InvalidValue, "n"),
    ({"n": 3, "best_of": 2}, InvalidValue, "best_of"),
    ({"num_assistant_tokens": 3, "assistant_confidence_threshold": 0.5}, BadRequest, "assistant_confidence_threshold"),
    ({"conversation": "conv_1", "previous_response_id": "resp_1"}, BadRequest, "conversation"),
    ({"stream": "yes"}, InvalidType, "stream"),
    ({"store": 1}, InvalidType, "store"),
    ({"include": ["everything"]}, InvalidValue, "include[0]"),
    ({"truncation": "maybe"}, InvalidValue, "truncation"),
    ({"service_tier": "gold"}, InvalidValue, "service_tier"),
    ({"reasoning": {"effort": "enormous"}}, InvalidValue, "reasoning.effort"),
    ({"text": {"verbosity": "chatty"}}, InvalidValue, "text.verbosity"),
    ({"text": {"format": {"type": "yaml"}}}, InvalidValue, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, MissingParameter, "text.format.schema"),
    ({"text": []}, InvalidType, "text"),
    ({"response_format": 7}, InvalidType, "text.format"),
    ({"metadata": {"a": 1}}, InvalidType, "metadata"),
    ({"metadata": {str(number): "" for number in range(17)}}, InvalidValue, "metadata"),
    ({"metadata": {"k" * 65: ""}}, InvalidValue, "metadata"),
    ({"metadata": {"": ""}}, InvalidValue, "metadata"),
    ({"metadata": {"k": "v" * 513}}, InvalidValue, "metadata.k"),
    ({"metadata": {"k": "a\0b"}}, InvalidValue, "metadata"),
    ({"metadata": {"a\0b": ""}}, InvalidValue, "metadata"),
    ({"metadata": []}, InvalidType, "metadata"),
    ({"model": "a\0b"}, InvalidValue, "model"),
    ({"model": TOO_LONG}, InvalidValue, "model"),
    ({"model": 3}, InvalidType, "model"),
    ({"prompt_cache_key": ""}, InvalidValue, "prompt_cache_key"),
    ({"previous_response_id": "resp\0"}, InvalidValue, "previous_response_id"),
    ({"conversation": {"id": "a\0"}}, InvalidValue, "conversation.id"),
    ({"context_management": []}, InvalidValue, "context_management"),
    ({"input": 3}, InvalidType, "input"),
    ({"input": ["hello"]}, InvalidType, "input[0]"),
    ({"input": [{}]}, MissingParameter, "input[0].type"),
    ({"input": [{"type": "telepathy"}]}, InvalidValue, "input[0].type"),
    ({"input": [{"type": 3}]}, InvalidType, "input[0].type"),
    ({"input": [{"type": []}]}, InvalidType, "input[0].type"),
    ({"tools": [{"type": {}}]}, InvalidType, "tools[0].type"),
    ({"input": [{"role": "user"}]}, MissingParameter, "input[0].content"),
    ({"input": [{"role": "boss", "content": ""}]}, InvalidValue, "input[0].role"),
    ({"input": [{"role": "user", "content": 3}]}, InvalidType, "input[0].content"),
    ({"input": [{"role": "user", "content": ["a"]}]}, InvalidType, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "smell"}]}]}, InvalidValue, "input[0].content[0].type"),
    ({"input": [make_user_message({"type": "input_image"})]}, MissingParameter, "input[0].content[0].image_url"),
    (
        {"input": [make_user_message({"type": "input_image", "image_url": "data:,", "file_id": "f"})]},
        MutuallyExclusive,
        "input[0].content[0].file_id",
    ),
    ({"input": [make_user_message({"type": "input_file"})]}, MissingParameter, "input[0].content[0].file_data"),
    (
        {"input": [make_user_message({"type": "input_file", "file_data": "aGk=", "file_id": "f"})]},
        MutuallyExclusive,
        "input[0].content[0].file_id",
    ),
    (
        {"input": [make_user_message({"type": "input_file", "file_url": "http://a", "file_id": "f"})]},
        MutuallyExclusive,
        "input[0].content[0].file_url",
    ),
    ({"input": [{"type": "item_reference"}]}, MissingParameter, "input[0].id"),
    ({"input": [{"type": "item_reference", "id": "a\0"}]}, InvalidValue, "input[0].id"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, MissingParameter, "input[0].call_id"),
    ({"input": [{"type": "computer_call", "call_id": "\0"}]}, InvalidValue, "input[0].call_id"),
    ({"prompt": {"id": "p", "variables": {"a": {"type": "smell"}}}}, InvalidValue, "prompt.variables"),
    ({"prompt": {"id": "p", "variables": {"a": 3}}}, InvalidType, "prompt.variables"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": {}}]}, InvalidType, "input[0].output"),
    (
        {"input": [{"type": "function_call_output", "call_id": TOO_LONG, "output": ""}]},
        InvalidValue,
        "input[0].call_id",
    ),
    ({"tools": {}}, InvalidType, "tools"),
    ({"tools": [{"type": "hammer"}]}, InvalidValue, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, MissingParameter, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "two words"}]}, InvalidValue, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "x" * 129}]}, InvalidValue, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "f\n"}]}, InvalidValue, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "f", "parameters": []}]}, InvalidType, "tools[0].parameters"),
    ({"tools": [{"type": "custom", "name": ""}]}, InvalidValue, "tools[0].name"),
    ({"tools": [{"type": "mcp", "server_label": "a\0"}]}, InvalidValue, "tools[0].server_label"),
    ({"tools": [{"type": "local_shell"}] * 513}, InvalidValue, "tools"),
    (make_file_search(vector_store_ids=[]), InvalidValue, "tools[0].vector_store_ids"),
    (make_file_search(vector_store_ids=["vs_1"] * 101), InvalidValue, "tools[0].vector_store_ids"),
    (make_file_search(max_num_results=51), InvalidValue, "tools[0].max_num_results"),
    (make_file_search(ranking_options={"ranker": "best"}), InvalidValue, "tools[0].ranking_options.ranker"),
    (
        make_file_search(ranking_options={"score_threshold": 1.1}),
        InvalidValue,
        "tools[0].ranking_options.score_threshold",
    ),
    (
        make_file_search(ranking_options={"hybrid_search": {"embedding_weight": 0, "text_weight": 0}}),
        InvalidValue,
        "tools[0].ranking_options.hybrid_search",
    ),
    (
        make_file_search(ranking_options={"hybrid_search": {"embedding_weight": -1, "text_weight": 1}}),
        InvalidValue,
        "tools[0].ranking_options.hybrid_search.embedding_weight",
    ),
    (make_file_search(filters={"type": "like", "key": "a", "value": 1}), InvalidValue, "tools[0].filters.type"),
    (make_file_search(filters={"type": "eq", "value": 1}), MissingParameter, "tools[0].filters.key"),
    (make_file_search(filters={"type": "gt", "key": "a", "value": True}), InvalidType, "tools[0].filters.value"),
    (make_file_search(filters={"type": "in", "key": "a", "value": 1}), InvalidType, "tools[0].filters.value"),
    (
        make_file_search(filters={"type": "or", "filters": [{"type": "eq", "key": "a"}]}),
        MissingParameter,
        "tools[0].filters.filters[0].value",
    ),
    (make_file_search(filters=nest_filter(11)), InvalidValue, "tools[0].filters"),
    (make_file_search(filters={"type": "and", "filters": [nest_filter(1)] * 100}), InvalidValue, "tools[0].filters"),
    (
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "c"}] * 512}]},
        InvalidValue,
        "tools[0].tools",
    ),
    ({"tool_choice": "always"}, InvalidValue, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, MissingParameter, "tool_choice.name"),
    ({"tool_choice": {"type": "wish"}}, InvalidValue, "tool_choice.type"),
    ({"tool_choice": 3}, InvalidType, "tool_choice"),
]  # fmt: skip


@pytest.mark.shows(
    "A.26", "A.63", "A3.1", "A3.2", "A3.3", "A3.4", "A3.5", "A3.6", "A3.7", "A3.8", "A3.11", "A3.14", "A5.7"
)
@pytest.mark.shows("H6.4", "H6.7", "H6.8")
@pytest.mark.parametrize(("body", "error", "param"), INVALID, ids=lambda value: str(value)[:60])
def test_invalid_input_is_rejected_with_its_parameter_name(
    body: Any, error: type[AntiphonError], param: str | None
) -> None:
    with pytest.raises(error) as caught:
        decode(body)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert len(caught.value.message) < 1500
    assert caught.value.message.endswith(".")
    assert param is None or param.split(".")[0] in caught.value.message or error is MissingParameter


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"temperature": "hot"}, "Invalid type for 'temperature': expected a number, got a string."),
        ({"temperature": 3}, "Invalid value for 'temperature': expected a number <= 2.0."),
        ({"truncation": "x"}, "Invalid value for 'truncation': 'x' is not one of 'auto', 'disabled'."),
        ({"input": [{"type": "message"}]}, "Missing required parameter: 'input[0].role'."),
        ({"stop": 3}, "Invalid type for 'stop': expected a string or an array, got an integer."),
        (b'{"a":}', "The body is not valid JSON: invalid character (byte 5)."),
    ],
)
def test_error_messages_state_what_is_expected(body: Any, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(body)
    assert caught.value.message == message


@pytest.mark.shows("A4.3")
def test_the_error_for_an_unknown_type_lists_the_known_types() -> None:
    with pytest.raises(InvalidValue, match=r"'telepathy' is not one of .*'function_call', .*'message'"):
        decode_fields(input=[{"type": "telepathy"}])
    with pytest.raises(InvalidValue, match=r"not one of .*'reasoning.encrypted_content'"):
        decode_fields(include=["nothing"])


def test_an_unknown_type_is_rejected_quickly() -> None:
    def refuse() -> None:
        with pytest.raises(InvalidValue):
            decode_fields(tools=[{"type": "nonsense"}])

    refuse()
    assert (
        measure_min_cpu_seconds(refuse, attempts=5) < 0.003
    )  # 0.012 when the type unions were inspected for every error


@pytest.mark.shows("B.23", "H.15")
def test_error_codes_match_those_of_openai() -> None:
    codes = {}
    for name, body in {
        "exclusive": {"conversation": "conv_1", "previous_response_id": "resp_1"},
        "type": {"model": 3},
        "value": {"n": 0},
        "missing": {"tools": [{"type": "function"}]},
        "json": b"{",
    }.items():
        with pytest.raises(BadRequest) as caught:
            decode(body)
        codes[name] = caught.value.code
    assert codes == {
        "exclusive": "mutually_exclusive_parameters",
        "type": "invalid_type",
        "value": "invalid_value",
        "missing": "missing_required_parameter",
        "json": "invalid_json",
    }


@pytest.mark.shows("H6.1")
def test_limits_are_configurable() -> None:
    tight = Limits(items=2, parts=1, tools=1, output_tokens=10, id_length=4)
    for body, param in [
        ({"input": [{"role": "user", "content": ""}] * 3}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": ""}] * 2}]}, "input[0].content"),
        ({"tools": [{"type": "local_shell"}] * 2}, "tools"),
        ({"max_output_tokens": 11}, "max_output_tokens"),
        ({"model": "12345"}, "model"),
    ]:
        with pytest.raises(InvalidValue) as caught:
            decode(body, tight)
        assert caught.value.param == param


@pytest.mark.shows("A.26")
def test_metadata_at_its_limits_is_accepted() -> None:
    full = {f"{number:02}" + "k" * 62: "v" * 512 for number in range(16)}
    assert decode_fields(metadata=full).metadata == full


@pytest.mark.shows("A3.1", "A3.2", "A3.4", "A3.7")
def test_the_lowest_values_of_sampling_parameters_are_accepted() -> None:
    decoded = decode_fields(top_p=0, max_output_tokens=1, temperature=0, top_k=-1, n=1, seed=0)
    assert (decoded.top_p, decoded.max_output_tokens, decoded.top_k) == (0, 1, -1)

"""The types of Chat Completions and Completions have every field of the openai package, and invalid bodies are
rejected.

Covers `protocol/decoding/dialect_codecs.py`.
"""

import json
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Struct
from openai.types import completion_create_params as their_completion
from openai.types.chat import ChatCompletionChunk, completion_create_params
from openai.types.chat.chat_completion import ChatCompletion as TheirChat
from openai.types.completion import Completion as TheirCompletion

from antiphon.errors import BadRequest
from antiphon.limits import Limits
from antiphon.protocol.decoding.dialect_codecs import decode_chat, decode_completion
from antiphon.protocol.types.chat.request import CreateChat
from antiphon.protocol.types.chat.response import ChatChunk, ChatCompletion
from antiphon.protocol.types.completions import Completion, CreateCompletion

CHAT_PARAMS = (
    completion_create_params.CompletionCreateParamsNonStreaming,
    completion_create_params.CompletionCreateParamsStreaming,
)
COMPLETION_PARAMS = (
    their_completion.CompletionCreateParamsNonStreaming,
    their_completion.CompletionCreateParamsStreaming,
)


def get_field_names(kinds: tuple[Any, ...]) -> set[str]:
    return {name for kind in kinds for name in get_type_hints(kind)}


@pytest.mark.shows("G.1")
def test_no_field_of_a_chat_request_is_missing() -> None:
    assert len(get_field_names(CHAT_PARAMS)) > 35
    assert get_field_names(CHAT_PARAMS) - set(CreateChat.__struct_fields__) == set()


@pytest.mark.shows("G.3")
def test_no_field_of_a_completion_request_is_missing() -> None:
    assert len(get_field_names(COMPLETION_PARAMS)) > 15
    assert get_field_names(COMPLETION_PARAMS) - set(CreateCompletion.__struct_fields__) == set()


def _iter_typed_dicts(hint: Any, seen: set[Any]) -> Iterator[Any]:
    """Yield every typed dictionary that is reachable from a type hint."""
    if hasattr(hint, "__total__"):
        if hint not in seen:
            seen.add(hint)
            yield hint
            for inner in get_type_hints(hint).values():
                yield from _iter_typed_dicts(inner, seen)
    else:
        for inner in get_args(hint):
            yield from _iter_typed_dicts(inner, seen)


def _iter_structs(kind: Any, seen: set[Any]) -> Iterator[type[Struct]]:
    if isinstance(kind, type) and issubclass(kind, Struct):
        if kind not in seen:
            seen.add(kind)
            yield kind
            for inner in get_type_hints(kind).values():
                yield from _iter_structs(inner, seen)
    else:
        for inner in get_args(kind):
            yield from _iter_structs(inner, seen)


def test_no_field_of_a_message_a_part_a_tool_or_a_choice_is_missing() -> None:
    """Compares only field names; their nesting is covered by the tests that decode bodies."""
    params = get_type_hints(completion_create_params.CompletionCreateParamsBase)
    nested = ("messages", "tools", "tool_choice", "response_format", "functions", "function_call", "stream_options")
    theirs = {
        name for field in nested for kind in _iter_typed_dicts(params[field], set()) for name in get_type_hints(kind)
    }
    ours = {name for kind in _iter_structs(CreateChat, set()) for name in kind.__struct_fields__} | {"type"}
    assert len(theirs) > 30
    assert theirs - ours == set()


def test_a_chat_body_with_every_field_is_decoded() -> None:
    body = {
        "model": "m",
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "x"}], "name": "n"},
            {"role": "user", "content": [
                {"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}},
                {"type": "image_url", "image_url": {"url": "data:x", "detail": "original"}},
                {"type": "input_audio", "input_audio": {"data": "x", "format": "mp3"}},
                {"type": "file", "file": {"file_id": "f", "filename": "n", "file_data": "x"}},
            ]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "refusal": None, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "2", "type": "custom", "custom": {"name": "g", "input": ""}}],
             "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "tool", "tool_call_id": "1", "content": "x"},
            {"role": "function", "name": "f", "content": None},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "strict": None}},
                  {"type": "custom", "custom": {"name": "g", "format": {"type": "text"}}}],
        "moderation": {"model": "x"},
        "prompt_cache_options": {"mode": "explicit"},
        "prediction": {"type": "content", "content": "x"},
        "logit_bias": {"1": 2},
        "web_search_options": {"search_context_size": "low"},
        "audio": {"format": "wav", "voice": "alloy"},
    }  # fmt: skip
    decoded = decode_chat(json.dumps(body).encode(), Limits())
    assert decoded.ignored == ["messages[1].content[0].prompt_cache_breakpoint"]


def test_replies_lack_only_fields_that_the_server_cannot_know() -> None:
    assert set(TheirChat.model_fields) - set(ChatCompletion.__struct_fields__) == {"metadata"}
    assert set(ChatCompletionChunk.model_fields) - set(ChatChunk.__struct_fields__) == set()
    assert set(TheirCompletion.model_fields) - set(Completion.__struct_fields__) == set()


@pytest.mark.parametrize("decode", [decode_chat, decode_completion])
@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b"null", b'{"messages": {}, "prompt": {}}', b'{"messages": [[]], "prompt": [[[]]]}',
        b'{"messages": [{"role": "user", "content": [1]}], "prompt": [true]}',
        b'{"messages":' + b"[" * 100 + b"]" * 100 + b',"prompt":' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"messages": [' + b'{"role":"user","content":"x"},' * 10_001 + b'{}], "prompt": -1}',
        b'{"temperature": 1e999}', b'{"temperature": "hot"}', b'{"n": 1.5}', b'{"stop": {}}', b'{"stream": "yes"}',
        b'{"model": "' + b"m" * 600 + b'"}', b'{"logit_bias": [1]}', b'{"stream_options": true}', b'{"n": 0}',
    ],
)  # fmt: skip
def test_bad_input_is_a_bad_request(decode: Any, body: bytes) -> None:
    with pytest.raises(BadRequest):
        decode(body, Limits())


@pytest.mark.parametrize("decode", [decode_chat, decode_completion])
def test_the_number_of_logit_biases_is_limited(decode: Any) -> None:
    body = {"model": "m", "messages": [], "prompt": "", "logit_bias": {str(number): 1 for number in range(4)}}
    with pytest.raises(BadRequest) as refused:
        decode(json.dumps(body).encode(), Limits(biases=3))
    assert refused.value.param == "logit_bias"
    assert decode(json.dumps(body).encode(), Limits(biases=4)).request.logit_bias["3"] == 1

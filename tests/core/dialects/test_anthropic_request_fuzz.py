"""Fuzzing of /v1/messages bodies: any body is accepted, or rejected with an error that names the invalid field."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.dialects.anthropic_request import AnthropicRequest, read_count, read_message
from antiphon.errors import BadRequest
from antiphon.limits import Limits

FULL_BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1]}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "x"}]},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
                {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}},
                {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "x"}]},
            ],
        },
    ],
    "tools": [{"type": "custom", "name": "f", "input_schema": {"type": "object"}, "allowed_callers": ["direct"]}],
    "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "enabled", "budget_tokens": 2000, "display": "omitted"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["a"],
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "stream": True,
}
ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["text", "tool_use", "tool_result", "document", "base64", "custom", "assistant", "x" * 600]),
    st.just([]),
    st.just({}),
    st.lists(st.one_of(st.none(), st.text(max_size=2), st.just({})), max_size=2),
)


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in children:
        found += list_paths(inner, (*path, key))
    return found


PATHS = list_paths(FULL_BODY)


def set_path(body: Any, path: tuple[Any, ...], value: Any) -> None:
    """Set the value at the path, if the path still exists."""
    for key in path[:-1]:
        if not has_key(body, key):
            return
        body = body[key]
    if has_key(body, path[-1]):
        body[path[-1]] = value


def has_key(body: Any, key: Any) -> bool:
    if isinstance(body, dict):
        return key in body
    return isinstance(body, list) and isinstance(key, int) and key < len(body)


def get_rejection(body: bytes, counts: bool) -> str:
    """Return the error message, or an empty string if the body is accepted."""
    try:
        (read_count if counts else read_message)(body, Limits())
    except BadRequest as error:
        return error.message
    return ""


def test_the_unchanged_body_is_valid() -> None:
    assert isinstance(read_message(json.dumps(FULL_BODY).encode(), Limits()), AnthropicRequest)


@given(st.lists(st.tuples(st.sampled_from(PATHS), ODD_VALUES), min_size=1, max_size=3), st.booleans())
def test_a_changed_body_is_accepted_or_rejected(changes: list[tuple[tuple[Any, ...], Any]], counts: bool) -> None:
    body = deepcopy(FULL_BODY)
    for path, value in changes:
        set_path(body, path, value)
    assert len(get_rejection(json.dumps(body).encode(), counts)) < 1000


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": "x"}] * 10_001}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 2001}]}, "messages[0].content"),
        ({"tools": [{"name": f"f{n}", "input_schema": {}} for n in range(513)]}, "tools"),
        ({"messages": [{"role": "u" * 2_000_000, "content": "x"}]}, "role"),
        ({"tools": [{"name": "f", "input_schema": {"x": "y" * 300_000}}]}, "tools[0].input_schema"),
    ],
)
def test_limits_are_enforced(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_message(json.dumps({**FULL_BODY, **body}).encode(), Limits())
    assert caught.value.param == param
    assert len(caught.value.message) < 1000

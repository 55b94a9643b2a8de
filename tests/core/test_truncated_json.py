"""Parsing of complete and truncated JSON objects, compared with the partial mode of jiter, which the SDKs use."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jiter import from_json

from antiphon.core.truncated_json import parse_object, parse_truncated_object

_SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e6, 1e6) | st.text(max_size=6)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
_OBJECTS = st.dictionaries(st.text(max_size=4), _VALUES, max_size=4)


@given(_OBJECTS, st.booleans(), st.sampled_from([None, 1]))
def test_a_truncated_object_is_parsed_as_by_the_sdks(original: dict[str, Any], ascii_only: bool, indent: Any) -> None:
    text = json.dumps(original, ensure_ascii=ascii_only, indent=indent)
    for length in range(1, len(text)):
        assert parse_truncated_object(text[:length]) == from_json(text[:length].encode(), partial_mode=True), text[
            :length
        ]
    assert parse_object(text) == original


@pytest.mark.parametrize(
    "text", ["[1", '"a', "tru", '{"a": foo', '{"a" 1', "{1: 2", '{"a": [1}', '{"a": 1}}', "{,", '{"a": 1.2.3, "b"']
)
def test_text_that_is_not_an_object_prefix_is_none(text: str) -> None:
    assert parse_truncated_object(text) is None


@pytest.mark.parametrize(("text", "value"), [("", {}), (" \n", {}), ('{"a": 1}', {"a": 1}), ("[]", None), ("{", None)])
def test_empty_text_is_an_empty_object(text: str, value: Any) -> None:
    assert parse_object(text) == value


def test_excessive_depth_is_none() -> None:
    assert parse_truncated_object('{"a":' * 100_000) is None

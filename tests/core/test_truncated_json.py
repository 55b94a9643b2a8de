import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jiter import from_json

from antiphon.core.truncated_json import cut_object, whole_object

_SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e6, 1e6) | st.text(max_size=6)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
_OBJECTS = st.dictionaries(st.text(max_size=4), _VALUES, max_size=4)


@given(_OBJECTS, st.booleans(), st.sampled_from([None, 1]))
def test_a_cut_object_is_what_an_sdk_reads_of_it(given_object: dict[str, Any], ascii_only: bool, indent: Any) -> None:
    text = json.dumps(given_object, ensure_ascii=ascii_only, indent=indent)
    for length in range(1, len(text)):
        assert cut_object(text[:length]) == from_json(text[:length].encode(), partial_mode=True), text[:length]
    assert whole_object(text) == given_object


@pytest.mark.parametrize(
    "text", ["[1", '"a', "tru", '{"a": foo', '{"a" 1', "{1: 2", '{"a": [1}', '{"a": 1}}', "{,", '{"a": 1.2.3, "b"']
)
def test_what_is_not_the_beginning_of_an_object_is_none(text: str) -> None:
    assert cut_object(text) is None


@pytest.mark.parametrize(("text", "value"), [("", {}), (" \n", {}), ('{"a": 1}', {"a": 1}), ("[]", None), ("{", None)])
def test_no_text_is_an_object_of_nothing(text: str, value: Any) -> None:
    assert whole_object(text) == value


def test_depth_without_end_is_no_object() -> None:
    assert cut_object('{"a":' * 100_000) is None

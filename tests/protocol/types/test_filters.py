"""Filters of a search in vector stores."""

from typing import Any

import pytest

from antiphon.protocol.types.filters import AndFilter, EqualFilter, Filter, InFilter
from antiphon.protocol.types.tools import FileSearchTool
from tests.protocol.decoding.requests import decode


def decode_tool(**options: Any) -> tuple[FileSearchTool, list[str]]:
    decoded = decode({"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"], **options}]})
    (tool,) = decoded.request.tools
    assert isinstance(tool, FileSearchTool)
    return tool, decoded.ignored


def test_the_options_of_a_file_search_have_the_defaults_that_openai_echoes() -> None:
    tool, _ = decode_tool(filters=None, ranking_options={"ranker": None})
    assert (tool.max_num_results, tool.filters, tool.ranking_options.ranker) == (20, None, "auto")
    assert tool.ranking_options.score_threshold == 0.0


def test_filters_are_nested_up_to_the_limit() -> None:
    expected: Filter = EqualFilter(key="a", value=1)
    for _ in range(9):
        expected = AndFilter(filters=[expected])
    nested: Any = {"type": "eq", "key": "a", "value": 1}
    for _ in range(9):
        nested = {"type": "and", "filters": [nested]}
    assert decode_tool(filters=nested) == (FileSearchTool(vector_store_ids=["vs_1"], filters=expected), [])


@pytest.mark.parametrize("value", ["b", 1, 1.5, True])
def test_a_value_keeps_its_type(value: Any) -> None:
    tool, _ = decode_tool(filters={"type": "in", "key": "a", "value": [value]})
    assert isinstance(tool.filters, InFilter)
    assert type(tool.filters.value[0]) is type(value)


def test_an_attribute_may_be_named_property() -> None:
    tool, ignored = decode_tool(filters={"type": "eq", "property": "filename", "value": "a.txt"})
    assert (tool.filters, ignored) == (EqualFilter(key="filename", value="a.txt"), [])


def test_an_unknown_field_of_a_nested_filter_is_reported() -> None:
    filters = {"type": "and", "filters": [{"type": "eq", "key": "a", "value": 1, "weight": 2}]}
    assert decode_tool(filters=filters)[1] == ["tools[0].filters.filters[0].weight"]

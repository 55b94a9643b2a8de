"""Filters of a search in vector stores: comparisons of the attributes of files, combined with `and` and `or`."""

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from antiphon.protocol.types.parts import Tagged

MAX_FILTER_DEPTH = 10
MAX_FILTER_NODES = 100

AttributeValue = str | int | float | bool
Attributes = dict[str, AttributeValue]
_Ordered = str | int | float
_Members = Annotated[list[AttributeValue], Meta(min_length=1, max_length=1000)]


class Comparison(Tagged, kw_only=True):
    """Compares one attribute of a file with a value. OpenAI's guide also names the attribute `property`."""

    key: str = ""
    alias: str | UnsetType = field(default=UNSET, name="property")

    def __post_init__(self) -> None:
        self.key, self.alias = self.key or self.alias or "", UNSET
        if not self.key:
            raise ValueError("Object missing required field `key`")  # msgspec adds the path


class EqualFilter(Comparison, tag="eq", kw_only=True):
    value: AttributeValue


class NotEqualFilter(Comparison, tag="ne", kw_only=True):
    value: AttributeValue


class GreaterFilter(Comparison, tag="gt", kw_only=True):
    value: _Ordered


class AtLeastFilter(Comparison, tag="gte", kw_only=True):
    value: _Ordered


class LessFilter(Comparison, tag="lt", kw_only=True):
    value: _Ordered


class AtMostFilter(Comparison, tag="lte", kw_only=True):
    value: _Ordered


class InFilter(Comparison, tag="in", kw_only=True):
    value: _Members


class NotInFilter(Comparison, tag="nin", kw_only=True):
    value: _Members


class AndFilter(Tagged, tag="and", kw_only=True):
    filters: list["Filter"]


class OrFilter(Tagged, tag="or", kw_only=True):
    filters: list["Filter"]


_OrderFilter = GreaterFilter | AtLeastFilter | LessFilter | AtMostFilter
Filter = EqualFilter | NotEqualFilter | _OrderFilter | InFilter | NotInFilter | AndFilter | OrFilter

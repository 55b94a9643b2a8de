"""Finds fields that an SDK's models received but do not declare; strict validation alone accepts extra fields."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

NO_EXTRA_FIELDS: Mapping[str, Collection[str]] = {}


def find_unknown_fields(
    value: Any, path: str, allowed: Mapping[str, Collection[str]] = NO_EXTRA_FIELDS
) -> Iterator[str]:
    """Yield the paths of unknown fields. `allowed` maps the name of a class to the extra fields that it may have."""
    if isinstance(value, BaseModel):
        for name in (value.__pydantic_extra__ or {}).keys() - allowed.get(type(value).__name__, ()):
            yield f"{path}.{name}"
        for name in type(value).model_fields:
            yield from find_unknown_fields(getattr(value, name), f"{path}.{name}", allowed)
    elif isinstance(value, list):
        for index, element in enumerate(value):
            yield from find_unknown_fields(element, f"{path}[{index}]", allowed)
    elif isinstance(value, dict):
        for name, element in value.items():
            yield from find_unknown_fields(element, f"{path}.{name}", allowed)


def iter_model_classes(union: Any) -> Iterator[type[BaseModel]]:
    """Yield the model classes of a union, which may be wrapped in Annotated."""
    if isinstance(union, type) and issubclass(union, BaseModel):
        yield union
    else:
        for member in get_args(union):
            yield from iter_model_classes(member)

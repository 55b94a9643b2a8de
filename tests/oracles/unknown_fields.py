"""What an SDK's models were given and do not know: strict validation alone lets extra fields pass."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

NONE: Mapping[str, Collection[str]] = {}


def invented(value: Any, path: str, allowed: Mapping[str, Collection[str]] = NONE) -> Iterator[str]:
    """`allowed`: fields beyond those that a class knows, by its name."""
    if isinstance(value, BaseModel):
        for name in (value.__pydantic_extra__ or {}).keys() - allowed.get(type(value).__name__, ()):
            yield f"{path}.{name}"
        for name in type(value).model_fields:
            yield from invented(getattr(value, name), f"{path}.{name}", allowed)
    elif isinstance(value, list):
        for index, held in enumerate(value):
            yield from invented(held, f"{path}[{index}]", allowed)
    elif isinstance(value, dict):
        for name, held in value.items():
            yield from invented(held, f"{path}.{name}", allowed)


def classes(union: Any) -> Iterator[type[BaseModel]]:
    """The models that a union, also one within an Annotated, is made of."""
    if isinstance(union, type) and issubclass(union, BaseModel):
        yield union
    else:
        for member in get_args(union):
            yield from classes(member)

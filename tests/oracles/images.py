"""Checks replies and events of the images API against the openai package, strictly and without unknown fields."""

from typing import Any

from openai.types import (
    ImageEditCompletedEvent,
    ImageEditPartialImageEvent,
    ImageGenCompletedEvent,
    ImageGenPartialImageEvent,
    ImagesResponse,
)
from pydantic import BaseModel

from tests.oracles.unknown_fields import find_unknown_fields

_EVENTS: dict[str, type[BaseModel]] = {
    "image_generation.partial_image": ImageGenPartialImageEvent,
    "image_generation.completed": ImageGenCompletedEvent,
    "image_edit.partial_image": ImageEditPartialImageEvent,
    "image_edit.completed": ImageEditCompletedEvent,
}


def check_images(value: dict[str, Any]) -> None:
    _check(value, ImagesResponse)


def check_image_event(value: dict[str, Any]) -> None:
    _check(value, _EVENTS[value["type"]])


def _check(value: dict[str, Any], kind: type[BaseModel]) -> None:
    assert not [*find_unknown_fields(kind.model_validate(value, strict=True), kind.__name__)]

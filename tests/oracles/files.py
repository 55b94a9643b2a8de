"""Checks files and uploads against the openai package's types, strictly and without unknown fields."""

from typing import Any

from openai.types import FileDeleted, FileObject, Upload
from openai.types.uploads import UploadPart
from pydantic import BaseModel

from tests.oracles.unknown_fields import find_unknown_fields


def check_file(value: dict[str, Any]) -> None:
    _check(value, FileObject)


def check_file_deleted(value: dict[str, Any]) -> None:
    _check(value, FileDeleted)


def check_upload(value: dict[str, Any]) -> None:
    _check(value, Upload)


def check_upload_part(value: dict[str, Any]) -> None:
    _check(value, UploadPart)


def _check(value: dict[str, Any], kind: type[BaseModel]) -> None:
    assert not [*find_unknown_fields(kind.model_validate(value, strict=True), kind.__name__)]

"""Checks containers and their files against the openai package's types, strictly and without unknown fields."""

from typing import Any

from openai.types import ContainerCreateResponse, ContainerListResponse, ContainerRetrieveResponse
from openai.types.containers import FileCreateResponse, FileListResponse, FileRetrieveResponse
from pydantic import BaseModel

from tests.oracles.unknown_fields import find_unknown_fields

_KINDS: dict[str, tuple[type[BaseModel], ...]] = {
    "container": (ContainerCreateResponse, ContainerListResponse, ContainerRetrieveResponse),
    "container.file": (FileCreateResponse, FileListResponse, FileRetrieveResponse),
}


def check_object(value: dict[str, Any]) -> dict[str, Any]:
    """Check any object or page of the containers API, and return it."""
    if value["object"] == "list":
        for entry in value["data"]:
            check_object(entry)
        assert value.keys() == {"object", "data", "first_id", "last_id", "has_more"}
        ids = [entry["id"] for entry in value["data"]] or [""]
        assert (value["first_id"], value["last_id"]) == (ids[0], ids[-1])
    elif value["object"].endswith(".deleted"):  # as OpenAI sends it; the package has no type for it
        assert value == {"id": value["id"], "object": value["object"], "deleted": True}
    else:
        for kind in _KINDS[value["object"]]:
            assert not [*find_unknown_fields(kind.model_validate(value, strict=True), kind.__name__, {})]
    return value

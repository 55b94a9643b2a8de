"""Checks vector stores and their files against the openai package's types, strictly and without unknown fields."""

from typing import Any

from openai.types import VectorStore, VectorStoreDeleted, VectorStoreSearchResponse
from openai.types.vector_stores import (
    FileContentResponse,
    VectorStoreFile,
    VectorStoreFileBatch,
    VectorStoreFileDeleted,
)
from pydantic import BaseModel

from tests.oracles.unknown_fields import find_unknown_fields

_KINDS: dict[str, type[BaseModel]] = {
    "vector_store": VectorStore,
    "vector_store.deleted": VectorStoreDeleted,
    "vector_store.file": VectorStoreFile,
    "vector_store.file.deleted": VectorStoreFileDeleted,
    "vector_store.files_batch": VectorStoreFileBatch,
}
_PAGES: dict[str, type[BaseModel]] = {
    "vector_store.file_content.page": FileContentResponse,
    "vector_store.search_results.page": VectorStoreSearchResponse,
}
_RECORDED = {"VectorStore": {"description"}}  # sent by OpenAI's API, and missing in the types


def check_object(value: dict[str, Any]) -> dict[str, Any]:
    """Check any object or page of the vector stores API, and return it."""
    kind = value["object"]
    if kind == "list":
        for entry in value["data"]:
            check_object(entry)
        assert value.keys() == {"object", "data", "first_id", "last_id", "has_more"}
        ids = [entry["id"] for entry in value["data"]] or [""]
        assert (value["first_id"], value["last_id"]) == (ids[0], ids[-1])
    elif kind in _PAGES:
        for entry in value["data"]:
            _check(entry, _PAGES[kind])
        queries = {"search_query"} if kind == "vector_store.search_results.page" else set()
        assert value.keys() == {"object", "data", "has_more", "next_page"} | queries
    else:
        _check(value, _KINDS[kind])
    return value


def _check(value: dict[str, Any], kind: type[BaseModel]) -> None:
    assert not [*find_unknown_fields(kind.model_validate(value, strict=True), kind.__name__, _RECORDED)]

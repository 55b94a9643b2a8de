"""A field that an API does not know is named by its path in `x-antiphon-ignored`, in whichever object of a body it is.

Covers `protocol/decoding/unknown_fields.py` and the names of the other APIs (`core/dialects/translation.py`).
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.protocol.decoding.unknown_fields import format_path
from tests.api.app import run_api
from tests.api.vector_stores.vector_api import VectorApi
from tests.support.media_files import png

pytestmark = pytest.mark.anyio

Json = dict[str, Any]

IMAGE = f"data:image/png;base64,{b64encode(png()).decode()}"
FILE = "data:text/plain;base64,aGVsbG8="
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = {"name": "f", "description": "It does.", "parameters": SCHEMA}
# Objects of clients and schemas, which may have any fields.
FREE = frozenset({"parameters", "schema", "metadata", "attributes", "variables", "input_schema", "input", "arguments"})
BODIES: dict[str, Json] = {
    "responses": {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "c"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "d"}]},
            {
                "role": "user",
                "content": [
                    {"type": "input_image", "image_url": IMAGE},
                    {"type": "input_file", "file_data": FILE, "filename": "a.txt"},
                ],
            },
        ],
        "tools": [
            {"type": "function", **FUNCTION},
            {"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "custom", "name": "c"}]},
        ],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
        "moderation": {"model": "omni-moderation-latest", "policy": {"input": {"mode": "score"}}},
        "context_management": [{"type": "compaction", "compact_threshold": 10_000}],
    },
    "responses/input_tokens": {"input": "a", "text": {"format": {"type": "json_object"}}},
    "responses/compact": {"input": [{"role": "user", "content": "a"}]},
    "chat/completions": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "b"},
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": IMAGE}},
                    {"type": "file", "file": {"file_data": FILE, "filename": "a.txt"}},
                ],
            },
        ],
        "tools": [
            {"type": "function", "function": FUNCTION},
            {
                "type": "custom",
                "custom": {
                    "name": "c",
                    "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}},
                },
            },
        ],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "auto",
                "tools": [{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "c"}}],
            },
        },
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "completions": {
        "prompt": "a",
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    },
    "messages": {
        "max_tokens": 9,
        "system": [{"type": "text", "text": "a"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "c"}]},
                    {"type": "document", "source": {"type": "text", "data": "d"}},
                ],
            },
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "metadata": {"user_id": "u"},
    },
    "messages/count_tokens": {"messages": [{"role": "user", "content": "a"}]},
    "embeddings": {"input": "a"},
    "moderations": {"input": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": IMAGE}}]},
    "audio/speech": {"input": "a", "voice": {"id": "v"}, "response_format": "wav"},
    "images/generations": {"prompt": "a"},
    "images/edits": {"prompt": "a", "images": [{"image_url": IMAGE}], "mask": {"image_url": IMAGE}},
    "conversations": {"items": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]},
    "uploads": {
        "filename": "a",
        "purpose": "user_data",
        "bytes": 1,
        "mime_type": "text/plain",
        "expires_after": {"anchor": "created_at", "seconds": 3600},
    },
    "vector_stores": {
        "name": "a",
        "expires_after": {"anchor": "last_active_at", "days": 1},
        "file_ids": ["FILE"],
        "chunking_strategy": {
            "type": "static",
            "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 10},
        },
    },
    "vector_stores/STORE": {"expires_after": {"anchor": "last_active_at", "days": 1}},
    "vector_stores/STORE/files": {"file_id": "FILE", "chunking_strategy": {"type": "auto"}},
    "vector_stores/STORE/file_batches": {"files": [{"file_id": "FILE", "chunking_strategy": {"type": "auto"}}]},
    "vector_stores/STORE/search": {
        "query": "a",
        "filters": {"type": "and", "filters": [{"type": "eq", "key": "a", "value": 1}]},
        "ranking_options": {"ranker": "auto", "hybrid_search": {"embedding_weight": 1, "text_weight": 1}},
    },
}
INEFFECTIVE = {"uploads": ("mime_type",)}  # fields of these bodies that have no effect
MODELS = ("responses", "chat", "completions", "messages", "embeddings", "audio")


def list_objects(value: Any, path: Any = ()) -> Iterator[tuple[Any, Json]]:
    """Yield all objects with declared fields, and their paths."""
    if isinstance(value, dict):
        yield path, value
        for key, entry in value.items():
            if not (key in FREE and isinstance(entry, dict)):
                yield from list_objects(entry, (path, key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from list_objects(entry, (path, index))


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.shows("A.18")
async def test_an_unknown_field_is_named_by_its_path(path: str) -> None:
    async with run_api(moderation_model="fake", image_service=("fake",)) as server:
        vector_stores = VectorApi(server)
        file_id, store_id = await vector_stores.upload("a"), (await vector_stores.create())["id"]
        template = json.dumps(BODIES[path] | ({"model": "fake"} if path.startswith(MODELS) else {}))
        for place, _ in list_objects(json.loads(template)):
            body = json.loads(template.replace("FILE", file_id))
            dict(list_objects(body))[place]["zzz"] = 1
            answer = await server.post(path.replace("STORE", store_id), body)
            assert answer.status == 200, answer.body
            names = (answer.header(b"x-antiphon-ignored") or b"").decode().split(", ")
            assert names == [format_path((place, "zzz")), *INEFFECTIVE.get(path, ())]


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("completions", {"prompt": "a", "top_logprobs": 2}, b"top_logprobs"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "include": []}, b"include"),
        ("messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "a"}], "user": "u"}, b"user"),
    ],
)
async def test_a_field_of_another_api_has_the_name_that_was_sent(path: str, body: Json, expected: bytes) -> None:
    async with run_api() as server:
        answer = await server.post(path, {"model": "fake", **body})
        assert (answer.status, answer.header(b"x-antiphon-ignored")) == (200, expected)


async def test_fields_that_need_another_one_are_told_without_it() -> None:
    async with run_api() as server:
        answer = await server.post("vector_stores", {"chunking_strategy": {"type": "auto"}})
        assert (answer.status, answer.header(b"x-antiphon-ignored")) == (200, b"chunking_strategy")

"""/openapi.json (OpenAPI 3.1), generated from the types of requests and replies; /docs, a page that shows it.

The document is generated at the first request. The page loads nothing from other hosts: no internet, no CDN.
"""

import asyncio
import base64
import re
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec

from antiphon.limits import Limits
from antiphon.transport.endpoints.openapi_schemas import Json, complete_schemas
from antiphon.transport.http.channel import Header
from antiphon.transport.http.error_responses import Problem
from antiphon.transport.http.request import Request
from antiphon.transport.middleware.auth import PUBLIC
from antiphon.transport.middleware.routing import Route, collect_routes

PAGE = Path(__file__).parent / "static" / "docs.html"

_PATH_NOTE = "Every `/v1` path also exists below `/v3`, and without a prefix."
_ERRORS = {
    400: "The request is not valid; `param` names the field.",
    401: "The API key is missing or wrong.",
    403: "This host or origin may not call the server.",
    404: "The resource does not exist.",
    413: "The body is too large.",
    415: "The body is of another media type than the route takes, or is compressed.",
    416: "The range lies outside of the content.",
    429: "The server is at capacity; see Retry-After.",
    500: "The server or an engine failed.",
    503: "No healthy engine, or the server is shutting down; see Retry-After.",
}

_NEW_WORK_ERRORS = (400, 404, 413, 415, 429, 500, 503)

_MODEL = "MODEL"  # in the examples, unless the server has a model
_CHAT = {"model": _MODEL, "messages": [{"role": "user", "content": "Hello!"}]}
_MESSAGE = {"type": "message", "role": "user", "content": "Hello!"}
_QUESTION, _PASSAGES = "What is the capital of France?", ["Paris is.", "Bread is."]
_FACT = "Paris is the capital of France."
_STORE = "/v1/vector_stores/{vector_store_id}"
# bodies by path
_EXAMPLES: dict[str, Json] = {
    "/v1/chat/completions": _CHAT,
    "/v1/classify": {"model": _MODEL, "input": _FACT},
    "/v1/completions": {"model": _MODEL, "prompt": "Once upon a time", "max_tokens": 16},
    "/v1/containers": {"name": "numbers", "memory_limit": "1g"},
    "/v1/containers/{container_id}/files": {"file_id": "file-1"},
    "/v1/conversations": {"items": [_MESSAGE], "metadata": {"topic": "demo"}},
    "/v1/conversations/{conversation_id}": {"metadata": {"topic": "demo"}},
    "/v1/conversations/{conversation_id}/items": {"items": [_MESSAGE]},
    "/v1/detokenize": {"model": _MODEL, "tokens": [1, 2, 3]},
    "/v1/embeddings": {"model": _MODEL, "input": ["Hello!", "Good morning."]},
    "/v1/messages": {**_CHAT, "max_tokens": 256},
    "/v1/messages/count_tokens": _CHAT,
    "/v1/pooling": {"model": _MODEL, "input": _FACT},
    "/v1/rerank": {"model": _MODEL, "query": _QUESTION, "documents": _PASSAGES},
    "/v1/responses": {"model": _MODEL, "input": "Hello!"},
    "/v1/responses/compact": {"model": _MODEL, "input": [{"role": "user", "content": "Hello!"}]},
    "/v1/responses/input_tokens": {"model": _MODEL, "input": "Hello!"},
    "/v1/responses/{response_id}/tool_outputs": {
        "tool_call_id": "call_1", "output": [{"type": "output_text", "text": "22 °C, sunny"}],
    },
    "/v1/score": {"model": _MODEL, "text_1": _QUESTION, "text_2": _PASSAGES},
    "/v1/tokenize": {"model": _MODEL, "prompt": "Hello!"},
    "/v1/uploads": {"bytes": 4, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"},
    "/v1/uploads/{upload_id}/complete": {"part_ids": ["part_1"]},
    "/v1/vector_stores": {"name": "manuals", "file_ids": []},
    _STORE: {"name": "manuals"},
    f"{_STORE}/file_batches": {"file_ids": ["file-1", "file-2"]},
    f"{_STORE}/files": {"file_id": "file-1", "attributes": {"year": 2026}},
    f"{_STORE}/files/{{file_id}}": {"attributes": {"year": 2026}},
    f"{_STORE}/search": {"query": "How is the filter cleaned?", "max_num_results": 5},
    "/v2/rerank": {"model": _MODEL, "query": _QUESTION, "documents": _PASSAGES},
}  # fmt: skip


class DocsEndpoint:
    """Serves the OpenAPI document and the page."""

    def __init__(self, routes: Sequence[Route], version: str, limits: Limits, model: str = _MODEL) -> None:
        """`model`: the model name in the examples."""
        documented = [*routes, *collect_routes(self)]
        self._render = cache(lambda: msgspec.json.encode(describe(documented, version, limits, model)))

    @Route("GET", "/openapi.json", gives=Json)
    async def document(self, request: Request) -> None:
        """Get the OpenAPI 3.1 document of this API."""
        await request.reply(200, await asyncio.to_thread(self._render))  # takes too long for the event loop

    @Route("GET", "/docs", media_type="text/html", gives=str)
    async def page(self, request: Request) -> None:
        """Show the documentation of this API."""
        body, headers = await asyncio.to_thread(_load_page)
        await request.reply(200, body, headers)


def describe(routes: Sequence[Route], version: str, limits: Limits, model: str = _MODEL) -> Json:
    """Return the OpenAPI document of these routes, with the operator's limits."""
    route_types = [(route.query, route.takes, route.gives, route.streams) for route in routes]
    types = [kind for kinds in route_types for kind in kinds if kind is not None]
    shapes, components = msgspec.json.schema_components([Problem, *types], ref_template="#/components/schemas/{name}")
    complete_schemas(components, limits)
    queries = {name: components.pop(name) for name in {route.query.__name__ for route in routes if route.query}}
    schemas = iter(shapes)
    error = {"description": "The request failed.", "content": _content("application/json", next(schemas))}
    paths: dict[str, Json] = {}
    for route in routes:
        operations = paths.setdefault(route.path.replace("...}", "}"), {})
        operations[route.method.lower()] = _make_operation(route, schemas, queries, model)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Antiphon", "version": version, "description": _PATH_NOTE},
        "servers": [{"url": "/"}],
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {"Error": error},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _make_operation(route: Route, schemas: Iterator[Json], queries: dict[str, Json], model: str) -> Json:
    """Describe one route. Takes its schemas from `schemas`, in the order in which `describe` listed the types."""
    operation_id = "_".join([route.method.lower(), *re.findall(r"\w+", route.path.removeprefix("/v1"))])
    tag = route.path.split("/")[2] if route.path.startswith("/v1/") else "server"
    operation: Json = {"operationId": operation_id, "summary": route.summary, "tags": [tag]}
    if route.description:
        operation["description"] = route.description
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)", route.path)
    ]
    if route.query is not None:
        next(schemas)
        parameters += _query_parameters(queries[route.query.__name__])
    if parameters:
        operation["parameters"] = parameters
    if route.takes is not None:
        content = _content(route.takes_media_type, next(schemas))
        if (example := _EXAMPLES.get(route.path)) is not None:
            content[route.takes_media_type]["example"] = example | ({"model": model} if "model" in example else {})
        operation["requestBody"] = {"required": not route.takes_nothing, "content": content}
    reply: Json = {"description": "Success."}
    if route.gives is not None:
        reply["content"] = _content(route.media_type, next(schemas))
    for media_type in route.gives_too:
        reply.setdefault("content", {})[media_type] = {"schema": {"type": "string", "format": "binary"}}
    if route.streams is not None:
        reply.setdefault("content", {}).update(_content("text/event-stream", next(schemas)))
    operation["responses"] = {"200": reply, **_error_responses(route)}
    if route.path.encode() in PUBLIC:
        operation["security"] = []
    return operation


def _error_responses(route: Route) -> Json:
    always = () if route.path.encode() in PUBLIC else (401, 403)
    of_new_work = _NEW_WORK_ERRORS if route.new_work else ()
    return {
        str(status): {"$ref": "#/components/responses/Error", "description": _ERRORS.get(status, "The request failed.")}
        for status in sorted({*always, *of_new_work, *route.errors})
    }


def _content(media_type: str, schema: Json) -> Json:
    return {media_type: {"schema": schema}}


def _query_parameters(shape: Json) -> list[Json]:
    """Describe the query. Lists are repeated as the SDKs do: `include[]=a&include[]=b`."""
    return [
        {"name": f"{name}[]" if field.get("type") == "array" else name, "in": "query", "schema": field}
        for name, field in shape["properties"].items()
    ]


@cache
def _load_page() -> tuple[bytes, list[Header]]:
    """Load the page, with headers that allow only its own script and style."""
    page = PAGE.read_bytes()
    policy = (
        f"default-src 'none'; script-src {_csp_hash(page, b'script')}; style-src {_csp_hash(page, b'style')}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    ]


def _csp_hash(page: bytes, element: bytes) -> str:
    content = page.partition(b"<%b>" % element)[2].partition(b"</%b>" % element)[0]
    return f"'sha256-{base64.b64encode(sha256(content).digest()).decode()}'"

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
EXAMPLES = PAGE.with_name("examples.json")  # bodies by path

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
    examples = msgspec.json.decode(EXAMPLES.read_bytes(), type=dict[str, Json])
    paths: dict[str, Json] = {}
    for route in routes:
        operations = paths.setdefault(route.path.replace("...}", "}"), {})
        example = examples.get(route.path, {})
        example |= {"model": model} if "model" in example else {}
        operations[route.method.lower()] = _make_operation(route, schemas, queries, example)
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


def _make_operation(route: Route, schemas: Iterator[Json], queries: dict[str, Json], example: Json) -> Json:
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
        if example:
            content[route.takes_media_type]["example"] = example
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

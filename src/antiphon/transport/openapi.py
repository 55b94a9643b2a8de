"""/openapi.json, made from the types that requests are read into and replies are made of; /docs, a page that shows it.

The document is made when it is first asked for. The page needs nothing from elsewhere: no internet, no CDN.
"""

import asyncio
import base64
import re
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from antiphon.limits import Limits
from antiphon.transport.guard import PUBLIC
from antiphon.transport.http import Header, Request, Route
from antiphon.transport.problems import Problem
from antiphon.transport.shapes import complete

PAGE = Path(__file__).parent / "static" / "docs.html"

Json = dict[str, Any]

_ELSEWHERE = "Every `/v1` path is there under `/v3`, too, and without either."
_ERRORS = {
    400: "The request is not valid; `param` says where.",
    401: "The API key is missing or wrong.",
    403: "This host or origin may not call the server.",
    404: "There is no such thing.",
    413: "The body is too large.",
    415: "The body is not JSON, or compressed.",
    429: "The server is at capacity; see Retry-After.",
    500: "The server or an engine failed.",
    503: "No healthy engine, or the server is shutting down; see Retry-After.",
}


class Docs:
    def __init__(self, routes: Sequence[Route], version: str, limits: Limits | None = None) -> None:
        self._described = [*routes, *self.routes()]
        self._version = version
        self._limits = limits
        self._document: bytes | None = None

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/openapi.json",
                endpoint=self.document,
                summary="This API as OpenAPI 3.1",
                gives=Json,
            ),
            Route(
                method="GET",
                path="/docs",
                endpoint=self.page,
                summary="This API as a page",
                media_type="text/html",
                gives=str,
            ),
        ]

    async def document(self, request: Request) -> None:
        if self._document is None:
            self._document = await asyncio.to_thread(self._make)  # takes too long for the event loop
        await request.reply(200, self._document)

    async def page(self, request: Request) -> None:
        body, headers = await asyncio.to_thread(_page)
        await request.reply(200, body, headers)

    def _make(self) -> bytes:
        return msgspec.json.encode(describe(self._described, self._version, self._limits))


def describe(routes: Sequence[Route], version: str, limits: Limits | None = None) -> Json:
    """The OpenAPI document of these routes. `limits`: the operator's, if they are not the usual ones."""
    given = [(route.query, route.takes, route.gives, route.streams) for route in routes]
    types = [kind for kinds in given for kind in kinds if kind is not None]
    shapes, components = msgspec.json.schema_components([Problem, *types], ref_template="#/components/schemas/{name}")
    complete(components, limits or Limits())
    queries = {name: components.pop(name) for name in {route.query.__name__ for route in routes if route.query}}
    schemas = iter(shapes)
    error = {"description": "Refused.", "content": _content("application/json", next(schemas))}
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(_plain(route.path), {})[route.method.lower()] = _operation(route, schemas, queries)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Antiphon", "version": version, "description": _ELSEWHERE},
        "servers": [{"url": "/"}],
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {"Error": error},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, schemas: Iterator[Json], queries: dict[str, Json]) -> Json:
    """Takes the schemas of this route from `schemas`, in the order in which `describe` gave the types."""
    operation: Json = {"operationId": _operation_id(route), "summary": route.summary, "tags": [_tag(route)]}
    if route.description:
        operation["description"] = route.description
    parameters = [_parameter(name) for name in re.findall(r"{(\w+)", route.path)]
    if route.query is not None:
        next(schemas)
        parameters += _query_parameters(queries[route.query.__name__])
    if parameters:
        operation["parameters"] = parameters
    if route.takes is not None:
        content = _content(route.takes_media_type, next(schemas))
        if route.example is not None:
            content[route.takes_media_type]["example"] = route.example
        operation["requestBody"] = {"required": not route.takes_nothing, "content": content}
    reply: Json = {"description": "Done."}
    if route.gives is not None:
        reply["content"] = _content(route.media_type, next(schemas))
    for media_type in route.gives_too:
        reply["content"][media_type] = {"schema": {"type": "string", "format": "binary"}}
    if route.streams is not None:
        reply.setdefault("content", {}).update(_content("text/event-stream", next(schemas)))
    operation["responses"] = {"200": reply, **_failures(route)}
    if route.path.encode() in PUBLIC:
        operation["security"] = []
    return operation


def _failures(route: Route) -> Json:
    always = () if route.path.encode() in PUBLIC else (401, 403)
    return {
        str(status): {"$ref": "#/components/responses/Error", "description": _ERRORS.get(status, "Refused.")}
        for status in sorted({*always, *route.errors})
    }


def _content(media_type: str, schema: Json) -> Json:
    return {media_type: {"schema": schema}}


def _parameter(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(shape: Json) -> list[Json]:
    """A list is repeated, in the way of the SDKs: `include[]=a&include[]=b`."""
    return [
        {"name": f"{name}[]" if field.get("type") == "array" else name, "in": "query", "schema": field}
        for name, field in shape["properties"].items()
    ]


def _operation_id(route: Route) -> str:
    words = re.findall(r"\w+", route.path.removeprefix("/v1"))
    return "_".join([route.method.lower(), *words])


def _tag(route: Route) -> str:
    """The first segment behind /v1; what is about the server itself goes together."""
    return route.path.split("/")[2] if route.path.startswith("/v1/") else "server"


def _plain(path: str) -> str:
    return path.replace("...}", "}")


@cache
def _page() -> tuple[bytes, list[Header]]:
    """The page, and headers that let nothing run in it but what is in it."""
    page = PAGE.read_bytes()
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(page, b'script')}",
            f"style-src {_hash(page, b'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
    return page, [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    ]


def _hash(page: bytes, element: bytes) -> str:
    inside = page.partition(b"<%b>" % element)[2].partition(b"</%b>" % element)[0]
    return f"'sha256-{base64.b64encode(sha256(inside).digest()).decode()}'"

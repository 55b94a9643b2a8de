"""/openapi.json, made from the types that requests are read into and replies are made of; /docs, a page that shows it.

The document is made when it is first asked for. The page needs nothing from elsewhere: no internet, no CDN.

What /openapi.json has to say beyond the types: where requests may be written shorter, and what they need besides.

The types are the one shape that requests are brought to (protocol/decoding/normalise.py), so they know nothing of a
string that stands for more, or of a null that stands for nothing. Bounds that the operator sets are told as they are.
"""

import asyncio
import base64
import re
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import msgspec

from antiphon.limits import Limits
from antiphon.protocol.bodies.embeddings import CreateEmbedding
from antiphon.protocol.decoding.codec import MOST_ITEMS
from antiphon.protocol.decoding.normalise import STRINGS_TOO
from antiphon.protocol.types.anthropic.request import (
    CountTokens,
    CreateMessage,
    InputBlock,
    MessageMetadata,
    MessageTool,
    MessageToolChoice,
    OutputConfig,
    Thinking,
)
from antiphon.protocol.types.builtin_items import McpListedTool
from antiphon.protocol.types.conversation import CreateConversation
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.parts import MessagePart, ToolOutputPart
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Format, ReasoningConfig, TextConfig
from antiphon.protocol.types.tool_choice import ToolChoice
from antiphon.protocol.types.tools import Tool
from antiphon.transport.http.error_responses import Problem
from antiphon.transport.http.request import Header, Request, Route
from antiphon.transport.middleware.auth import PUBLIC

Json = dict[str, Any]

# Where a null is the same as nothing at all.
_NULLS_TOO: frozenset[str] = frozenset(
    kind.__name__
    for kind in (
        *(CreateResponse, CreateConversation, CreateEmbedding, CreateMessage, CountTokens, TextConfig, ReasoningConfig),
        *(McpListedTool, MessageTool, MessageMetadata, OutputConfig),
        *(MessageToolChoice.__subclasses__() + Thinking.__subclasses__()),
        *(get_args(InputItem) + get_args(MessagePart) + get_args(ToolOutputPart) + get_args(InputBlock)),
        *(get_args(Tool) + get_args(ToolChoice) + get_args(Format)),
    )
    if isinstance(kind, type)
)
# What their types leave open: it may come from elsewhere in other places, or another field stands in for it.
_NEEDED: dict[str, tuple[str, ...]] = {
    "ItemReference": ("id",),
    "CreateChat": ("messages",),
    "CreateCompletion": ("prompt",),
    "MessageTool": ("input_schema",),
}
# Not of pictures: what is listed leaves their URLs out, unless they are asked for.
_NEEDED_ONE_OF: dict[str, tuple[str, ...]] = {
    "InputFile": ("file_data", "file_id", "file_url"),
    "SubmitToolOutput": ("tool_call_id", "call_id"),
}
_TOLD_BY_ITSELF = {"Message", "SummaryText", "AutoContainer"}  # by what is in it, or where it is
_ANYTHING = ("array", "boolean", "number", "object", "string")
_NAME = {"pattern": "^[A-Za-z0-9_-]{1,128}$"}
_SOME = {"minLength": 1}


def complete(components: dict[str, Json], limits: Limits) -> None:
    """The schemas of all types that have a name, in place."""
    _allow_strings(components)
    for name in _NULLS_TOO & components.keys():
        _allow_nulls(components[name])
    for name, fields in _NEEDED.items():
        if name in components:
            _need(components[name], fields)
    for name, fields in _NEEDED_ONE_OF.items():
        if name in components:
            components[name]["anyOf"] = [_with(field) for field in fields]
    for name in _TOLD_BY_ITSELF & components.keys():
        components[name]["required"].remove("type")
    for name, bounds in _bounds(limits).items():
        properties = components.get(name, {}).get("properties", {})
        for field in properties.keys() & bounds.keys():
            _bound(properties[field], bounds[field])


def _allow_strings(components: dict[str, Json]) -> None:
    for name, fields in STRINGS_TOO.items():
        properties = components.get(name, {}).get("properties", {})
        for field in properties.keys() & fields:
            shape = properties[field]
            default = {"default": shape.pop("default")} if "default" in shape else {}
            properties[field] = {"anyOf": [{"type": "string"}, *shape.get("anyOf", [shape])], **default}


def _allow_nulls(component: Json) -> None:
    """In whatever is not required; and nowhere else, since a null is what is missing then."""
    required = component.get("required", ())
    for name, shape in component.get("properties", {}).items():
        if name in required:
            if not shape:
                shape["type"] = list(_ANYTHING)
        elif not _takes_null(shape):
            component["properties"][name] = _or_null(shape)


def _takes_null(shape: Json) -> bool:
    return not shape.keys() - {"default", "description"} or {"type": "null"} in shape.get("anyOf", ())


def _or_null(shape: Json) -> Json:
    default = {"default": shape.pop("default")} if "default" in shape else {}
    return {"anyOf": [*(shape["anyOf"] if shape.keys() == {"anyOf"} else [shape]), {"type": "null"}], **default}


def _need(component: Json, fields: tuple[str, ...]) -> None:
    component["required"] = [*component.get("required", ()), *fields]
    for field in fields:
        shape = component["properties"][field]
        shape.pop("default", None)
        if "anyOf" in shape:
            shape["anyOf"] = [one for one in shape["anyOf"] if one != {"type": "null"}]


def _with(field: str) -> Json:
    """It is there, and no null."""
    return {"required": [field], "properties": {field: {"type": "string"}}}


def _bounds(limits: Limits) -> dict[str, dict[str, Json]]:
    key = {"minLength": 1, "maxLength": limits.metadata_key, "pattern": r"^[^\x00]*$"}
    metadata = {"maxProperties": limits.metadata_pairs, "propertyNames": key}
    stops = {"maxItems": limits.stop_strings}
    return {
        "CreateResponse": {"metadata": metadata, "prompt_cache_key": _SOME},
        "CreateConversation": {"metadata": metadata, "items": {"maxItems": MOST_ITEMS}},
        "UpdateConversation": {"metadata": metadata},
        "CreateItems": {"items": {"maxItems": MOST_ITEMS}},
        "CreateMessage": {"stop_sequences": stops, "messages": {"minItems": 1}},
        "CountTokens": {"messages": {"minItems": 1}},
        "MessageTool": {"name": _NAME},
        "FunctionTool": {"name": _NAME},
        "AudioForm": {"model": _SOME},
    }


def _bound(shape: Json, bounds: Json) -> None:
    """The one of its forms that is no null."""
    forms = [one for one in shape.get("anyOf", [shape]) if one.get("type") != "null"]
    forms[0].update(bounds)


PAGE = Path(__file__).parent / "static" / "docs.html"


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

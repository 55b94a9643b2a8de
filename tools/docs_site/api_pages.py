"""Renders docs/api: a page for each group of routes, with fields, types, defaults, limits and errors.

The source is the OpenAPI document that a server generates from its own types; errors and limits come from the same
classes that the server uses.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import cache, partial
from pathlib import Path
from string import Template
from typing import Any, get_args

import msgspec
from msgspec.structs import fields

from antiphon import errors
from antiphon.config import Config
from antiphon.engines.fake import FakeEngine
from antiphon.limits import Limits
from antiphon.wiring import build_app
from tools.docs_site.navigation import slugify

Json = dict[str, Any]

# Pages of routes by the first segment of their paths, in the order of the navigation.
PAGES: dict[str, tuple[str, str]] = {
    "responses": ("Responses", "responses"),
    "conversations": ("Conversations", "conversations"),
    "chat": ("Chat completions and completions", "chat completions"),
    "messages": ("Messages", "messages"),
    "files": ("Files and uploads", "files uploads"),
    "vector-stores": ("Vector stores", "vector_stores"),
    "containers": ("Containers and skills", "containers skills"),
    "images": ("Images", "images"),
    "audio": ("Audio", "audio"),
    "embeddings": ("Embeddings, tokens, ranking", "embeddings tokenize detokenize score rerank classify pooling"),
    "moderations": ("Moderations", "moderations"),
    "models": ("Models", "models capabilities"),
    "activity": ("Activity and administration", "antiphon"),
    "server": ("The server", "health ready version metrics openapi.json docs"),
}
# Pages of types that many routes share: title, and what their types are to a reader.
SHARED = {
    "tools": ("Tools", "The tools that a request can declare in `tools`, and the values of `tool_choice`."),
    "items": ("Items", "The items of `input`, of `output`, and of conversations, with their parts."),
    "events": ("Events", "The events of a streamed response, over SSE and [WebSocket](../websocket.md)."),
}
_EVENTS = "text/event-stream"
_LONG_UNION = 8  # a longer one of items, tools or events is named by its page
_FIRST = ("type", "model", "input", "messages", "prompt", "instructions", "stream")  # fields that begin a table
_INDEX = Path(__file__).with_name("api_index.md")
_MARK = "<!-- Generated from the types of the server by `make docs`. Do not edit. -->"


class Reference:
    """The OpenAPI document, and which page has which type."""

    def __init__(self, document: Json) -> None:
        self.paths: dict[str, Json] = document["paths"]
        self.schemas: dict[str, Json] = document["components"]["schemas"]
        create, response = (self.schemas[name]["properties"] for name in ("CreateResponse", "Response"))
        stream = self.paths["/v1/responses"]["post"]["responses"]["200"]["content"][_EVENTS]
        self.unions = {
            "[tool](tools.md)": {*_find_refs(create["tools"])},
            "[tool choice](tools.md)": {*_find_refs(create["tool_choice"])},
            "[item](items.md)": {*_find_refs([create["input"], response["output"]])},
            "[event](events.md)": {*_find_refs(stream)},
        }
        self.homes: dict[str, str] = {}  # type → page#anchor
        self.sent: set[str] = set()  # types that clients send
        self._place("tools", _find_refs([create["tools"], create["tool_choice"]]))
        self._place("items", _find_refs([create["input"], response["output"]]))
        for page in PAGES:
            for _, operation in self.list_routes(page):
                self._place_route(page, operation)
            if page == "responses":
                self._place("events", _find_refs(stream))

    def list_routes(self, page: str) -> Iterator[tuple[str, Json]]:
        segments = PAGES[page][1].split()
        for path, operations in self.paths.items():
            if re.sub(r"^/v\d", "", path).split("/")[1] in segments:
                yield from ((f"{method.upper()} {path}", operation) for method, operation in operations.items())

    def list_types(self, page: str) -> list[str]:
        """Return the types with a section of their own on a page."""
        return [name for name, home in self.homes.items() if home == f"{page}.md#{slugify(self.get_title(name))}"]

    def get_title(self, name: str) -> str:
        """Return the heading of a type: its name in the document, or the type of an event as it is sent."""
        is_event = name in self.unions["[event](events.md)"]
        return str(self.schemas[name]["properties"]["type"]["enum"][0]) if is_event else name

    def link(self, name: str, page: str) -> str:
        return f"[{self.get_title(name)}]({self.homes[name].removeprefix(f'{page}.md')})"

    def _place_route(self, page: str, operation: Json) -> None:
        """Put the type of the body into the section of its route, and other types on its page."""
        bodies = [content["schema"] for content in operation.get("requestBody", {}).get("content", {}).values()]
        for name in filter(None, map(_get_name, bodies)):
            self.homes.setdefault(name, f"{page}.md#{slugify(operation['summary'])}")
        self._mark_sent(_find_refs([bodies, operation.get("parameters")]))
        replies = operation["responses"]["200"].get("content", {})
        if page == "responses":
            replies = {media: content for media, content in replies.items() if media != _EVENTS}
        own = [self.schemas[name] for name in filter(None, map(_get_name, bodies))]
        self._place(page, _find_refs([own, bodies, operation.get("parameters"), replies]))

    def _place(self, page: str, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.homes:
                self.homes[name] = f"{page}.md#{slugify(self.get_title(name))}"
                self._place(page, _find_refs(self.schemas[name]))

    def _mark_sent(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.sent:
                self.sent.add(name)
                self._mark_sent(_find_refs(self.schemas[name]))


def _get_name(shape: Json) -> str:
    """Return the name of a type that a shape refers to, or ""."""
    return str(shape.get("$ref", "")).rpartition("/")[2]


def _find_refs(shape: Any) -> Iterator[str]:
    match shape:
        case {"$ref": str() as ref} if "/schemas/" in ref:
            yield _get_name(shape)
        case dict():
            for key, value in shape.items():
                if key != "discriminator":
                    yield from _find_refs(value)
        case list():
            for value in shape:
                yield from _find_refs(value)


@cache
def load_reference() -> Reference:
    """Ask a server for its document, in this process."""
    app = build_app(Config.from_settings(engine="fake", store="memory"), FakeEngine())
    body = bytearray()
    scope = {
        "type": "http", "http_version": "1.1", "scheme": "http", "method": "GET", "path": "/openapi.json",
        "raw_path": b"/openapi.json", "query_string": b"", "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
    }  # fmt: skip

    async def receive() -> Json:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, Any]) -> None:
        body.extend(message.get("body", b""))

    asyncio.run(app(scope, receive, send))
    return Reference(msgspec.json.decode(body))


def render_routes(page: str) -> str:
    reference = load_reference()
    lines = [_MARK, "", f"# {PAGES[page][0]}", ""]
    for route, operation in reference.list_routes(page):
        lines += _render_route(reference, page, route, operation)
    types = reference.list_types(page)
    if types:
        lines += ["## Objects", ""]
    return "\n".join([*lines, *(line for name in types for line in _render_type(reference, page, name))])


def render_types(page: str) -> str:
    reference = load_reference()
    title, about = SHARED[page]
    types = [line for name in reference.list_types(page) for line in _render_type(reference, page, name, "##")]
    return "\n".join([_MARK, "", f"# {title}", "", about, "", *types])


def _render_route(reference: Reference, page: str, route: str, operation: Json) -> Iterator[str]:
    yield from (f"## {operation['summary']}", "", f"`{route}`", "")
    if text := operation.get("description"):
        yield from (text, "")
    parameters = operation.get("parameters", [])
    if parameters:
        rows = {one["name"]: one["schema"] for one in parameters}
        required = [one["name"] for one in parameters if one.get("required")]
        yield from _render_fields(reference, page, "parameter", rows, required)
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield from _render_body(reference, page, media_type, content["schema"], operation["summary"])
        if example := content.get("example"):
            yield from ("```json", msgspec.json.format(msgspec.json.encode(example), indent=2).decode(), "```", "")
    replies = operation["responses"]["200"].get("content", {})
    texts = [f"{_render_shape(reference, page, one['schema'])} (`{media}`)" for media, one in replies.items()]
    failures = ", ".join(status for status in operation["responses"] if status != "200")
    yield from (f"Reply: {' or '.join(texts) or 'empty'}.", "")
    yield from (f"Errors: {failures}, see [errors](index.md#errors)." if failures else "Errors: none.", "")
    if operation.get("security") == []:
        yield from ("Needs no key.", "")


def _render_body(reference: Reference, page: str, media_type: str, schema: Json, title: str) -> Iterator[str]:
    name = _get_name(schema)
    shape = reference.schemas.get(name, schema)
    if name and not reference.homes[name].endswith(f"#{slugify(title)}"):
        yield from (f"Body (`{media_type}`): as of {reference.link(name, page)}.", "")
    elif "properties" in shape:
        yield from (f"Body (`{media_type}`):", "")
        yield from _render_object(reference, page, shape, is_sent=True)
    else:
        yield from (f"Body (`{media_type}`): {_render_shape(reference, page, schema)}.", "")


def _render_type(reference: Reference, page: str, name: str, level: str = "###") -> Iterator[str]:
    shape = reference.schemas[name]
    yield from (f"{level} {reference.get_title(name)}", "")
    if "properties" in shape:
        yield from _render_object(reference, page, shape, is_sent=name in reference.sent)
    else:
        yield from (f"{_render_shape(reference, page, shape)}.", "")


def _render_object(reference: Reference, page: str, shape: Json, is_sent: bool) -> Iterator[str]:
    if text := shape.get("description"):
        yield from (re.sub(r"\s+", " ", text.partition("\n\n")[0]), "")
    if is_sent:
        yield from _render_fields(reference, page, "field", shape["properties"], shape.get("required", ()))
    else:
        yield from ("| field | type |", "|---|---|")
        for name, field in shape["properties"].items():
            yield _render_row(f"`{name}`", _render_shape(reference, page, field, shows_null=True))
        yield ""
    if choices := [f"`{one['required'][0]}`" for one in shape.get("anyOf", ())]:
        yield from (f"One of {', '.join(choices)} is required.", "")


def _render_fields(
    reference: Reference, page: str, title: str, properties: dict[str, Json], required: Iterable[str]
) -> Iterator[str]:
    """Render the fields of a request, those first that most requests have."""
    yield from (f"| {title} | type | default | limits |", "|---|---|---|---|")
    for name in sorted(properties, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST)):
        shape = properties[name]
        default = "required" if name in required else _render_default(shape.get("default"))
        kind = _render_shape(reference, page, shape, shows_null=name in required)
        yield _render_row(f"`{name}`", kind, default, _render_limits(shape))
    yield ""


def _render_row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _render_default(value: Any) -> str:
    return "" if value in (None, [], {}, "") else f"`{msgspec.json.encode(value).decode()}`"


def _render_shape(reference: Reference, page: str, shape: Json, shows_null: bool = False) -> str:
    render = partial(_render_shape, reference, page)
    match shape:
        case {"$ref": _}:
            return reference.link(_get_name(shape), page)
        case {"anyOf": forms}:
            return _render_union(reference, page, [one for one in forms if shows_null or one != {"type": "null"}])
        case {"enum": values}:
            return ", ".join(f"`{value}`" for value in values)
        case {"type": "array"}:
            return f"list of {_pluralise(render(shape['items']))}" if shape.get("items") else "list"
        case {"type": "object", "additionalProperties": dict() as values} if values:
            return f"object of {_pluralise(render(values))}"
        case {"type": "string", "format": "binary"} | {"type": "string", "contentEncoding": "base64"}:
            return "bytes"
        case {"type": [*names]}:
            return " or ".join(names)
        case {"type": name}:
            return str(name)
    return "any"


def _pluralise(text: str) -> str:
    return re.sub(r"^\[?(string|integer|number|object|list|item|tool|event)\b", r"\g<0>s", text)


def _render_union(reference: Reference, page: str, forms: list[Json]) -> str:
    names = {_get_name(one) for one in forms if "$ref" in one}
    label = next((label for label, union in reference.unions.items() if names <= union), "")
    if label and len(names) > _LONG_UNION:
        forms = [one for one in forms if "$ref" not in one]
        return " or ".join([*(_render_shape(reference, page, one) for one in forms), label])
    return " or ".join(dict.fromkeys(_render_shape(reference, page, one) for one in forms)) or "null"


_LIMITS: dict[str, Callable[[Any], str]] = {
    "minimum": "at least {:,}".format,
    "exclusiveMinimum": "more than {:,}".format,
    "maximum": "at most {:,}".format,
    "exclusiveMaximum": "less than {:,}".format,
    "minLength": "at least {} characters".format,
    "maxLength": "at most {} characters".format,
    "pattern": "`{}`".format,
    "minItems": "at least {} entries".format,
    "maxItems": "at most {} entries".format,
    "maxProperties": "at most {} pairs".format,
    "description": str,
}


def _render_limits(shape: Json) -> str:
    found = [
        render(form[key]).rstrip(".")
        for form in (shape, *shape.get("anyOf", ()))
        for key, render in _LIMITS.items()
        if key in form
    ]
    text = "; ".join(found).replace("at least 1 characters", "not empty")
    return re.sub(r"at least ([-\d.,]+); at most ([-\d.,]+)(?! c)", r"\1 to \2", text)


def render_index() -> str:
    template = Template(_INDEX.read_text("utf-8"))
    types = [f"- [{title}]({page}.md): {about}" for page, (title, about) in SHARED.items()]
    parts = {"routes": _list_routes(), "types": types, "errors": _list_errors(), "limits": _list_limits()}
    return template.substitute({name: "\n".join(lines) for name, lines in parts.items()})


def _list_routes() -> Iterator[str]:
    reference = load_reference()
    for page, (title, _) in PAGES.items():
        yield from (f"### [{title}]({page}.md)", "", "| route | |", "|---|---|")
        for route, operation in reference.list_routes(page):
            summary = operation["summary"]
            yield f"| `{route}` | [{summary}]({page}.md#{slugify(summary)}) |"
        yield ""


def _list_errors() -> Iterator[str]:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.AntiphonError)
    ]
    for kind in sorted(kinds[1:], key=lambda kind: kind.status):
        text = (kind.__doc__ or "").partition("\n\n")[0]
        yield _render_row(str(kind.status), f"`{kind.type}`", f"`{kind.code}`" if kind.code else "", text)


def _list_limits() -> Iterator[str]:
    for field in fields(Limits):
        (text,) = (one for one in get_args(field.type) if isinstance(one, str))
        yield _render_row(f"`--limit-{field.name.replace('_', '-')}`", f"{field.default:,}", text)


PAGE_RENDERERS: dict[str, Callable[[], str]] = {
    "docs/api/index.md": render_index,
    **{f"docs/api/{page}.md": partial(render_routes, page) for page in PAGES},
    **{f"docs/api/{page}.md": partial(render_types, page) for page in SHARED},
}

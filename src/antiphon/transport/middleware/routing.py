"""Routes, and how the route of a path is found: by look-ups alone, exact paths in one table, the others in a tree.

Every `/v1/…` path also exists without `/v1`, and below `/v3`, as in OpenVINO Model Server. Paths are compared as
received, byte by byte; only the values of a `{name}` are decoded, since model names contain slashes.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote

from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.errors import MethodNotAllowed, NotFound, UpgradeRequired
from antiphon.protocol.decoding.codec import encode
from antiphon.service.access.api_keys import INFERENCE
from antiphon.transport.http.channel import WEBSOCKET
from antiphon.transport.http.request import Request

Endpoint = Callable[[Request], Awaitable[Struct | None]]
Function = TypeVar("Function", bound=Callable[..., Awaitable[Struct | None]])
READ_ERRORS = (400, 404, 503)  # statuses of routes that read stored objects
WRITE_ERRORS = (*READ_ERRORS, 413, 415)  # and of those that take a body


async def _serve_nothing(request: Request) -> None:
    """The endpoint of a route that was declared and belongs to no object yet."""
    raise NotImplementedError


class Route(Struct, frozen=True):
    """An endpoint and its path. `{name}` matches one segment, `{name...}` the remaining path.

    `takes`, `query`, `gives` and `streams` are the types of its body, query, reply and events. /openapi.json documents
    them. Routes are declared as decorators of methods, whose docstrings have the summary and, after the first sentence,
    the description; see `collect_routes`. An object that the method returns is sent as JSON, and its type is that of
    the reply; a method that returns None has sent the reply itself.
    """

    method: str
    path: str
    summary: str = ""
    description: str = ""
    takes: Any = None
    takes_media_type: str = "application/json"
    takes_nothing: bool = False  # the body may be missing
    query: type[Struct] | None = None
    gives: Any = None
    streams: Any = None
    media_type: str = "application/json"
    gives_too: Sequence[str] = ()  # further media types of its reply, as bytes without a schema
    new_work: bool = False  # rejected while the server drains
    needs: str | None = INFERENCE  # scope that a key must have; None: no key is needed
    errors: Sequence[int] = ()  # statuses besides those that every route has, or every route with new work
    endpoint: Endpoint = _serve_nothing

    def __call__(self, method: Function) -> Function:
        """Declare that a method of a class is the endpoint."""
        summary, _, description = " ".join((method.__doc__ or "").split()).partition(". ")
        gives = self.gives or method.__annotations__["return"]
        vars(method)["route"] = replace(self, summary=summary.removesuffix("."), description=description, gives=gives)
        return method

    async def serve(self, request: Request) -> None:
        if (reply := await self.endpoint(request)) is not None:
            await request.reply(200, encode(reply))


def collect_routes(*owners: object) -> list[Route]:
    """Return the routes that methods of these objects declare."""
    routes = []
    for owner in owners:
        for name, method in vars(type(owner)).items():
            if isinstance(route := getattr(method, "route", None), Route):
                routes.append(replace(route, endpoint=getattr(owner, name)))
    return routes


Methods = dict[str, Route]


class _PathNode(Struct):
    methods: Methods = field(default_factory=dict)
    tail: Methods = field(default_factory=dict)  # {name...}: matches the remaining path
    children: dict[bytes, "_PathNode"] = field(default_factory=dict)
    wildcard: "_PathNode | None" = None  # {name}: matches any one segment


class Router:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[bytes, Methods] = {}
        self._tree = _PathNode()
        for route in routes:
            self._add(route, route.path)
            if route.path.startswith("/v1/"):
                for prefix in ("", "/v3"):
                    self._add(route, prefix + route.path.removeprefix("/v1"))

    def find(self, request: Request) -> Route:
        """Return the route of a request and set its `params`. Raises NotFound, MethodNotAllowed or UpgradeRequired."""
        if (methods := self._exact.get(request.path)) is None:
            methods, values = _match(self._tree, request.path.split(b"/")[1:]) or ({}, [])
            if not methods:
                raise NotFound("There is no endpoint at this path.")
        else:
            values = []
        if (route := methods.get("GET" if request.method == "HEAD" else request.method)) is None:
            raise _method_error(request, methods)
        if values:
            decoded = [unquote(value.decode("latin-1"), errors="replace") for value in values]
            request.params = dict(zip(_param_names(route.path), decoded, strict=True))
        return route

    def _add(self, route: Route, path: str) -> None:
        if "{" in path:
            methods = _insert(self._tree, path.encode().split(b"/")[1:])
        else:
            methods = self._exact.setdefault(path.encode(), {})
        if route.method in methods:
            raise ValueError(f"{route.method} {path} is registered twice")
        methods[route.method] = route


def _insert(node: _PathNode, segments: Sequence[bytes]) -> Methods:
    """Return the methods at the end of a path, creating nodes as needed."""
    for segment in segments:
        if segment.endswith(b"...}"):
            return node.tail
        if segment.startswith(b"{"):
            node.wildcard = node = node.wildcard or _PathNode()
        else:
            node = node.children.setdefault(segment, _PathNode())
    return node.methods


def _match(node: _PathNode, segments: list[bytes]) -> tuple[Methods, list[bytes]] | None:
    """Return the methods at the end of a path and the segments that matched its names; exact ones take precedence."""
    if not segments:
        return (node.methods, []) if node.methods else None
    first, following = segments[0], segments[1:]
    if first in node.children and (found := _match(node.children[first], following)):
        return found
    if first and node.wildcard is not None and (found := _match(node.wildcard, following)):
        return found[0], [first, *found[1]]
    return (node.tail, [b"/".join(segments)]) if first and node.tail else None


def _param_names(path: str) -> list[str]:
    return [segment[1:-1].removesuffix("...") for segment in path.split("/") if segment.startswith("{")]


def _method_error(request: Request, methods: Methods) -> MethodNotAllowed | UpgradeRequired:
    if request.headers.get(b"upgrade", b"").lower() == b"websocket":
        return UpgradeRequired("This path does not accept WebSocket connections; use HTTP.")
    allow = ", ".join(sorted(({*methods, "HEAD"} if "GET" in methods else {*methods}) - {WEBSOCKET}))
    return MethodNotAllowed(f"This path does not support the method of the request; use {allow}.", allow=allow)

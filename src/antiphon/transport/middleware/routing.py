"""Which endpoint a path leads to, by look-ups alone: exact paths in one table, the others in a tree of segments.

Every `/v1/…` path is there without `/v1` too, and under `/v3`, as OpenVINO Model Server has it. Paths match as they
came, byte for byte; only what fills a `{name}` is decoded, since names of models contain slashes.
"""

from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from msgspec import Struct, field

from antiphon.errors import MethodNotAllowed, NotFound, UpgradeRequired
from antiphon.transport.http.request import WEBSOCKET, Request, Route

Methods = dict[str, Route]


class _Place(Struct):
    """A point in the tree of paths."""

    methods: Methods = field(default_factory=dict)
    rest: Methods = field(default_factory=dict)  # {name...}: from here on, whatever follows
    below: dict[bytes, "_Place"] = field(default_factory=dict)
    any: "_Place | None" = None  # {name}: any one segment


class Router:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[bytes, Methods] = {}
        self._tree = _Place()
        for route in routes:
            self._add(route, route.path)
            if route.path.startswith("/v1/"):
                for prefix in ("", "/v3"):
                    self._add(route, prefix + route.path.removeprefix("/v1"))

    def find(self, request: Request) -> Route:
        """The route of a request, whose `params` are filled in."""
        methods = self._exact.get(request.path)
        if methods is None:
            methods, values = _walk(self._tree, request.path.split(b"/")[1:]) or ({}, [])
            if not methods:
                raise NotFound("There is nothing at this path.")
        else:
            values = []
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            raise _wrong_method(request, methods)
        if values:
            request.params = dict(zip(_names(route.path), map(_decoded, values), strict=True))
        return route

    def _add(self, route: Route, path: str) -> None:
        if "{" in path:
            methods = _grow(self._tree, path.encode().split(b"/")[1:])
        else:
            methods = self._exact.setdefault(path.encode(), {})
        if route.method in methods:
            raise ValueError(f"{route.method} {path} is there already")
        methods[route.method] = route


def _grow(place: _Place, segments: Sequence[bytes]) -> Methods:
    for segment in segments:
        if segment.endswith(b"...}"):
            return place.rest
        if segment.startswith(b"{"):
            place.any = place = place.any or _Place()
        else:
            place = place.below.setdefault(segment, _Place())
    return place.methods


def _walk(place: _Place, segments: list[bytes]) -> tuple[Methods, list[bytes]] | None:
    """What is at the end of a path and the segments that filled its names; the exact before the general."""
    if not segments:
        return (place.methods, []) if place.methods else None
    first, others = segments[0], segments[1:]
    if first in place.below and (found := _walk(place.below[first], others)):
        return found
    if first and place.any is not None and (found := _walk(place.any, others)):
        return found[0], [first, *found[1]]
    return (place.rest, [b"/".join(segments)]) if first and place.rest else None


def _names(path: str) -> list[str]:
    return [segment[1:-1].removesuffix("...") for segment in path.split("/") if segment.startswith("{")]


def _decoded(segment: bytes) -> str:
    return unquote(segment.decode("latin-1"), errors="replace")


def _wrong_method(request: Request, methods: Methods) -> MethodNotAllowed | UpgradeRequired:
    if request.headers.get(b"upgrade", b"").lower() == b"websocket":
        return UpgradeRequired("There is no WebSocket here; use HTTP.")
    allow = ", ".join(sorted(({*methods, "HEAD"} if "GET" in methods else {*methods}) - {WEBSOCKET}))
    return MethodNotAllowed(f"Use {allow} here.", allow=allow)

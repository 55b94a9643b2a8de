"""A route: an endpoint, its path, and what /openapi.json documents of it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from antiphon.service.access.api_keys import INFERENCE
from antiphon.transport.http.request import Request

Endpoint = Callable[[Request], Awaitable[None]]


class Route(Struct, frozen=True, kw_only=True):
    """An endpoint and its path. `{name}` matches one segment, `{name...}` the remaining path.

    `takes`, `query`, `gives` and `streams` are the types of its body, query, reply and events; `example` is an example
    body. /openapi.json documents them.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    description: str = ""
    takes: Any = None
    takes_media_type: str = "application/json"
    takes_nothing: bool = False  # the body may be missing
    query: type[Struct] | None = None
    example: Any = None
    gives: Any = None
    streams: Any = None
    media_type: str = "application/json"
    gives_too: Sequence[str] = ()  # further media types of its reply, as bytes without a schema
    new_work: bool = False  # rejected while the server drains
    needs: str | None = INFERENCE  # scope that a key must have; None: no key is needed
    errors: Sequence[int] = ()  # statuses besides those that every route has, or every route with new work

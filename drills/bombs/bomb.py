"""A bomb: one input designed to break a server, and the expected result. Data only; `box.py` sends it.

Tests of single parts of the server (`tests/faults/hostile_input/`) send the same bombs.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from tests.faults.raw_client import build_body, build_request

FAST_SECONDS = 0.050  # from the last byte of the request to the last byte of the answer
MEDIA_SECONDS = 0.500  # for requests with images or files
ENGINE_SECONDS = 0.200  # for requests that only the engine can judge
DOCUMENT_SECONDS = 17.0  # for a document, which a child process parses within 15 seconds

Channel = Literal["http", "socket", "handshake"]
Header = tuple[str, str]


class Bomb(Struct, frozen=True, kw_only=True):
    """One row of the bomb box.

    `answers`: accepted statuses, or close codes of a WebSocket. `param`: prefix of the error's param. `says`: content
    of an answer that is not an error. `max_seconds`: time limit. `reaches`: the request may reach the engine, because
    the server cannot know that anything is wrong with it.
    """

    name: str
    make: Callable[[], bytes]  # all bytes to send; for a WebSocket, those after the handshake
    channel: Channel = "http"
    answers: tuple[int, ...] = (400,)
    param: str | None = None
    says: bytes = b""
    max_seconds: float = FAST_SECONDS
    reaches: bool = False
    anthropic: bool = False  # whether errors have Anthropic's format


def raw_bomb(name: str, sent: bytes, **options: Any) -> Bomb:
    """Return a bomb of these bytes."""
    return Bomb(name=name, make=lambda: sent, **options)


def post_bomb(name: str, content: bytes | Callable[[], bytes], path: str = "/v1/responses", **options: Any) -> Bomb:
    """Return a POST with this body, which may be created when it is sent."""
    return Bomb(name=name, make=partial(_make_post, content, path), **options)


def _make_post(content: bytes | Callable[[], bytes], path: str) -> bytes:
    return build_request(content if isinstance(content, bytes) else content(), path=path)


def create_bomb(name: str, fields: Mapping[str, Any], **options: Any) -> Bomb:
    """Return a request for a response with these fields, which are encoded as JSON when it is sent."""
    return Bomb(name=name, make=partial(_make_create, fields), **options)


def _make_create(fields: Mapping[str, Any]) -> bytes:
    return build_request(build_body(**fields))


def get_bomb(name: str, path: str, headers: Iterable[Header] = (), **options: Any) -> Bomb:
    """Return a GET request."""
    return Bomb(name=name, make=partial(build_request, b"", method="GET", path=path, headers=[*headers]), **options)

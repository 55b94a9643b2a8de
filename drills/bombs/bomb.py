"""A bomb: one input that is made to break a server, and what is to become of it. Data alone; box.py throws it.

Tests of single parts of the server (tests/faults/test_hostile_*.py) throw the same ones.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from tests.faults.raw_client import body, request

AT_ONCE = 0.050  # seconds from the last byte of it to the last byte of the answer
LOOKED_AT = 0.500  # for what has pictures or files in it
TRIED = 0.200  # for what nobody can tell but the engine, which has to try
READ = 17.0  # for a PDF, which a child process has 15 seconds to read

Way = Literal["http", "socket", "handshake"]
Header = tuple[str, str]


class Bomb(Struct, frozen=True, kw_only=True):
    """`answers`: statuses; of a WebSocket also the codes that it is closed with. `param`: with what the error's begins.
    `says`: what is in an answer that is no error. `reaches`: nothing is wrong with it that we could know: the engine
    may be asked."""

    name: str
    make: Callable[[], bytes]  # all that is sent; of a WebSocket all after the handshake
    way: Way = "http"
    answers: tuple[int, ...] = (400,)
    param: str | None = None
    says: bytes = b""
    most: float = AT_ONCE
    reaches: bool = False
    anthropic: bool = False  # the shape of its errors


def given(name: str, sent: bytes, **about: Any) -> Bomb:
    return Bomb(name=name, make=lambda: sent, **about)


def posted(name: str, content: bytes | Callable[[], bytes], path: str = "/v1/responses", **about: Any) -> Bomb:
    """A body, which may be made when it is needed."""
    return Bomb(name=name, make=partial(_posted, content, path), **about)


def _posted(content: bytes | Callable[[], bytes], path: str) -> bytes:
    return request(content if isinstance(content, bytes) else content(), path=path)


def asked(name: str, fields: Mapping[str, Any], **about: Any) -> Bomb:
    """A request for a response with these fields, which are written as JSON when it is thrown."""
    return Bomb(name=name, make=partial(_asked, fields), **about)


def _asked(fields: Mapping[str, Any]) -> bytes:
    return request(body(**fields))


def got(name: str, path: str, headers: Iterable[Header] = (), **about: Any) -> Bomb:
    """A GET."""
    return Bomb(name=name, make=partial(request, b"", method="GET", path=path, headers=[*headers]), **about)

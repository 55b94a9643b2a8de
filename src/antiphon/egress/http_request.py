"""One HTTP request: the headers and the body of the caller, and its bytes on the wire."""

from typing import Final

from msgspec import Struct

from antiphon.egress.urls import Url


class RequestHeaders(Struct, frozen=True, kw_only=True):
    """Additional headers, and the body, of a request to a host that the operator configured.

    With them, a redirect to another origin is not followed, and a POST follows no redirect.
    """

    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None  # JSON; its presence makes the request a POST

    def __repr__(self) -> str:
        return "RequestHeaders(…)"


NO_HEADERS: Final = RequestHeaders()


def render_request(url: Url, accept: str, request_headers: RequestHeaders) -> bytes:
    """Return the bytes of a request with the headers that every fetch sends and those of the caller."""
    lines = [
        f"{'GET' if request_headers.body is None else 'POST'} {url.target} HTTP/1.1",
        f"Host: {url.authority}",
        "User-Agent: antiphon",
        f"Accept: {accept}",
        "Accept-Encoding: gzip, deflate",
        "Connection: close",
        *[f"{name}: {value}" for name, value in request_headers.headers],
    ]
    if request_headers.body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(request_headers.body)}"]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (request_headers.body or b"")

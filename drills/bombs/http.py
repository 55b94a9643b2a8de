"""Bombs in HTTP itself: compressed bodies, other media types, huge and broken heads, unusual targets, and long
ranges.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from functools import partial

from drills.bombs.bomb import Bomb, get_bomb, raw_bomb
from tests.faults.raw_client import build_body, build_request

MIB = 1024 * 1024
EVIL_HOSTS = ("evil.com", "127.0.0.1.evil.com", "x/health?", "x#", "a@127.0.0.1", "127.0.0.1:99999", "[::1", "", " ")
CODINGS = ("gzip", "deflate", "br", "zstd", "x-gzip", "gzip, gzip", "identity, gzip")
MEDIA_TYPES = (
    "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml", "",
)  # fmt: skip
_POST = b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\n"
_JSON = b"Content-Type: application/json\r\n"
BROKEN = {
    "no version": b"GET /health\r\n\r\n",
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64 + b"\r\n\r\n",
    "space before colon": b"GET /health HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
    "folded header": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: b\r\n c\r\n\r\n",
    "NUL in a header": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: b\0c\r\n\r\n",
    "bare line feed": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\nX-A: b\r\n\r\n",
    "length and chunks": _POST + _JSON + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": _POST + _JSON + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n{}  x",
    "negative length": _POST + b"Content-Length: -1\r\n\r\n",
    "length that is no number": _POST + b"Content-Length: x\r\n\r\n",
    "endless length": _POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n",
    "bad chunk size": _POST + _JSON + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n",
    "bad chunk end": _POST + _JSON + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n",
    "unknown coding": _POST + _JSON + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
}
LARGE_HEADS: dict[str, Callable[[], list[str]]] = {
    "100 KiB": lambda: ["X-Big: " + "x" * (100 * 1024)],
    "8 MiB": lambda: ["X-Huge: " + "x" * (8 * MIB)],
    "100,000 of them": lambda: [f"X-{n}: y" for n in range(100_000)],
    "cookies": lambda: ["Cookie: " + "a=b; " * 50_000],
}
_RANGES = "bytes=" + ",".join(f"{n}-{n}" for n in range(5_000))
_SEMICOLONS = ";" * 60_000


def get(path: str, *lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (f"GET {path} HTTP/1.1", *lines, "")).encode("latin-1")


def compressed() -> Iterator[Bomb]:
    bomb = gzip.compress(b" " * MIB + build_body())
    for coding in CODINGS:
        sent = build_request(bomb, headers=[("Content-Encoding", coding)])
        yield raw_bomb(f"a body in {coding}", sent, answers=(415,))
    yield Bomb(name="1 MB of gzip, a gigabyte of JSON", make=_gzip_gigabyte, answers=(415,))
    yield raw_bomb("gzip declared as JSON", build_request(gzip.compress(build_body())))
    for kind in MEDIA_TYPES:
        yield raw_bomb(
            f"a body of {kind or 'no type'}",
            build_request(build_body(), headers=[("Content-Type", kind)]),
            answers=(415,),
        )
    for kind in ("application/json" + _SEMICOLONS, "application/json;" + " " * 60_000 + "x", "a/" * 30_000):
        sent = build_request(build_body(), headers=[("Content-Type", kind)])
        yield raw_bomb(f"a type like {kind[:20]}…", sent, answers=(200, 415), reaches=True)


def _gzip_gigabyte() -> bytes:
    compressor = zlib.compressobj(9, wbits=31)
    piece = b" " * MIB
    sent = b"".join([*[compressor.compress(piece) for _ in range(1024)], compressor.flush()])
    return build_request(sent, headers=[("Content-Encoding", "gzip")])


def heads() -> Iterator[Bomb]:
    for host in EVIL_HOSTS:
        yield raw_bomb(f"the host {host!r}", get("/v1/models", f"Host: {host}"), answers=(400, 403, 421))
    yield raw_bomb("no host", get("/v1/models"), answers=(400, 403))
    yield raw_bomb("two hosts", get("/v1/models", "Host: 127.0.0.1", "Host: evil.com"), answers=(400, 403))
    for name, sent in BROKEN.items():
        yield raw_bomb(f"broken HTTP: {name}", sent, answers=(400, 413, 415))
    for name, lines in LARGE_HEADS.items():
        yield Bomb(name=f"headers: {name}", make=partial(_get_with_headers, lines), answers=(400, 431))
    yield Bomb(name="a header of 100 MB", answers=(400, 431),
               make=lambda: get("/v1/models", "Host: 127.0.0.1", "X-Huge: " + "x" * (100 * MIB)))  # fmt: skip
    yield Bomb(name="a path of 1 MB", make=lambda: get("/" + "a" * MIB, "Host: 127.0.0.1"), answers=(400, 414, 431))
    yield raw_bomb("a header's name of 60 KB", get("/v1/models", "Host: 127.0.0.1", "x" * 60_000 + ": y"),
                answers=(200, 400, 431))  # fmt: skip
    yield raw_bomb("3,000 small headers", get("/v1/models", "Host: 127.0.0.1", *[f"X-{n}: y" for n in range(3_000)]),
                answers=(200, 400, 431))  # fmt: skip
    for method in ("PUT", "PATCH", "TRACE", "CONNECT", "BREW", "x" * 60_000):
        yield raw_bomb(
            f"the method {method[:20]}", build_request(b"", method=method), answers=(400, 404, 405, 426, 431)
        )


def _get_with_headers(lines: Callable[[], list[str]]) -> bytes:
    return get("/v1/models", "Host: 127.0.0.1", *lines())


def targets() -> Iterator[Bomb]:
    for path in ("/docs", "/openapi.json", "/v1/models", f"/v1/responses/resp_{'0' * 32}"):
        yield get_bomb(f"5,000 ranges of {path}", path, [("Range", _RANGES)], answers=(200, 404, 416))
    for name, path in {
        "60 KB": "/v1/models/" + "a" * 60_000,
        "30,000 segments": "/" + "a/" * 30_000,
        "30,000 slashes": "/" * 30_000,
        "20,000 dots": "/v1/" + "../" * 20_000,
        "escapes": "/v1/models/" + "%2e" * 20_000,
        "bad escapes": "/v1/models/" + "%zz%" * 10_000,
    }.items():
        yield get_bomb(f"a path of {name}", path, answers=(200, 400, 404))
    for name, query in {
        "65 names": "&".join(f"a{n}=1" for n in range(65)),
        "20,000 names": "&".join(f"a{n}" for n in range(10_000)),
        "ampersands": "&" * 60_000,
        "semicolons": _SEMICOLONS,
        "escapes": "after=" + "%41" * 20_000,
        "include without end": "&".join(["include[]=x"] * 5_000),
    }.items():
        yield get_bomb(f"a query of {name}", f"/v1/responses?{query}", answers=(200, 400, 404))
    yield raw_bomb(
        "the target of another host", get("http://evil.com/v1/models", "Host: 127.0.0.1"), answers=(400, 403, 404)
    )

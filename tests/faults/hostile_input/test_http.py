"""HTTP itself: huge and malformed headers, foreign hosts and origins, and paths that try to bypass the
authentication.
"""

import asyncio
import json
import re

import pytest

from drills.bombs.http import BROKEN, EVIL_HOSTS, LARGE_HEADS, get
from tests.faults.conftest import KEY
from tests.faults.raw_client import build_body, build_request, expect_error, read_response, send_request
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("host", EVIL_HOSTS)
@pytest.mark.shows("H.13")
async def test_a_foreign_host_is_rejected(server: ServerProcess, host: str) -> None:
    for path in ("/v1/models", "/health"):
        await expect_error(server.port, get(path, f"Host: {host}"), 400, 403, 421)


async def test_a_missing_or_repeated_host_is_rejected(server: ServerProcess) -> None:
    await expect_error(server.port, get("/v1/models"), 400, 403)
    await expect_error(server.port, get("/v1/models", "Host: 127.0.0.1", "Host: evil.com"), 400, 403)
    await expect_error(server.port, get("/v1/models", "Host: evil.com", "Host: 127.0.0.1"), 400, 403)


async def test_a_forwarded_host_header_is_ignored(server: ServerProcess) -> None:
    lines = ("Host: evil.com", "X-Forwarded-Host: 127.0.0.1", "Forwarded: host=127.0.0.1")
    await expect_error(server.port, get("/v1/models", *lines), 400, 403)


async def test_an_absolute_target_with_a_foreign_host_is_rejected(server: ServerProcess) -> None:
    answer = await send_request(server.port, get("http://evil.com/v1/models", "Host: 127.0.0.1"))
    assert answer.status in (400, 403, 404), answer
    answer.parse_error()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:1", "[::1]:8000"])
async def test_a_local_host_is_accepted(server: ServerProcess, host: str) -> None:
    assert (await send_request(server.port, get("/v1/models", f"Host: {host}"))).status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.com", "null", "http://127.0.0.1.evil.com", "https://localhost.evil.com"]
)
@pytest.mark.shows("H.13")
async def test_a_foreign_origin_is_rejected_without_cors_headers(server: ServerProcess, origin: str) -> None:
    answer = await send_request(server.port, build_request(build_body(), headers=[("Origin", origin)]))
    assert answer.status == 403, answer
    answer.parse_error()
    assert "access-control-allow-origin" not in answer.headers


async def test_a_preflight_gets_no_cors_headers(server: ServerProcess) -> None:
    headers = [("Origin", "http://evil.com"), ("Access-Control-Request-Method", "POST")]
    answer = await send_request(server.port, build_request(b"", method="OPTIONS", headers=headers))
    assert answer.status in (403, 404, 405), answer
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("name", LARGE_HEADS)
@pytest.mark.shows("H6.3")
async def test_an_oversized_header_block_is_rejected(server: ServerProcess, name: str) -> None:
    await expect_error(server.port, get("/v1/models", "Host: 127.0.0.1", *LARGE_HEADS[name]()), 400, 431)


async def test_an_oversized_path_is_rejected(server: ServerProcess) -> None:
    await expect_error(server.port, get("/" + "a" * (1024 * 1024), "Host: 127.0.0.1"), 400, 414, 431)


async def test_a_header_of_100_megabytes_is_not_buffered(server: ServerProcess) -> None:
    before = _rss_bytes(server)
    sent = get("/v1/models", "Host: 127.0.0.1", "X-Huge: " + "x" * (100 * 1024 * 1024))
    await expect_error(server.port, sent, 400, 431)
    assert _rss_bytes(server) - before < 16 * 1024 * 1024


def _rss_bytes(live: ServerProcess) -> int:
    with open(f"/proc/{live.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


@pytest.mark.parametrize("name", BROKEN)
async def test_malformed_http_is_rejected_and_the_connection_closed(server: ServerProcess, name: str) -> None:
    answer = await send_request(server.port, BROKEN[name] + get("/health", "Host: 127.0.0.1"))
    assert 400 <= answer.status < 500, answer
    answer.parse_error()
    assert answer.headers.get("connection") == "close"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "HEAD", "TRACE", "CONNECT", "BREW"])
async def test_other_methods_are_not_allowed(server: ServerProcess, method: str) -> None:
    answer = await send_request(server.port, build_request(b"", method=method)) if method != "HEAD" else None
    if answer is not None:
        assert answer.status in (400, 404, 405, 426), answer
        answer.parse_error()


PROTECTED_PATHS = [
    "/v1/responses", "/responses", "/v1/models", "/models", "/v1/models/fake", "/metrics", "/openapi.json", "/docs",
    "/uix", "/%75i/",
    "//v1/models", "/v1/../health", "/V1/models", "/%761/models", "/v1%2fmodels", "/v1/models/", "/v1/models;x",
    "/health/../v1/models", "/health/", "/health;/v1/models", "/healthz", "/ready/x",
    "/nowhere", "/./health", "//health", "/health%00", "/HEALTH",
]  # fmt: skip
PUBLIC_PATHS = {"/health", "/ready", "/version"}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", PROTECTED_PATHS)
async def test_only_public_paths_are_served_without_the_key(
    keyed_server: ServerProcess, path: str, method: str
) -> None:
    if path.partition("?")[0] in PUBLIC_PATHS:
        return
    answer = await send_request(keyed_server.port, build_request(build_body(), method=method, path=path))
    assert answer.status == 401, answer
    assert answer.parse_error()["code"] == "invalid_api_key"


@pytest.mark.shows("H.1")
async def test_every_documented_route_except_public_ones_needs_the_key(keyed_server: ServerProcess) -> None:
    openapi = await send_request(
        keyed_server.port, get("/openapi.json", "Host: 127.0.0.1", f"Authorization: Bearer {KEY}")
    )
    routes = [(method, path) for path, methods in json.loads(openapi.body)["paths"].items() for method in methods]
    assert ("post", "/v1/responses") in routes
    for method, path in routes:
        if path not in PUBLIC_PATHS:
            sent = build_request(build_body(), method=method.upper(), path=re.sub(r"\{[^}]*\}", "x", path))
            assert (await send_request(keyed_server.port, sent)).status == 401, path


@pytest.mark.parametrize("path", sorted(PUBLIC_PATHS))
async def test_the_public_paths_need_no_key(keyed_server: ServerProcess, path: str) -> None:
    assert (await send_request(keyed_server.port, get(path, "Host: 127.0.0.1"))).status == 200


BAD_KEYS = [
    "", "Bearer", "Bearer ", "Bearer  ", "Basic " + KEY, KEY, "bearer" + KEY, "Bearer " + KEY + "x",
    "Bearer " + KEY[:-1], "Bearer \xff\xfe", "Bearer \xe9\xe9", "Bearer ' OR '1'='1", "Bearer " + KEY.upper(),
    "Bearer null", "Bearer " + "x" * 30_000,
]  # fmt: skip


@pytest.mark.parametrize("value", BAD_KEYS, ids=range(len(BAD_KEYS)))
async def test_every_spelling_of_a_wrong_key_is_rejected(keyed_server: ServerProcess, value: str) -> None:
    headers = [("Authorization", value)] if value else []
    error = await expect_error(keyed_server.port, build_request(build_body(), headers=headers), 401)
    assert error["type"] == "authentication_error"
    assert KEY not in error["message"]


async def test_two_authorization_headers_are_rejected(keyed_server: ServerProcess) -> None:
    for first, second in (("Bearer wrong", f"Bearer {KEY}"), (f"Bearer {KEY}", "Bearer wrong")):
        lines = ("Host: 127.0.0.1", f"Authorization: {first}", f"Authorization: {second}")
        await expect_error(keyed_server.port, get("/v1/models", *lines), 400, 401)


async def test_the_key_is_checked_before_the_body_is_read(keyed_server: ServerProcess) -> None:
    """Otherwise any client could make the server read and decode bodies."""
    sent = build_request(b"", headers=[("Content-Length", str(10 * 1024 * 1024))])
    await expect_error(keyed_server.port, sent, 401)


@pytest.mark.parametrize("value", ["a b", "x" * 300, "naïve", "a;b", "../x"])
async def test_a_malformed_request_id_is_replaced(server: ServerProcess, value: str) -> None:
    answer = await send_request(server.port, build_request(build_body(), headers=[("X-Request-Id", value)]))
    assert answer.status == 200
    assert answer.headers["x-request-id"].startswith("req_")


async def test_a_keep_alive_connection_is_served_after_an_error(server: ServerProcess) -> None:
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(build_request(b"{}") + build_request(build_body()))
        assert (await read_response(reader)).status == 400
        assert (await read_response(reader)).status == 200
        writer.close()
        await writer.wait_closed()

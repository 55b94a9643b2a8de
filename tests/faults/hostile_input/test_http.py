"""HTTP itself: huge and broken headers, hosts and origins that are not ours, paths that try to slip past the guard."""

import asyncio
import json
import re

import pytest

from drills.bombs.http import BROKEN, EVIL_HOSTS, LARGE_HEADS, get
from tests.faults.conftest import KEY
from tests.faults.raw_client import body, exchange, read_answer, refused, request
from tests.support.server_process import Live

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("host", EVIL_HOSTS)
@pytest.mark.shows("H.13")
async def test_a_host_that_is_not_ours_is_refused(server: Live, host: str) -> None:
    for path in ("/v1/models", "/health"):
        await refused(server.port, get(path, f"Host: {host}"), 400, 403, 421)


async def test_no_host_and_two_hosts_are_refused(server: Live) -> None:
    await refused(server.port, get("/v1/models"), 400, 403)
    await refused(server.port, get("/v1/models", "Host: 127.0.0.1", "Host: evil.com"), 400, 403)
    await refused(server.port, get("/v1/models", "Host: evil.com", "Host: 127.0.0.1"), 400, 403)


async def test_a_forwarded_host_changes_nothing(server: Live) -> None:
    lines = ("Host: evil.com", "X-Forwarded-Host: 127.0.0.1", "Forwarded: host=127.0.0.1")
    await refused(server.port, get("/v1/models", *lines), 400, 403)


async def test_an_absolute_target_is_judged_by_its_host_or_not_served(server: Live) -> None:
    answer = await exchange(server.port, get("http://evil.com/v1/models", "Host: 127.0.0.1"))
    assert answer.status in (400, 403, 404), answer
    answer.error()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:1", "[::1]:8000"])
async def test_a_host_of_this_machine_is_served(server: Live, host: str) -> None:
    assert (await exchange(server.port, get("/v1/models", f"Host: {host}"))).status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.com", "null", "http://127.0.0.1.evil.com", "https://localhost.evil.com"]
)
@pytest.mark.shows("H.13")
async def test_a_foreign_origin_is_refused_and_gets_no_permission(server: Live, origin: str) -> None:
    answer = await exchange(server.port, request(body(), headers=[("Origin", origin)]))
    assert answer.status == 403, answer
    answer.error()
    assert "access-control-allow-origin" not in answer.headers


async def test_a_preflight_gets_no_permission(server: Live) -> None:
    asking = [("Origin", "http://evil.com"), ("Access-Control-Request-Method", "POST")]
    answer = await exchange(server.port, request(b"", method="OPTIONS", headers=asking))
    assert answer.status in (403, 404, 405), answer
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("name", LARGE_HEADS)
@pytest.mark.shows("H6.3")
async def test_a_header_block_beyond_the_limit_is_refused(server: Live, name: str) -> None:
    await refused(server.port, get("/v1/models", "Host: 127.0.0.1", *LARGE_HEADS[name]()), 400, 431)


async def test_a_path_beyond_the_limit_is_refused(server: Live) -> None:
    await refused(server.port, get("/" + "a" * (1024 * 1024), "Host: 127.0.0.1"), 400, 414, 431)


async def test_a_hundred_megabytes_of_header_cost_no_memory(server: Live) -> None:
    before = _rss(server)
    sent = get("/v1/models", "Host: 127.0.0.1", "X-Huge: " + "x" * (100 * 1024 * 1024))
    await refused(server.port, sent, 400, 431)
    assert _rss(server) - before < 16 * 1024 * 1024


def _rss(live: Live) -> int:
    with open(f"/proc/{live.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


@pytest.mark.parametrize("name", BROKEN)
async def test_broken_http_is_refused_and_the_connection_closed(server: Live, name: str) -> None:
    answer = await exchange(server.port, BROKEN[name] + get("/health", "Host: 127.0.0.1"))
    assert 400 <= answer.status < 500, answer
    answer.error()
    assert answer.headers.get("connection") == "close"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "HEAD", "TRACE", "CONNECT", "BREW"])
async def test_another_method_is_not_allowed(server: Live, method: str) -> None:
    answer = await exchange(server.port, request(b"", method=method)) if method != "HEAD" else None
    if answer is not None:
        assert answer.status in (400, 404, 405, 426), answer
        answer.error()


GUARDED_PATHS = [
    "/v1/responses", "/responses", "/v1/models", "/models", "/v1/models/fake", "/metrics", "/openapi.json", "/docs",
    "/", "//v1/models", "/v1/../health", "/V1/models", "/%761/models", "/v1%2fmodels", "/v1/models/", "/v1/models;x",
    "/health/../v1/models", "/health/", "/health;/v1/models", "/healthz", "/ready/x",
    "/nowhere", "/./health", "//health", "/health%00", "/HEALTH",
]  # fmt: skip
PUBLIC = {"/health", "/ready", "/version"}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", GUARDED_PATHS)
async def test_without_the_key_nothing_but_the_public_paths_answers(guarded: Live, path: str, method: str) -> None:
    if path.partition("?")[0] in PUBLIC:
        return
    answer = await exchange(guarded.port, request(body(), method=method, path=path))
    assert answer.status == 401, answer
    assert answer.error()["code"] == "invalid_api_key"


@pytest.mark.shows("H.1")
async def test_every_documented_route_but_the_public_ones_needs_the_key(guarded: Live) -> None:
    described = await exchange(guarded.port, get("/openapi.json", "Host: 127.0.0.1", f"Authorization: Bearer {KEY}"))
    routes = [(method, path) for path, methods in json.loads(described.body)["paths"].items() for method in methods]
    assert ("post", "/v1/responses") in routes
    for method, path in routes:
        if path not in PUBLIC:
            sent = request(body(), method=method.upper(), path=re.sub(r"\{[^}]*\}", "x", path))
            assert (await exchange(guarded.port, sent)).status == 401, path


@pytest.mark.parametrize("path", sorted(PUBLIC))
async def test_the_public_paths_need_no_key(guarded: Live, path: str) -> None:
    assert (await exchange(guarded.port, get(path, "Host: 127.0.0.1"))).status == 200


BAD_KEYS = [
    "", "Bearer", "Bearer ", "Bearer  ", "Basic " + KEY, KEY, "bearer" + KEY, "Bearer " + KEY + "x",
    "Bearer " + KEY[:-1], "Bearer \xff\xfe", "Bearer \xe9\xe9", "Bearer ' OR '1'='1", "Bearer " + KEY.upper(),
    "Bearer null", "Bearer " + "x" * 30_000,
]  # fmt: skip


@pytest.mark.parametrize("value", BAD_KEYS, ids=range(len(BAD_KEYS)))
async def test_a_wrong_key_is_refused_however_it_is_spelled(guarded: Live, value: str) -> None:
    headers = [("Authorization", value)] if value else []
    error = await refused(guarded.port, request(body(), headers=headers), 401)
    assert error["type"] == "authentication_error"
    assert KEY not in error["message"]


async def test_two_authorizations_are_refused(guarded: Live) -> None:
    for first, second in (("Bearer wrong", f"Bearer {KEY}"), (f"Bearer {KEY}", "Bearer wrong")):
        lines = ("Host: 127.0.0.1", f"Authorization: {first}", f"Authorization: {second}")
        await refused(guarded.port, get("/v1/models", *lines), 400, 401)


async def test_a_key_is_judged_before_the_body_is_read(guarded: Live) -> None:
    """Otherwise anyone could make the server read and decode."""
    sent = request(b"", headers=[("Content-Length", str(10 * 1024 * 1024))])
    await refused(guarded.port, sent, 401)


@pytest.mark.parametrize("value", ["a b", "x" * 300, "naïve", "a;b", "../x"])
async def test_an_ill_formed_request_id_is_replaced(server: Live, value: str) -> None:
    answer = await exchange(server.port, request(body(), headers=[("X-Request-Id", value)]))
    assert answer.status == 200
    assert answer.headers["x-request-id"].startswith("req_")


async def test_a_kept_connection_serves_after_an_error(server: Live) -> None:
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request(b"{}") + request(body()))
        assert (await read_answer(reader)).status == 400
        assert (await read_answer(reader)).status == 200
        writer.close()
        await writer.wait_closed()

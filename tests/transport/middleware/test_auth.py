"""Authenticator: API keys, Host and Origin headers, CORS, and rejection of new work at shutdown."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.errors import NotAuthenticated
from antiphon.transport.http.channel import HttpChannel
from antiphon.transport.http.request import Request, build_request
from antiphon.transport.middleware.auth import PUBLIC, Authenticator
from tests.support.asgi_client import JSON, AsgiResponse, Header, build_http_scope, call
from tests.transport.minimal_app import MinimalApp

pytestmark = pytest.mark.anyio

KEY = "sk-Ünïcode-is-fine"
WITH_KEYS = Config.from_settings(api_key=("another", KEY))
ALL_INTERFACES = Config.from_settings(host="0.0.0.0", api_key=(KEY,))
KEY_HEADER: Header = (b"authorization", b"Bearer " + KEY.encode())


def make_host_headers(*values: bytes) -> list[Header]:
    return [(b"host", value) for value in values]


async def get_with_key(value: bytes, path: str = "/v1/models") -> AsgiResponse:
    return await call(MinimalApp(WITH_KEYS).app, "GET", path, (b"authorization", value))


@pytest.mark.parametrize("value", [b"Bearer " + KEY.encode(), b"bearer another"])
async def test_each_configured_key_is_accepted(value: bytes) -> None:
    assert (await get_with_key(value)).status == 200


@pytest.mark.parametrize(
    "value",
    [
        b"", b"Bearer", b"Bearer ", b"Bearer  " + KEY.encode(), b"Bearer wrong", b"Bearer " + KEY.encode() + b" ",
        KEY.encode(), b"Basic " + KEY.encode(), b"Bearer \xff\xfe", b"Bearer " + KEY.encode("latin-1"),
        b"Bearer " + b"x" * 1_000_000, b"Bearer ' OR '1'='1", b"\x00", b"Bearer " + KEY[:-1].encode(),
    ],
)  # fmt: skip
@pytest.mark.shows("H.1")
async def test_any_other_key_is_rejected_identically(value: bytes) -> None:
    answer = await get_with_key(value)
    assert answer.status == 401
    assert answer.error["type"] == "authentication_error"
    assert answer.error["code"] == "invalid_api_key"
    assert answer.header(b"www-authenticate") == b"Bearer"
    missing = await call(MinimalApp(WITH_KEYS).app, "GET", "/v1/models")
    assert (missing.status, missing.body) == (401, answer.body)


async def test_two_authorization_headers_are_rejected() -> None:
    for first, second in ((KEY_HEADER, (b"authorization", b"Bearer x")), ((b"authorization", b"Bearer x"), KEY_HEADER)):
        assert (await call(MinimalApp(WITH_KEYS).app, "GET", "/v1/models", first, second)).status == 401


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE", "X"])
@pytest.mark.shows("H.1")
async def test_only_public_routes_answer_without_a_key(method: str) -> None:
    minimal_app = MinimalApp(WITH_KEYS)
    for path in {route.path for route in minimal_app.routes} | {
        route.path.removeprefix("/v1") for route in minimal_app.routes
    }:
        expected = 401 if path.encode() not in PUBLIC else None
        answer = await call(minimal_app.app, method, path, JSON)
        assert (answer.status == 401) is (expected == 401), (method, path, answer.status)


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere", "/", "", "//health", "/health/", "/Health", "/health/..", "/v1/../health", "/v1/health",
        "/health;x", "/%68ealth", "/health%00", "/healthz", "//v1/responses", "/%2fv1/models", "/v1%2fmodels", "*",
        "http://x/health",
    ],
)  # fmt: skip
async def test_unknown_paths_require_a_key(path: str) -> None:
    minimal_app = MinimalApp(WITH_KEYS.with_settings(ui="off"))
    assert (await call(minimal_app.app, "GET", path)).status == 401
    assert (await call(minimal_app.app, "GET", path, KEY_HEADER)).status == 404


@pytest.mark.shows("H5.1")
async def test_without_keys_any_authorization_is_accepted() -> None:
    for value in (b"Bearer EMPTY", b"nonsense", b"\xff"):
        assert (await call(MinimalApp(Config()).app, "GET", "/v1/models", (b"authorization", value))).status == 200


async def test_the_time_of_a_key_check_does_not_depend_on_the_matching_prefix() -> None:
    """A rough check that keys are not compared byte by byte: medians of many interleaved measurements."""
    authenticator = Authenticator(Config.from_settings(api_key=("k" * 2000,)))

    def seconds(key: bytes) -> float:
        headers = [(b"host", b"localhost"), (b"authorization", b"Bearer " + key)]
        request = make_request("/v1/models", headers)
        began = time.perf_counter()
        with pytest.raises(NotAuthenticated):
            authenticator.check(request)
        return time.perf_counter() - began

    near, far = b"k" * 1999 + b"x", b"x" * 2000
    pairs = [(seconds(near), seconds(far)) for _ in range(2000)]
    fast, slow = sorted((median(one for one, _ in pairs), median(other for _, other in pairs)))
    assert slow < fast * 1.5


def make_request(path: str, headers: list[Header]) -> Request:
    return build_request(
        HttpChannel(build_http_scope("GET", path.encode(), headers), _not_called, _not_called), Request
    )


async def _not_called(*_: object) -> Any:
    raise AssertionError("nothing is received or sent here")


@pytest.mark.parametrize(
    "value",
    [
        b"localhost",
        b"localhost:1",
        b"LocalHost:65535",
        b"127.0.0.1",
        b"127.0.0.1:8000",
        b"[::1]",
        b"[::1]:80",
        b"localhost:",
    ],
)
async def test_on_loopback_the_names_of_loopback_are_accepted(value: bytes) -> None:
    assert (await call(MinimalApp(Config()).app, "GET", "/health", host=make_host_headers(value))).status == 200


@pytest.mark.parametrize(
    "value", [b"evil.com", b"evil.com:8000", b"127.0.0.1.evil.com", b"localhost.evil.com", b"192.168.0.1", b"[::2]"]
)
@pytest.mark.shows("H.13")
async def test_on_loopback_other_host_names_are_rejected(value: bytes) -> None:
    for path in ("/health", "/v1/models", "/nowhere"):
        answer = await call(MinimalApp(Config()).app, "GET", path, host=make_host_headers(value))
        assert answer.status == 403
        assert answer.error["type"] == "permission_error"


MALFORMED_HOSTS = [
    [], [b""], [b" "], [b"x/health?"], [b"x#"], [b"a@b"], [b"localhost@evil.com"], [b"localhost:x"], [b"localhost:8:8"],
    [b"localhost:999999"], [b"localhost:65536"], [b"[::1"], [b"[::1]x"], [b"[]"], [b"::1"], [b"local host"], [b"\xff"],
    [b"localhost\x00"], [b"localhost", b"localhost"], [b"localhost", b"evil.com"], [b"a" * 5000], [b"localhost,evil"],
]  # fmt: skip


@pytest.mark.parametrize("values", MALFORMED_HOSTS)
@pytest.mark.parametrize("config", [Config(), ALL_INTERFACES], ids=["loopback", "open"])
async def test_a_malformed_host_is_a_bad_request_on_every_interface(values: list[bytes], config: Config) -> None:
    for path in ("/health", "/v1/models"):
        answer = await call(MinimalApp(config).app, "GET", path, host=make_host_headers(*values))
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"


async def test_beyond_loopback_any_well_formed_host_is_accepted() -> None:
    assert (
        await call(
            MinimalApp(ALL_INTERFACES).app, "GET", "/v1/models", KEY_HEADER, host=make_host_headers(b"api.example:8000")
        )
    ).status == 200


@pytest.mark.parametrize(
    ("allowed", "value"),
    [
        ("box.local", b"BOX.local:8000"),
        ("box.local:8000", b"box.local"),
        ("fe80::1", b"[fe80::1]:8"),
        ("*", b"any.where"),
    ],
)
async def test_a_host_can_be_allowed(allowed: str, value: bytes) -> None:
    config = Config.from_settings(allow_host=(allowed,))
    assert (await call(MinimalApp(config).app, "GET", "/health", host=make_host_headers(value))).status == 200


async def test_the_cache_of_accepted_hosts_is_bounded() -> None:
    authenticator = MinimalApp(ALL_INTERFACES).authenticator
    for number in range(1000):
        authenticator.check(make_request("/health", make_host_headers(b"h%d" % number)))
    assert len(authenticator._accepted_hosts) <= 64


@pytest.mark.parametrize("origin", [b"http://localhost:3000", b"https://127.0.0.1", b"http://[::1]:5173"])
@pytest.mark.shows("H.13")
async def test_loopback_origins_are_accepted_without_cors_headers(origin: bytes) -> None:
    answer = await call(MinimalApp(Config()).app, "GET", "/v1/models", (b"origin", origin))
    assert answer.status == 200
    assert list_cors_headers(answer) == []


@pytest.mark.parametrize(
    "origin",
    [b"http://evil.com", b"null", b"", b"file://", b"http://localhost.evil.com", b"http://localhost@evil.com",
     b"localhost", b"chrome-extension://localhost", b"http://localhost/x", b"\xff"],
)  # fmt: skip
@pytest.mark.shows("H.13")
async def test_foreign_origins_are_rejected_on_loopback(origin: bytes) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        answer = await call(
            MinimalApp(Config()).app,
            method,
            "/v1/echo",
            JSON,
            (b"origin", origin),
            (b"access-control-request-method", b"POST"),
        )
        assert answer.status == 403
        assert list_cors_headers(answer) == []


@pytest.mark.parametrize(("site", "mode", "method", "status"), [
    (b"cross-site", b"no-cors", "GET", 403), (b"cross-site", b"navigate", "POST", 403),
    (b"cross-site", b"navigate", "GET", 200), (b"same-origin", b"cors", "GET", 200), (b"none", b"navigate", "GET", 200),
])  # fmt: skip
@pytest.mark.shows("H7.4")
async def test_foreign_pages_may_link_to_a_server_on_loopback_and_load_nothing(
    site: bytes, mode: bytes, method: str, status: int
) -> None:
    headers = [(b"sec-fetch-site", site), (b"sec-fetch-mode", mode)]
    assert (await call(MinimalApp(Config()).app, method, "/v1/models", *headers)).status == status
    beyond = await call(MinimalApp(ALL_INTERFACES).app, "GET", "/v1/models", KEY_HEADER, *headers)
    assert beyond.status == 200


async def test_two_origins_are_rejected() -> None:
    origins = [(b"origin", b"http://localhost"), (b"origin", b"http://evil.com")]
    for headers in (origins, origins[::-1]):
        assert (await call(MinimalApp(Config()).app, "GET", "/v1/models", *headers)).status == 403


async def test_an_allowed_origin_gets_cors_headers() -> None:
    app = MinimalApp(Config.from_settings(allow_origin=("https://App.example/",), api_key=(KEY,))).app
    origin = (b"origin", b"https://app.example")
    answer = await call(app, "GET", "/v1/models", KEY_HEADER, origin)
    assert answer.status == 200
    assert answer.header(b"access-control-allow-origin") == b"https://app.example"
    preflight = await call(
        app, "OPTIONS", "/v1/echo", origin, (b"access-control-request-method", b"POST"),
        (b"access-control-request-headers", b"authorization,content-type"),
    )  # fmt: skip
    assert preflight.status == 204
    assert preflight.header(b"access-control-allow-headers") == b"authorization,content-type"
    assert preflight.header(b"access-control-allow-origin") == b"https://app.example"
    assert (await call(app, "GET", "/v1/models", origin)).status == 401


async def test_beyond_loopback_a_foreign_origin_gets_no_cors_headers() -> None:
    answer = await call(
        MinimalApp(ALL_INTERFACES).app, "GET", "/v1/models", KEY_HEADER, (b"origin", b"http://evil.com")
    )
    assert list_cors_headers(answer) == []
    preflight = await call(
        MinimalApp(ALL_INTERFACES).app,
        "OPTIONS",
        "/v1/models",
        (b"origin", b"http://evil.com"),
        (b"access-control-request-method", b"GET"),
    )
    assert preflight.status == 401
    assert list_cors_headers(preflight) == []


def list_cors_headers(answer: AsgiResponse) -> list[bytes]:
    return [name for name, _ in answer.headers if name.startswith(b"access-control")]


async def test_a_typical_request_is_checked_in_a_few_microseconds() -> None:
    """The limit is generous: a check takes about one microsecond."""
    authenticator = Authenticator(WITH_KEYS)
    headers = [(b"host", b"localhost:8000"), (b"accept", b"*/*"), KEY_HEADER]
    request = make_request("/v1/models", headers)
    assert measure_best(lambda: authenticator.check(request)) < 20e-6


def measure_best(operation: Callable[[], object]) -> float:
    times = []
    for _ in range(200):
        began = time.perf_counter()
        operation()
        times.append(time.perf_counter() - began)
    return min(times)


@pytest.mark.shows("H.19", "H2.6")
async def test_a_draining_server_rejects_new_work_and_serves_other_routes() -> None:
    minimal_app = MinimalApp(Config())
    minimal_app.authenticator.close()
    refused = await call(minimal_app.app, "POST", "/v1/echo", JSON, body=[b"{}"])
    assert refused.status == 503
    assert refused.error["type"] == "service_unavailable"
    assert int(refused.header(b"retry-after") or 0) >= 1
    assert (await call(minimal_app.app, "GET", "/v1/models")).status == 200
    assert (await call(minimal_app.app, "GET", "/health")).status == 200
    assert (await call(minimal_app.app, "GET", "/ready")).status == 503


async def test_a_server_bound_to_a_host_name_is_restricted_like_loopback() -> None:
    """`bind_sockets` requires no key for such a name, so a page of another site must not get in under its own name."""
    app = MinimalApp(Config.from_settings(host="my-laptop.local")).app
    assert (await call(app, "GET", "/v1/models", host=make_host_headers(b"evil.example"))).status == 403
    assert (await call(app, "GET", "/v1/models", host=make_host_headers(b"my-laptop.local:8000"))).status == 200

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.errors import NotAuthenticated
from antiphon.transport.http.request import Request, received
from antiphon.transport.middleware.auth import PUBLIC, Guard
from antiphon.transport.server.asgi_channel import AsgiLine
from tests.support.asgi_client import JSON, Answer, Header, call, http_scope
from tests.transport.minimal_app import Edge

pytestmark = pytest.mark.anyio

KEY = "sk-Ünïcode-is-fine"
KEYED = Config(api_key=("another", KEY))
OPEN = Config(host="0.0.0.0", api_key=(KEY,))
RIGHT: Header = (b"authorization", b"Bearer " + KEY.encode())


def host(*values: bytes) -> list[Header]:
    return [(b"host", value) for value in values]


async def with_key(value: bytes, path: str = "/v1/models") -> Answer:
    return await call(Edge(KEYED).app, "GET", path, (b"authorization", value))


@pytest.mark.parametrize("value", [b"Bearer " + KEY.encode(), b"bearer another"])
async def test_each_of_the_keys_opens(value: bytes) -> None:
    assert (await with_key(value)).status == 200


@pytest.mark.parametrize(
    "value",
    [
        b"", b"Bearer", b"Bearer ", b"Bearer  " + KEY.encode(), b"Bearer wrong", b"Bearer " + KEY.encode() + b" ",
        KEY.encode(), b"Basic " + KEY.encode(), b"Bearer \xff\xfe", b"Bearer " + KEY.encode("latin-1"),
        b"Bearer " + b"x" * 1_000_000, b"Bearer ' OR '1'='1", b"\x00", b"Bearer " + KEY[:-1].encode(),
    ],
)  # fmt: skip
@pytest.mark.shows("H.1")
async def test_any_other_key_is_refused_alike(value: bytes) -> None:
    answer = await with_key(value)
    assert answer.status == 401
    assert answer.error["type"] == "authentication_error"
    assert answer.error["code"] == "invalid_api_key"
    assert answer.header(b"www-authenticate") == b"Bearer"
    missing = await call(Edge(KEYED).app, "GET", "/v1/models")
    assert (missing.status, missing.body) == (401, answer.body)


async def test_two_keys_at_once_are_refused() -> None:
    for first, second in ((RIGHT, (b"authorization", b"Bearer x")), ((b"authorization", b"Bearer x"), RIGHT)):
        assert (await call(Edge(KEYED).app, "GET", "/v1/models", first, second)).status == 401


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE", "X"])
@pytest.mark.shows("H.1")
async def test_no_route_but_the_public_ones_answers_without_the_key(method: str) -> None:
    edge = Edge(KEYED)
    for path in {route.path for route in edge.routes} | {route.path.removeprefix("/v1") for route in edge.routes}:
        expected = 401 if path.encode() not in PUBLIC else None
        answer = await call(edge.app, method, path, JSON)
        assert (answer.status == 401) is (expected == 401), (method, path, answer.status)


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere", "/", "", "//health", "/health/", "/Health", "/health/..", "/v1/../health", "/v1/health",
        "/health;x", "/%68ealth", "/health%00", "/healthz", "//v1/responses", "/%2fv1/models", "/v1%2fmodels", "*",
        "http://x/health",
    ],
)  # fmt: skip
async def test_what_does_not_exist_needs_the_key_too(path: str) -> None:
    edge = Edge(KEYED)
    assert (await call(edge.app, "GET", path)).status == 401
    assert (await call(edge.app, "GET", path, RIGHT)).status == 404


@pytest.mark.shows("H5.1")
async def test_without_keys_any_authorization_is_accepted() -> None:
    for value in (b"Bearer EMPTY", b"nonsense", b"\xff"):
        assert (await call(Edge(Config()).app, "GET", "/v1/models", (b"authorization", value))).status == 200


async def test_a_keys_check_takes_as_long_for_a_good_beginning_as_for_a_bad_one() -> None:
    """A rough check that nothing compares byte by byte: medians of many tries, interleaved."""
    guard = Guard(Config(api_key=("k" * 2000,)))

    def seconds(key: bytes) -> float:
        headers = [(b"host", b"localhost"), (b"authorization", b"Bearer " + key)]
        request = asked("/v1/models", headers)
        began = time.perf_counter()
        with pytest.raises(NotAuthenticated):
            guard.check(request)
        return time.perf_counter() - began

    near, far = b"k" * 1999 + b"x", b"x" * 2000
    pairs = [(seconds(near), seconds(far)) for _ in range(2000)]
    fast, slow = sorted((median(one for one, _ in pairs), median(other for _, other in pairs)))
    assert slow < fast * 1.5


def asked(path: str, headers: list[Header]) -> Request:
    return received(AsgiLine(http_scope("GET", path.encode(), headers), _none, _none), Request)


async def _none(*_: object) -> Any:
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
async def test_on_loopback_its_names_are_answered_to(value: bytes) -> None:
    assert (await call(Edge(Config()).app, "GET", "/health", host=host(value))).status == 200


@pytest.mark.parametrize(
    "value", [b"evil.com", b"evil.com:8000", b"127.0.0.1.evil.com", b"localhost.evil.com", b"192.168.0.1", b"[::2]"]
)
@pytest.mark.shows("H.13")
async def test_on_loopback_no_other_name_is_answered_to(value: bytes) -> None:
    for path in ("/health", "/v1/models", "/nowhere"):
        answer = await call(Edge(Config()).app, "GET", path, host=host(value))
        assert answer.status == 403
        assert answer.error["type"] == "permission_error"


ODD_HOSTS = [
    [], [b""], [b" "], [b"x/health?"], [b"x#"], [b"a@b"], [b"localhost@evil.com"], [b"localhost:x"], [b"localhost:8:8"],
    [b"localhost:999999"], [b"localhost:65536"], [b"[::1"], [b"[::1]x"], [b"[]"], [b"::1"], [b"local host"], [b"\xff"],
    [b"localhost\x00"], [b"localhost", b"localhost"], [b"localhost", b"evil.com"], [b"a" * 5000], [b"localhost,evil"],
]  # fmt: skip


@pytest.mark.parametrize("values", ODD_HOSTS)
@pytest.mark.parametrize("config", [Config(), OPEN], ids=["loopback", "open"])
async def test_an_odd_host_is_a_bad_request_wherever_we_listen(values: list[bytes], config: Config) -> None:
    for path in ("/health", "/v1/models"):
        answer = await call(Edge(config).app, "GET", path, host=host(*values))
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"


async def test_beyond_loopback_any_well_formed_name_is_answered_to() -> None:
    assert (await call(Edge(OPEN).app, "GET", "/v1/models", RIGHT, host=host(b"api.example:8000"))).status == 200


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
    config = Config(allow_host=(allowed,))
    assert (await call(Edge(config).app, "GET", "/health", host=host(value))).status == 200


async def test_many_different_hosts_are_not_all_remembered() -> None:
    guard = Edge(OPEN).guard
    for number in range(1000):
        guard.check(asked("/health", host(b"h%d" % number)))
    assert len(guard._known_hosts) <= 64


@pytest.mark.parametrize("origin", [b"http://localhost:3000", b"https://127.0.0.1", b"http://[::1]:5173"])
@pytest.mark.shows("H.13")
async def test_pages_of_this_machine_may_call_but_get_no_cors_headers(origin: bytes) -> None:
    answer = await call(Edge(Config()).app, "GET", "/v1/models", (b"origin", origin))
    assert answer.status == 200
    assert cors(answer) == []


@pytest.mark.parametrize(
    "origin",
    [b"http://evil.com", b"null", b"", b"file://", b"http://localhost.evil.com", b"http://localhost@evil.com",
     b"localhost", b"chrome-extension://localhost", b"http://localhost/x", b"\xff"],
)  # fmt: skip
@pytest.mark.shows("H.13")
async def test_foreign_pages_may_not_call_on_loopback(origin: bytes) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        answer = await call(
            Edge(Config()).app,
            method,
            "/v1/echo",
            JSON,
            (b"origin", origin),
            (b"access-control-request-method", b"POST"),
        )
        assert answer.status == 403
        assert cors(answer) == []


async def test_two_origins_are_refused() -> None:
    origins = [(b"origin", b"http://localhost"), (b"origin", b"http://evil.com")]
    for given in (origins, origins[::-1]):
        assert (await call(Edge(Config()).app, "GET", "/v1/models", *given)).status == 403


async def test_an_allowed_origin_may_call_and_read() -> None:
    app = Edge(Config(allow_origin=("https://App.example/",), api_key=(KEY,))).app
    origin = (b"origin", b"https://app.example")
    answer = await call(app, "GET", "/v1/models", RIGHT, origin)
    assert answer.status == 200
    assert answer.header(b"access-control-allow-origin") == b"https://app.example"
    asked = await call(
        app, "OPTIONS", "/v1/echo", origin, (b"access-control-request-method", b"POST"),
        (b"access-control-request-headers", b"authorization,content-type"),
    )  # fmt: skip
    assert asked.status == 204
    assert asked.header(b"access-control-allow-headers") == b"authorization,content-type"
    assert asked.header(b"access-control-allow-origin") == b"https://app.example"
    assert (await call(app, "GET", "/v1/models", origin)).status == 401


async def test_beyond_loopback_a_foreign_page_gets_no_permission() -> None:
    answer = await call(Edge(OPEN).app, "GET", "/v1/models", RIGHT, (b"origin", b"http://evil.com"))
    assert cors(answer) == []
    asked = await call(
        Edge(OPEN).app,
        "OPTIONS",
        "/v1/models",
        (b"origin", b"http://evil.com"),
        (b"access-control-request-method", b"GET"),
    )
    assert asked.status == 401
    assert cors(asked) == []


def cors(answer: Answer) -> list[bytes]:
    return [name for name, _ in answer.headers if name.startswith(b"access-control")]


async def test_the_usual_request_is_checked_in_a_few_microseconds() -> None:
    """Generous: it is about one."""
    guard = Guard(KEYED)
    headers = [(b"host", b"localhost:8000"), (b"accept", b"*/*"), RIGHT]
    request = asked("/v1/models", headers)
    assert best_of(lambda: guard.check(request)) < 20e-6


def best_of(work: Callable[[], object]) -> float:
    times = []
    for _ in range(200):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


@pytest.mark.shows("H.19", "H2.6")
async def test_when_the_doors_are_closed_no_new_work_is_taken_but_the_rest_goes_on() -> None:
    edge = Edge(Config())
    edge.guard.close()
    refused = await call(edge.app, "POST", "/v1/echo", JSON, body=[b"{}"])
    assert refused.status == 503
    assert refused.error["type"] == "service_unavailable"
    assert int(refused.header(b"retry-after") or 0) >= 1
    assert (await call(edge.app, "GET", "/v1/models")).status == 200
    assert (await call(edge.app, "GET", "/health")).status == 200
    assert (await call(edge.app, "GET", "/ready")).status == 503


async def test_a_name_that_means_loopback_is_guarded_like_loopback() -> None:
    """`listen` asks no key of it, so a page of another site must not get in by its own name."""
    app = Edge(Config(host="my-laptop.local")).app
    assert (await call(app, "GET", "/v1/models", host=host(b"evil.example"))).status == 403
    assert (await call(app, "GET", "/v1/models", host=host(b"my-laptop.local:8000"))).status == 200

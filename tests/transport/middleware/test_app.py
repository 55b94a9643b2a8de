"""The ASGI application: routing, errors, metrics, WebSocket scopes and lifespan."""

import asyncio
import logging
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.transport.middleware.routing import Route, Router
from tests.support.asgi_client import HOST, JSON, build_http_scope, call
from tests.transport.minimal_app import MinimalApp

pytestmark = pytest.mark.anyio


@pytest.fixture
def minimal_app() -> MinimalApp:
    return MinimalApp(Config())


@pytest.mark.parametrize("path", ["/v1/echo", "/echo"])
@pytest.mark.shows("G2.3")
async def test_paths_are_served_with_and_without_v1(minimal_app: MinimalApp, path: str) -> None:
    assert (await call(minimal_app.app, "POST", path, JSON, body=[b"1"])).body == b"1"


@pytest.mark.parametrize(
    "path",
    [
        "/", "", "/v1", "/v1/", "/nowhere", "//v1/echo", "/v1//echo", "/v1/echo/", "/V1/echo", "/v1/echo%2f",
        "/v1%2fecho", "/%2fv1/echo", "/v1/../v1/echo", "/v1/./echo", "/v1/echo;a=b", "/v1/echo%00", "/v1/echo\x00",
        "/v1/health", "/v1/things/a/parts/", "/v1/things//parts/b", "/v1/things/a/parts/b/c", "/v1/models/",
        "/" + "a/" * 20_000,
    ],
)  # fmt: skip
@pytest.mark.shows("H.14", "H6.10")
async def test_any_other_path_is_not_found(minimal_app: MinimalApp, path: str) -> None:
    for method in ("GET", "POST", "OPTIONS", "HEAD", "BREW"):
        answer = await call(minimal_app.app, method, path)
        assert answer.status == 404
        assert answer.error["type"] == "not_found_error"
        assert answer.header(b"x-request-id")


async def test_a_query_does_not_change_the_path(minimal_app: MinimalApp) -> None:
    assert (await call(minimal_app.app, "POST", "/v1/echo?a=/health", JSON, body=[b"1"])).status == 200


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "OPTIONS", "TRACE", "post", ""])
@pytest.mark.shows("H.14", "H6.10")
async def test_another_method_gets_405_with_the_allowed_methods(minimal_app: MinimalApp, method: str) -> None:
    answer = await call(minimal_app.app, method, "/v1/echo")
    assert answer.status == 405
    assert answer.header(b"allow") == b"DELETE, POST"
    assert answer.error["type"] == "invalid_request_error"


async def test_head_is_allowed_where_get_is(minimal_app: MinimalApp) -> None:
    assert (await call(minimal_app.app, "HEAD", "/health")).status == 200
    assert (await call(minimal_app.app, "POST", "/health")).header(b"allow") == b"GET, HEAD"


async def test_path_parameters_are_percent_decoded(minimal_app: MinimalApp) -> None:
    answer = await call(minimal_app.app, "GET", "/v1/things/a%20b%2Fc/parts/%C3%A4%FF")
    assert answer.json() == {"thing": "a b/c", "part": "ä\ufffd"}


async def test_exact_routes_take_precedence_over_patterns() -> None:
    async def endpoint(request: Any) -> None: ...

    paths = ["/a/{x}", "/a/b/{rest...}", "/a/{x}/c", "/{y}/b/d"]
    router = Router(Route("GET", path, "", endpoint=endpoint) for path in paths)

    class FakeRequest:
        method, headers, params = "GET", dict[bytes, bytes](), dict[str, str]()

        def __init__(self, path: bytes) -> None:
            self.path = path

    def find_path(path: bytes) -> str:
        fake_request: Any = FakeRequest(path)
        return router.find(fake_request).path

    assert find_path(b"/a/1") == "/a/{x}"
    assert find_path(b"/a/b") == "/a/{x}"
    assert find_path(b"/a/b/d") == "/a/b/{rest...}"
    assert find_path(b"/a/1/c") == "/a/{x}/c"
    assert find_path(b"/z/b/d") == "/{y}/b/d"


async def test_a_duplicate_route_is_rejected() -> None:
    async def endpoint(request: Any) -> None: ...

    route = Route("GET", "/a/{x}", "", endpoint=endpoint)
    with pytest.raises(ValueError, match="registered twice"):
        Router([route, route])


async def test_an_antiphon_error_is_sent_to_the_client(minimal_app: MinimalApp) -> None:
    answer = await call(minimal_app.app, "GET", "/v1/engine")
    assert answer.status == 500
    assert answer.error == {
        "message": "The engine stopped.",
        "type": "server_error",
        "param": None,
        "code": "server_error",
    }


async def test_an_unexpected_exception_is_logged_and_hidden_from_the_client(
    minimal_app: MinimalApp, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "antiphon"):
        answer = await call(minimal_app.app, "GET", "/v1/fail", (b"x-request-id", b"my-id"))
    assert answer.status == 500
    assert answer.error["code"] == "server_error"
    assert b"secret" not in answer.body
    assert b"ZeroDivision" not in answer.body
    assert "my-id" in answer.error["message"]
    assert "an internal secret" in caplog.text
    assert caplog.records[0].__dict__["request_id"] == "my-id"


async def test_a_reply_that_fails_midway_is_left_unfinished(
    minimal_app: MinimalApp, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await call(minimal_app.app, "GET", "/v1/break")
    assert (answer.status, answer.body, answer.ended) == (200, b"so far", False)
    assert "cut off" in caplog.text


async def test_cancellation_is_propagated() -> None:
    minimal_app = MinimalApp(Config())
    task = asyncio.ensure_future(call(minimal_app.app, "GET", "/v1/hang"))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert b'antiphon_requests_total{route="/v1/hang",status="200"} 1' in minimal_app.metrics.text()


async def test_requests_are_counted_by_route_and_never_by_raw_path(minimal_app: MinimalApp) -> None:
    for path in ("/v1/things/1/parts/2", "/v1/things/3/parts/4", "/secret-path", "/other"):
        await call(minimal_app.app, "GET", path)
    text = minimal_app.metrics.text().decode()
    assert 'antiphon_requests_total{route="/v1/things/{thing}/parts/{part}",status="200"} 2' in text
    assert 'antiphon_requests_total{route="none",status="404"} 2' in text
    assert "secret-path" not in text


@pytest.mark.parametrize("path", ["/v1/echo", "/echo"])
async def test_a_websocket_upgrade_on_an_http_route_gets_426(minimal_app: MinimalApp, path: str) -> None:
    answer = await call(minimal_app.app, "GET", path, (b"upgrade", b"WebSocket"), (b"connection", b"upgrade"))
    assert answer.status == 426
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("extensions", [{}, {"websocket.http.response": {}}])
async def test_a_websocket_scope_is_denied(minimal_app: MinimalApp, extensions: dict[str, Any]) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/v1/echo", "headers": [HOST, (b"upgrade", b"websocket")]}
    await minimal_app.app({**scope, "extensions": extensions}, receive, send)
    assert sent[0].get("status") == 426 if extensions else sent == [{"type": "websocket.close", "code": 1002}]


async def test_lifespan_messages_open_and_close_the_application(minimal_app: MinimalApp) -> None:
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[str] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await minimal_app.app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert minimal_app.lifecycle.calls == ["open", "close"]


async def test_a_scope_without_a_raw_path_is_accepted(minimal_app: MinimalApp) -> None:
    scope = build_http_scope("GET", b"/health", [HOST])
    del scope["raw_path"]
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    await minimal_app.app(scope, receive, send)
    assert sent[0]["status"] == 200

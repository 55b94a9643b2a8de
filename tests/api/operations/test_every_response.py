"""Properties of every answer, success or error, JSON or stream: request id, processing time, one error format."""

import json

import pytest

from antiphon.core.deltas import Text
from antiphon.engines.fake import FakeEngine
from antiphon.errors import Busy, EngineFailed, Unavailable
from antiphon.limits import Limits
from tests.api.app import run_api
from tests.support.asgi_client import HOST, JSON, AsgiResponse, Header, call

pytestmark = pytest.mark.anyio
KEY: Header = (b"authorization", b"Bearer k")
GOOD = json.dumps({"model": "fake", "input": "hi"}).encode()
STREAM = json.dumps({"model": "fake", "input": "hi", "stream": True}).encode()
HUGE = b'{"input":"' + b"x" * 2000 + b'"}'

RawRequest = tuple[str, str, tuple[Header, ...], bytes]
VALID: dict[str, RawRequest] = {
    "json": ("POST", "/v1/responses", (KEY, JSON), GOOD),
    "stream": ("POST", "/v1/responses", (KEY, JSON), STREAM),
    "conversation": ("POST", "/v1/conversations", (KEY, JSON, (b"content-length", b"2")), b"{}"),
    "models": ("GET", "/v1/models", (KEY,), b""),
    "health": ("GET", "/health", (), b""),
    "docs": ("GET", "/docs", (KEY,), b""),
    "metrics": ("GET", "/metrics", (KEY,), b""),
}
ERRORS: dict[str, tuple[RawRequest, int]] = {
    "broken JSON": (("POST", "/v1/responses", (KEY, JSON), b"{"), 400),
    "bad field": (("POST", "/v1/responses", (KEY, JSON), b'{"model":"fake","input":1}'), 400),
    "two hosts": (("GET", "/v1/models", (KEY, HOST), b""), 400),
    "no key": (("GET", "/v1/models", (), b""), 401),
    "foreign page": (("GET", "/v1/models", (KEY, (b"origin", b"http://evil.com")), b""), 403),
    "unknown path": (("GET", "/nowhere", (KEY,), b""), 404),
    "unknown response": (("GET", "/v1/responses/resp_1", (KEY,), b""), 404),
    "unknown conversation": (("GET", "/v1/conversations/conv_1", (KEY,), b""), 404),
    "bad query": (("GET", "/v1/responses/resp_1?stream=perhaps", (KEY,), b""), 400),
    "unknown model": (("GET", "/v1/models/none/such", (KEY,), b""), 404),
    "wrong method": (("PUT", "/v1/responses", (KEY,), b""), 405),
    "large body": (("POST", "/v1/responses", (KEY, JSON), HUGE), 413),
    "wrong type": (("POST", "/v1/responses", (KEY,), GOOD), 415),
    "upgrade": (("GET", "/v1/responses", (KEY, (b"upgrade", b"websocket")), b""), 426),
}


class SingleModelEngine(FakeEngine):
    def serves(self, model: str) -> bool:
        return model == "fake"


async def send_request(request: RawRequest, engine: FakeEngine | None = None) -> AsgiResponse:
    method, path, headers, body = request
    async with run_api(engine=engine or SingleModelEngine(), api_key=("k",), limits=Limits(body_bytes=1000)) as server:
        return await call(server.app, method, path, *headers, body=[body])


def check_headers(answer: AsgiResponse) -> None:
    assert (answer.header(b"x-request-id") or b"").startswith(b"req_")
    assert (answer.header(b"openai-processing-ms") or b"").isdigit()


@pytest.mark.parametrize("name", VALID)
@pytest.mark.shows("H2.1", "H2.3")
async def test_a_successful_answer_has_a_request_id_and_a_processing_time(name: str) -> None:
    answer = await send_request(VALID[name])
    assert answer.status == 200
    check_headers(answer)


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.shows("H.14", "H2.1", "H2.3")
async def test_an_error_has_the_standard_body_and_the_same_headers(name: str) -> None:
    request, status = ERRORS[name]
    answer = await send_request(request)
    assert answer.status == status
    assert answer.error["code"] is None or isinstance(answer.error["code"], str)
    check_headers(answer)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (EngineFailed("It died."), 500),
        (ZeroDivisionError("A defect."), 500),
        (Busy("Full.", retry_after=0.2), 429),
        (Unavailable("Gone.", retry_after=2.5), 503),
    ],
)
@pytest.mark.shows("H.14", "H2.6")
async def test_an_engine_error_has_the_standard_body_and_retry_after(error: Exception, status: int) -> None:
    engine = FakeEngine()
    engine.says(Text("a"))
    engine.fails(error, after=1)
    answer = await send_request(VALID["json"], engine)
    assert (answer.status, bool(answer.error["message"])) == (status, True)
    check_headers(answer)
    assert (int(answer.header(b"retry-after") or 0) >= 1) is (status in (429, 503))

"""Request bodies, request ids and the format of durations: size limits, media types, encodings and disconnects."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.limits import Limits
from antiphon.transport.http.channel import ClientGone, HttpChannel
from antiphon.transport.http.request import Request, build_request, format_duration
from tests.support.asgi_client import HOST, JSON, AsgiResponse, Header, build_http_scope, call
from tests.transport.minimal_app import MinimalApp

pytestmark = pytest.mark.anyio

SMALL_BODY = Config.from_settings(limits=Limits(body_bytes=100))


async def echo(*headers: Header, body: Sequence[bytes] = (b"{}",), config: Config = SMALL_BODY) -> AsgiResponse:
    return await call(MinimalApp(config).app, "POST", "/v1/echo", *headers, body=body)


async def test_a_body_in_one_piece_is_read() -> None:
    answer = await echo(JSON, (b"content-length", b"9"), body=[b'{"a": 12}'])
    assert (answer.status, answer.body) == (200, b'{"a": 12}')


async def test_a_body_in_many_pieces_is_joined() -> None:
    answer = await echo(JSON, body=[b"[", b"", b"1", b",", b"2]"])
    assert (answer.status, answer.body) == (200, b"[1,2]")


async def test_a_body_of_exactly_the_limit_is_accepted() -> None:
    assert (await echo(JSON, (b"content-length", b"100"), body=[b"x" * 60, b"x" * 40])).status == 200
    assert (await echo(JSON, body=[b"x" * 100])).status == 200


@pytest.mark.parametrize("length", [b"101", b"99999999999999999999999999", b"-1", b"1e3", b"", b"\xb2"])
@pytest.mark.shows("H6.2")
async def test_a_content_length_above_the_limit_is_rejected_before_the_body_is_read(length: bytes) -> None:
    async def receive() -> Any:
        raise AssertionError("nothing must be read")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = build_http_scope("POST", b"/v1/echo", [HOST, JSON, (b"content-length", length)])
    await MinimalApp(SMALL_BODY).app(scope, receive, send)
    assert sent[0]["status"] == 413


@pytest.mark.parametrize("pieces", [[b"x" * 101], [b"x" * 60, b"x" * 41, b"never read"]])
@pytest.mark.shows("H6.2")
async def test_a_body_of_unknown_length_above_the_limit_is_rejected(pieces: list[bytes]) -> None:
    answer = await echo(JSON, body=pieces)
    assert answer.status == 413
    assert answer.error["type"] == "invalid_request_error"
    assert "100 bytes" in answer.error["message"]


@pytest.mark.parametrize(
    "media_type",
    [b"application/json", b"application/json; charset=utf-8", b"Application/JSON", b"application/json ;charset=UTF-8"],
)
async def test_any_spelling_of_the_json_media_type_is_accepted(media_type: bytes) -> None:
    assert (await echo((b"content-type", media_type))).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-type", b"")],
        [(b"content-type", b"text/plain")],
        [(b"content-type", b"text/plain; application/json")],
        [(b"content-type", b"application/json-patch+json")],
        [(b"content-type", b"multipart/form-data; boundary=" + b"-" * 10_000)],
        [(b"content-type", b"\xff\xfe")],
        [JSON, (b"content-type", b"text/plain")],
        [JSON, (b"content-encoding", b"gzip")],
        [JSON, (b"content-encoding", b"br, identity")],
    ],
)
@pytest.mark.shows("H6.5")
async def test_other_media_types_and_encodings_are_rejected(headers: list[Header]) -> None:
    answer = await echo(*headers)
    assert answer.status == 415
    assert answer.error["type"] == "invalid_request_error"


async def test_the_identity_encoding_is_accepted() -> None:
    assert (await echo(JSON, (b"content-encoding", b"identity"))).status == 200


async def test_an_unknown_transfer_coding_is_rejected_and_closes_the_connection() -> None:
    answer = await echo(JSON, (b"transfer-encoding", b"gzip, chunked"))
    assert answer.status == 400
    assert answer.header(b"connection") == b"close"
    assert (await echo(JSON, (b"transfer-encoding", b"Chunked"))).status == 200


async def test_a_client_that_disconnects_while_sending_gets_no_reply() -> None:
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        raise AssertionError("the client is gone")

    minimal_app = MinimalApp(SMALL_BODY)
    await minimal_app.app(build_http_scope("POST", b"/v1/echo", [HOST, JSON]), receive, send)
    assert b'antiphon_requests_total{route="/v1/echo",status="499"} 1' in minimal_app.metrics.text()
    with pytest.raises(ClientGone):
        await build_request(
            HttpChannel(build_http_scope("POST", b"/", [JSON]), _receive_disconnect, send), Request
        ).read_body(Limits())


async def _receive_disconnect() -> Any:
    return {"type": "http.disconnect"}


@pytest.mark.parametrize("value", [b"a", b"req_1.2-3", b"x" * 128])
@pytest.mark.shows("H2.1")
async def test_a_well_formed_request_id_is_echoed(value: bytes) -> None:
    assert (await echo(JSON, (b"x-request-id", value))).header(b"x-request-id") == value


@pytest.mark.parametrize("value", [b"", b"x" * 129, b"a b", b"a\nb", b"a;b", "ä".encode(), b"\xff", b"<x>"])
@pytest.mark.shows("H2.1")
async def test_an_ill_formed_request_id_is_replaced(value: bytes) -> None:
    request_id = (await echo(JSON, (b"x-request-id", value))).header(b"x-request-id")
    assert request_id is not None
    assert request_id.startswith(b"req_")


async def test_every_request_gets_its_own_id() -> None:
    app = MinimalApp(SMALL_BODY).app
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(call(app, "GET", "/health")) for _ in range(20)]
    assert len({one.result().header(b"x-request-id") for one in calls}) == 20


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.0, "0ms"), (0.85, "850ms"), (1.0, "1s"), (12.5, "12.5s"), (60.0, "1m0s"), (361, "6m1s")]
)
def test_durations_have_the_format_of_openai(seconds: float, written: str) -> None:
    assert format_duration(seconds) == written.encode()

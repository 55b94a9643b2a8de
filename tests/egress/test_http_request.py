"""Headers and bodies for a host of the operator are sent to that host only."""

import asyncio

import pytest

from antiphon.egress import FetchLimits, RequestHeaders
from antiphon.errors import FetchFailed, UrlRefused
from tests.egress.hosts import build_redirect, build_response, make_egress_client, respond_with, run_host
from tests.support.local_servers import Reader, Writer, serve_tcp

pytestmark = pytest.mark.anyio

KEY = (("X-Key", "s3cret"),)


async def test_a_host_of_the_operator_is_reachable_only_at_its_port() -> None:
    async with asyncio.timeout(30), run_host(respond_with(b"mine")) as mine, run_host(respond_with(b"other")) as other:
        client = make_egress_client().allow_operator_url(f"http://127.0.0.1:{mine.port}/x", "")
        assert (await client.fetch(f"http://127.0.0.1:{mine.port}/y", "")).body == b"mine"
        with pytest.raises(UrlRefused):
            await client.fetch(f"http://127.0.0.1:{other.port}/", "")
        assert other.connects == 0
        with pytest.raises(UrlRefused):
            await make_egress_client().fetch(f"http://127.0.0.1:{mine.port}/", "")


@pytest.mark.parametrize("url", ["http://[::1]:8080/", "http://localhost/", "https://search.example/a?b"])
def test_an_operator_url_may_have_any_form_of_host(url: str) -> None:
    assert make_egress_client().allow_operator_url(url, "")


async def test_headers_and_a_body_are_sent() -> None:
    heads: list[tuple[bytes, bytes]] = []

    async def serve(reader: Reader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append((head, await reader.readexactly(7)))
        writer.write(build_response(b"{}", "Content-Type: application/json; Charset='UTF-8'"))
        await writer.drain()

    async with asyncio.timeout(30):
        sent = RequestHeaders(headers=KEY, body=b'{"a":1}')
        async with serve_tcp(serve) as port:
            fetched = await make_egress_client("127.0.0.1").fetch(
                f"http://127.0.0.1:{port}/p", "", request_headers=sent
            )
    assert (fetched.body, fetched.charset) == (b"{}", "utf-8")
    head, body = heads[0]
    assert head.startswith(b"POST /p HTTP/1.1\r\n")
    assert b"\r\nX-Key: s3cret\r\n" in head
    assert b"\r\nContent-Length: 7\r\n" in head
    assert body == b'{"a":1}'
    assert "s3cret" not in repr(sent)


async def test_headers_are_not_redirected_to_another_origin() -> None:
    async with asyncio.timeout(30), run_host(respond_with(b"thief")) as target:

        async def redirect(head: bytes, writer: Writer) -> None:
            writer.write(build_redirect(f"http://127.0.0.1:{target.port}/", 307))

        async with run_host(redirect) as host:
            with pytest.raises(UrlRefused, match="meant for it alone"):
                await make_egress_client("127.0.0.0/8").fetch(
                    f"http://127.0.0.1:{host.port}/", "", request_headers=RequestHeaders(headers=KEY)
                )
        assert target.connects == 0


async def test_a_get_may_be_redirected_within_its_origin_and_a_post_never() -> None:
    async def redirect(head: bytes, writer: Writer) -> None:
        writer.write(build_response(b"there") if b" /there " in head else build_redirect("/there", 307))

    async with asyncio.timeout(30), run_host(redirect) as host:
        url = f"http://127.0.0.1:{host.port}/"
        assert (
            await make_egress_client("127.0.0.1").fetch(url, "", request_headers=RequestHeaders(headers=KEY))
        ).body == b"there"
        assert all(b"X-Key: s3cret" in head for head in host.heads)
        with pytest.raises(UrlRefused):
            await make_egress_client("127.0.0.1").fetch(url, "", request_headers=RequestHeaders(body=b"{}"))


async def test_the_error_names_the_expected_content() -> None:
    async with asyncio.timeout(30), run_host(respond_with(b"x", "Content-Type: image/png")) as host:
        caps = FetchLimits(media_types=("text/",), expected="a text")
        with pytest.raises(FetchFailed, match="which is not a text"):
            await make_egress_client("127.0.0.1").fetch(f"http://127.0.0.1:{host.port}/", "", caps)

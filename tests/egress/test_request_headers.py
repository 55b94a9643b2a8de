"""What goes along with a request to a host of the operator's own: there, and nowhere else."""

import asyncio

import pytest

from antiphon.egress import Caps, Sent
from antiphon.errors import FetchFailed, UrlRefused
from tests.egress.hosts import Reader, Writer, answer, egress, hosting, moved, saying
from tests.support.local_servers import tcp

pytestmark = pytest.mark.anyio

KEY = (("X-Key", "s3cret"),)


async def test_the_operators_own_host_is_reached_at_its_port_alone() -> None:
    async with asyncio.timeout(30), hosting(saying(b"mine")) as mine, hosting(saying(b"other")) as other:
        way = egress().towards(f"http://127.0.0.1:{mine.port}/x", "")
        assert (await way.fetch(f"http://127.0.0.1:{mine.port}/y", "")).body == b"mine"
        with pytest.raises(UrlRefused):
            await way.fetch(f"http://127.0.0.1:{other.port}/", "")
        assert other.connects == 0
        with pytest.raises(UrlRefused):
            await egress().fetch(f"http://127.0.0.1:{mine.port}/", "")


@pytest.mark.parametrize("url", ["http://[::1]:8080/", "http://localhost/", "https://search.example/a?b"])
def test_any_spelling_of_a_host_may_be_the_operators(url: str) -> None:
    assert egress().towards(url, "")


async def test_headers_and_a_body_are_sent() -> None:
    heads: list[tuple[bytes, bytes]] = []

    async def serve(reader: Reader, writer: Writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append((head, await reader.readexactly(7)))
        writer.write(answer(b"{}", "Content-Type: application/json; Charset='UTF-8'"))
        await writer.drain()

    async with asyncio.timeout(30):
        sent = Sent(headers=KEY, body=b'{"a":1}')
        async with tcp(serve) as port:
            fetched = await egress("127.0.0.1").fetch(f"http://127.0.0.1:{port}/p", "", sent=sent)
    assert (fetched.body, fetched.charset) == (b"{}", "utf-8")
    head, body = heads[0]
    assert head.startswith(b"POST /p HTTP/1.1\r\n")
    assert b"\r\nX-Key: s3cret\r\n" in head
    assert b"\r\nContent-Length: 7\r\n" in head
    assert body == b'{"a":1}'
    assert "s3cret" not in repr(sent)


async def test_what_is_sent_is_not_led_elsewhere() -> None:
    async with asyncio.timeout(30), hosting(saying(b"thief")) as thief:

        async def leading(head: bytes, writer: Writer) -> None:
            writer.write(moved(f"http://127.0.0.1:{thief.port}/", 307))

        async with hosting(leading) as host:
            with pytest.raises(UrlRefused, match="meant for it alone"):
                await egress("127.0.0.0/8").fetch(f"http://127.0.0.1:{host.port}/", "", sent=Sent(headers=KEY))
        assert thief.connects == 0


async def test_a_get_may_be_led_within_its_origin_and_a_post_nowhere() -> None:
    async def leading(head: bytes, writer: Writer) -> None:
        writer.write(answer(b"there") if b" /there " in head else moved("/there", 307))

    async with asyncio.timeout(30), hosting(leading) as host:
        url = f"http://127.0.0.1:{host.port}/"
        assert (await egress("127.0.0.1").fetch(url, "", sent=Sent(headers=KEY))).body == b"there"
        assert all(b"X-Key: s3cret" in head for head in host.heads)
        with pytest.raises(UrlRefused):
            await egress("127.0.0.1").fetch(url, "", sent=Sent(body=b"{}"))


async def test_a_sentence_says_what_was_wanted_instead() -> None:
    async with asyncio.timeout(30), hosting(saying(b"x", "Content-Type: image/png")) as host:
        caps = Caps(types=("text/",), wanted="a text")
        with pytest.raises(FetchFailed, match="which is not a text"):
            await egress("127.0.0.1").fetch(f"http://127.0.0.1:{host.port}/", "", caps)

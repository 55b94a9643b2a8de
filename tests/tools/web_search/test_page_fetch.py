"""Hostile web pages, and responses that are not readable pages.

Covers `tools/web_search/html_child.py`.
"""

import asyncio
import gzip
import re

import pytest

from antiphon.errors import FetchFailed
from antiphon.tools.web_search.page_fetch import MAX_CHARACTERS, PageReader
from tests.egress.hosts import Behaviour, build_response, make_egress_client, respond_with, run_host
from tests.support.local_servers import Writer

pytestmark = pytest.mark.anyio

HTML = "Content-Type: text/html"
PARAGRAPH = b"<p>otters hold hands while they sleep in the sea</p>"


async def fetch_text(behave: Behaviour, read_seconds: float = 60.0, fetch_seconds: float = 60.0) -> str:
    async with asyncio.timeout(200), run_host(behave) as host:
        reader = PageReader(make_egress_client("127.0.0.0/8"), fetch_seconds, read_seconds)
        page, _ = await reader.read_page(f"http://127.0.0.1:{host.port}/x")
        return page.text


async def endless(head: bytes, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>")
    while True:
        writer.write(PARAGRAPH * 1000)
        await writer.drain()


async def drip(head: bytes, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5000\r\n\r\n")
    while True:
        writer.write(b"<p>")
        await writer.drain()
        await asyncio.sleep(0.05)


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        (endless, "sent more than"),
        (drip, "longer than"),
        (respond_with(gzip.compress(PARAGRAPH * 200_000), HTML, "Content-Encoding: gzip"), "sent more than"),
        (respond_with(gzip.compress(bytes(4_000_000)), HTML, "Content-Encoding: gzip"), "swells"),
        (
            respond_with(b"%PDF-1.7", "Content-Type: application/pdf"),
            "'application/pdf', which is not a text that can be",
        ),
        (respond_with(PNG, "Content-Type: image/png"), "'image/png', which is not a text"),
        (respond_with(PNG, "Content-Type: text/plain"), "is a picture"),
        (respond_with(PNG), "is a picture"),
        (respond_with(PNG, HTML), "holds no text|cannot be read"),
        (respond_with(b"", HTML), "holds no text|cannot be read"),
        (respond_with(b"<html><body><script>x</script></body></html>", HTML), "holds no text"),
        (respond_with(b"gone", status="410 Gone"), "status 410"),
    ],
)
async def test_unreadable_responses_fail_in_time_with_a_reason(behave: Behaviour, reason: str) -> None:
    with pytest.raises(FetchFailed, match=reason):
        await fetch_text(behave, fetch_seconds=2.0 if behave is drip else 60.0)


@pytest.mark.parametrize(
    "body",
    [
        b"<div>" * 200_000 + PARAGRAPH,
        b"<html><body>" + b"<b><i><a href=x>" * 50_000 + PARAGRAPH,
        b"<table>" * 5_000 + PARAGRAPH + b"<tr><td>" * 20_000,
        b"<p " + b"a='b' " * 200_000 + b">" + PARAGRAPH,
        b"<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;'>" + PARAGRAPH + b"&b;" * 1000,
        b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><html><body>&e;' + PARAGRAPH,
        PARAGRAPH * 60_000,
        b"<a href='http://x.example/" + b"y" * 5_000_00 + b"'>z</a>" + PARAGRAPH,
        b"<a href='http://[::1'>z</a><a href='http://x y'>z</a><a href='//'>z</a>" + PARAGRAPH,
        b"<pre>" * 2_000 + b"\n" * 10_000 + PARAGRAPH,
        b"\xff\xfe\x00" * 1000 + PARAGRAPH,
        ("<p>" + "\ufdd0\u202e" * 1000 + "</p>").encode() + PARAGRAPH,
    ],
    ids=range(12),
)
async def test_a_hostile_page_is_read_or_rejected_without_blocking_the_server(body: bytes) -> None:
    """Either outcome is valid, since it depends on the parser. The text is bounded."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticker = asyncio.ensure_future(tick())
    try:
        text = await fetch_text(respond_with(body, HTML), 4.0)
        assert len(text) <= MAX_CHARACTERS
        assert "root:" not in text
    except FetchFailed as failed:
        reason = failed.message
        assert re.search("could not be read within|cannot be read|no text", reason)
    finally:
        ticker.cancel()
    assert ticks > 3  # other tasks ran meanwhile


async def test_the_conversion_of_a_page_times_out() -> None:
    with pytest.raises(FetchFailed, match=r"could not be read within 0\.05 seconds"):
        await fetch_text(respond_with(PARAGRAPH, HTML), 0.05)


async def test_a_cancelled_fetch_ends_at_once() -> None:
    requested = asyncio.Event()

    async def behave(head: bytes, writer: Writer) -> None:
        writer.write(build_response(PARAGRAPH * 50_000, HTML))
        requested.set()

    async with asyncio.timeout(60), run_host(behave) as host:
        url = f"http://127.0.0.1:{host.port}/x"
        reading = asyncio.ensure_future(PageReader(make_egress_client("127.0.0.0/8"), 60.0, 60.0).read_page(url))
        await requested.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


@pytest.mark.parametrize(
    ("body", "header", "text"),
    [
        ("Füße und Otter".encode(), "text/plain; charset=utf-8", "Füße und Otter"),
        ("Füße und Otter".encode("latin-1"), "text/plain; charset=ISO-8859-1", "Füße und Otter"),
        ("Füße und Otter".encode("utf-16"), "text/plain", "Füße und Otter"),
        ("# Otter\n\n* Füße".encode(), "text/markdown; charset=nonsense", "# Otter\n\n* Füße"),
        ("Füße".encode(), "text/plain; charset=latin-1", "Füße"),  # valid UTF-8 overrides the declared charset
        ("Füße".encode("cp1252"), "text/plain; charset='idna'", None),
        ("Füße".encode("cp1252"), "text/plain; charset=rot13", None),
        (b'{"otters": 3}', "application/json", '{"otters": 3}'),
        (b"<p>no page</p> <b>just text</b> with words", "text/plain", "<p>no page</p> <b>just text</b> with words"),
        ("カワウソは水辺で暮らす。".encode("euc_jp"), "text/plain; charset=EUC-JP", "カワウソは水辺で暮らす。"),
    ],
)
async def test_plain_text_is_decoded_and_returned_unchanged(body: bytes, header: str, text: str | None) -> None:
    if text is None:
        with pytest.raises(FetchFailed, match="cannot be read: it is "):
            await fetch_text(respond_with(body, f"Content-Type: {header}"))
    else:
        assert await fetch_text(respond_with(body, f"Content-Type: {header}")) == text


async def test_a_wrong_charset_of_an_html_page_is_tolerated() -> None:
    page = "<html><body><p>Füße, Otter und Flüsse sind hier zu sehen und zu lesen.</p></body></html>"
    assert "Füße" in await fetch_text(respond_with(page.encode(), "Content-Type: text/html; charset=punycode"))
    assert "Otter" in await fetch_text(respond_with(page.encode("latin-1"), "Content-Type: text/html; charset=utf-8"))


async def test_html_without_a_content_type_is_recognised_by_its_first_bytes() -> None:
    async def behave(head: bytes, writer: Writer) -> None:
        writer.write(build_response(b"\n <!DOCTYPE HTML><html><body><p>Otters everywhere you look.</p></body></html>"))

    assert await fetch_text(behave) == "Otters everywhere you look."

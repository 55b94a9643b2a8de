"""Pages that are written to hurt whoever reads them, and pages that are none."""

import asyncio
import gzip
import re

import pytest

from antiphon.errors import FetchFailed
from antiphon.tools.web_search.page_fetch import MOST_CHARACTERS, Reader
from tests.egress.hosts import Behaviour, Writer, answer, egress, hosting, saying

pytestmark = pytest.mark.anyio

HTML = "Content-Type: text/html"
WORDS = b"<p>otters hold hands while they sleep in the sea</p>"


async def text_of(behave: Behaviour, read_seconds: float = 60.0, fetch_seconds: float = 60.0) -> str:
    async with asyncio.timeout(200), hosting(behave) as host:
        reader = Reader(egress("127.0.0.0/8"), fetch_seconds, read_seconds)
        told, _ = await reader.open(f"http://127.0.0.1:{host.port}/x")
        return told.text


async def endless(head: bytes, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>")
    while True:
        writer.write(WORDS * 1000)
        await writer.drain()


async def drip(head: bytes, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5000\r\n\r\n")
    while True:
        writer.write(b"<p>")
        await writer.drain()
        await asyncio.sleep(0.05)


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20


@pytest.mark.parametrize(
    ("behave", "why"),
    [
        (endless, "sent more than"),
        (drip, "longer than"),
        (saying(gzip.compress(WORDS * 200_000), HTML, "Content-Encoding: gzip"), "sent more than"),
        (saying(gzip.compress(bytes(4_000_000)), HTML, "Content-Encoding: gzip"), "swells"),
        (saying(b"%PDF-1.7", "Content-Type: application/pdf"), "'application/pdf', which is not a text that can be"),
        (saying(PNG, "Content-Type: image/png"), "'image/png', which is not a text"),
        (saying(PNG, "Content-Type: text/plain"), "is a picture"),
        (saying(PNG), "is a picture"),
        (saying(PNG, HTML), "holds no text|cannot be read"),
        (saying(b"", HTML), "holds no text|cannot be read"),
        (saying(b"<html><body><script>x</script></body></html>", HTML), "holds no text"),
        (saying(b"gone", status="410 Gone"), "status 410"),
    ],
)
async def test_what_cannot_be_read_is_left_in_time_with_a_sentence(behave: Behaviour, why: str) -> None:
    with pytest.raises(FetchFailed, match=why):
        await text_of(behave, fetch_seconds=2.0 if behave is drip else 60.0)


@pytest.mark.parametrize(
    "body",
    [
        b"<div>" * 200_000 + WORDS,
        b"<html><body>" + b"<b><i><a href=x>" * 50_000 + WORDS,
        b"<table>" * 5_000 + WORDS + b"<tr><td>" * 20_000,
        b"<p " + b"a='b' " * 200_000 + b">" + WORDS,
        b"<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;'>" + WORDS + b"&b;" * 1000,
        b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><html><body>&e;' + WORDS,
        WORDS * 60_000,
        b"<a href='http://x.example/" + b"y" * 5_000_00 + b"'>z</a>" + WORDS,
        b"<a href='http://[::1'>z</a><a href='http://x y'>z</a><a href='//'>z</a>" + WORDS,
        b"<pre>" * 2_000 + b"\n" * 10_000 + WORDS,
        b"\xff\xfe\x00" * 1000 + WORDS,
        ("<p>" + "\ufdd0\u202e" * 1000 + "</p>").encode() + WORDS,
    ],
    ids=range(12),
)
async def test_a_hostile_page_is_read_or_given_up_and_the_server_lives(body: bytes) -> None:
    """It is not said which: that is for the parser to know. What comes of it is bounded."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    try:
        text = await text_of(saying(body, HTML), 4.0)
        assert len(text) <= MOST_CHARACTERS
        assert "root:" not in text
    except FetchFailed as failed:
        why = failed.message
        assert re.search("could not be read within|cannot be read|no text", why)
    finally:
        ticking.cancel()
    assert ticks > 3  # others were served meanwhile


async def test_reading_is_given_up_when_its_time_is_over_and_the_child_is_gone() -> None:
    with pytest.raises(FetchFailed, match=r"could not be read within 0\.05 seconds"):
        await text_of(saying(WORDS, HTML), 0.05)


async def test_a_reader_that_is_cancelled_ends_at_once() -> None:
    asked = asyncio.Event()

    async def behave(head: bytes, writer: Writer) -> None:
        writer.write(answer(WORDS * 50_000, HTML))
        asked.set()

    async with asyncio.timeout(60), hosting(behave) as host:
        url = f"http://127.0.0.1:{host.port}/x"
        reading = asyncio.ensure_future(Reader(egress("127.0.0.0/8"), 60.0, 60.0).open(url))
        await asked.wait()
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
        ("Füße".encode(), "text/plain; charset=latin-1", "Füße"),  # the bytes know better
        ("Füße".encode("cp1252"), "text/plain; charset='idna'", None),
        ("Füße".encode("cp1252"), "text/plain; charset=rot13", None),
        (b'{"otters": 3}', "application/json", '{"otters": 3}'),
        (b"<p>no page</p> <b>just text</b> with words", "text/plain", "<p>no page</p> <b>just text</b> with words"),
        ("カワウソは水辺で暮らす。".encode("euc_jp"), "text/plain; charset=EUC-JP", "カワウソは水辺で暮らす。"),
    ],
)
async def test_text_is_taken_as_it_is(body: bytes, header: str, text: str | None) -> None:
    if text is None:
        with pytest.raises(FetchFailed, match="and no text"):
            await text_of(saying(body, f"Content-Type: {header}"))
    else:
        assert await text_of(saying(body, f"Content-Type: {header}")) == text


async def test_a_wrong_charset_of_a_page_does_no_harm() -> None:
    page = "<html><body><p>Füße, Otter und Flüsse sind hier zu sehen und zu lesen.</p></body></html>"
    assert "Füße" in await text_of(saying(page.encode(), "Content-Type: text/html; charset=punycode"))
    assert "Otter" in await text_of(saying(page.encode("latin-1"), "Content-Type: text/html; charset=utf-8"))


async def test_an_undeclared_page_is_told_by_its_beginning() -> None:
    async def behave(head: bytes, writer: Writer) -> None:
        writer.write(answer(b"\n <!DOCTYPE HTML><html><body><p>Otters everywhere you look.</p></body></html>"))

    assert await text_of(behave) == "Otters everywhere you look."

"""What a prompt wants to show is brought: vetted, bounded, and once for every few minutes."""

import asyncio
from base64 import b64encode
from contextlib import suppress

import pytest

from antiphon.child_process import OUTCOMES
from antiphon.errors import (
    BadRequest,
    FetchFailed,
    InvalidFile,
    InvalidImage,
    InvalidImageUrl,
    InvalidValue,
    UrlRefused,
)
from antiphon.limits import Limits
from antiphon.render.attachments import Attached, FileSource, ImageSource, Source, Wish
from antiphon.service.attachments.attachments import Attachments
from tests.egress.hosts import Behaviour, Host, Writer, answer, egress, hosting, moved, saying
from tests.support.media_files import animated_webp, as_url, gif, huge_png, jpeg, pdf, png, webp
from tests.support.reference_cycles import errors_in_cycles

pytestmark = pytest.mark.anyio

OPEN = "127.0.0.1"
PNG = as_url(png())


def wanting(*sources: Source, times: int = 1) -> Attached:
    attached = Attached()
    attached.wanted = {source: Wish(f"input[{number}]", times) for number, source in enumerate(sources)}
    return attached


async def brought(*sources: Source, by: Attachments | None = None, tenant: str = "t", times: int = 1) -> list[str]:
    attached = wanting(*sources, times=times)
    async with asyncio.timeout(60):
        await (by or Attachments(egress(OPEN))).bring(tenant, attached)
    assert not attached.wanted
    return [attached.found[source] for source in sources]


async def refusal(*sources: Source, by: Attachments | None = None, times: int = 1) -> BadRequest:
    with pytest.raises(BadRequest) as refused:
        await brought(*sources, by=by, times=times)
    assert refused.value.status == 400
    assert refused.value.param
    assert "0x" not in refused.value.message
    return refused.value


async def test_a_picture_that_says_what_it_is_stays_as_it_is() -> None:
    for body, kind in ((png(), "png"), (jpeg(), "jpeg"), (gif(), "gif"), (webp(), "webp")):
        url = as_url(body, f"image/{kind}")
        (shown,) = await brought(ImageSource(url))
        assert shown is url


@pytest.mark.parametrize("declared", ["image/jpeg", "image/svg+xml", "video/jpeg", "text/html", "", "IMAGE/PNG"])
async def test_a_picture_is_called_what_it_is(declared: str) -> None:
    assert await brought(ImageSource(as_url(png(), declared))) == [PNG]


async def test_base64_is_sent_on_as_it_should_be_written() -> None:
    loose = PNG.replace("+", "-").replace("/", "_").rstrip("=").replace("data:image_png", "data:image/png") + "\n"
    assert await brought(ImageSource(loose)) == [PNG]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (as_url(huge_png(30_000, 30_000)), "30000×30000"),
        (as_url(gif(8, 8, frames=100_000)), "100000 frames"),
        (as_url(animated_webp(2000, 2000, 200)), "in 200 frames"),
        (as_url(png(1, 1)), "at least 4"),
        (as_url(b"<svg/>", "image/svg+xml"), "no PNG, JPEG, GIF or WebP"),
        (as_url(b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(50), "image/jp2"), "no PNG, JPEG, GIF or WebP"),
        (as_url(png()[:30]), "broken"),
        ("data:video/jpeg," + ",".join(["AAAA"] * 10_000), "base64"),
        ("data:image/png;base64,%%%", "not base64"),
        (as_url(png(2000, 2000) + bytes(100_000)), "more than the 50,000"),
    ],
)
async def test_bombs_and_broken_pictures_are_refused_before_anybody_decodes_them(url: str, reason: str) -> None:
    limits = Limits(image_bytes=50_000) if "50,000" in reason else Limits()
    refused = await refusal(ImageSource(url), by=Attachments(egress(), limits))
    assert isinstance(refused, InvalidImage)
    assert reason in refused.message


async def test_a_picture_that_a_url_names_becomes_data() -> None:
    async with hosting(saying(jpeg(), "Content-Type: image/png")) as host:
        url = f"http://127.0.0.1:{host.port}/a.png"
        assert await brought(ImageSource(url)) == [as_url(jpeg(), "image/jpeg")]


async def test_why_a_picture_cannot_be_had_is_said_in_openais_words() -> None:
    async with hosting(saying(b"<html>", "Content-Type: text/html")) as page, hosting(saying(b"no picture")) as host:
        for url, reason in (
            ("http://169.254.169.254/latest/meta-data/", "--allow-egress 169.254.169.254."),
            ("file:///etc/passwd", "http://"),
            ("/etc/passwd", "http://"),
            (f"http://127.0.0.1:{page.port}/", "text/html"),
            ("http://nobody.example/x.png", "no host"),
        ):
            refused = await refusal(ImageSource(url))
            assert isinstance(refused, InvalidImageUrl)
            assert refused.code == "invalid_image_url"
            assert reason in refused.message
        assert isinstance(await refusal(ImageSource(f"http://127.0.0.1:{host.port}/")), InvalidImage)


async def test_what_was_fetched_lately_is_not_fetched_again_by_the_same_tenant() -> None:
    async with hosting(saying(png())) as host:
        source = ImageSource(f"http://127.0.0.1:{host.port}/a.png?signature=secret")
        by = Attachments(egress(OPEN))
        first = await brought(source, by=by)
        assert await brought(source, by=by) == first
        assert host.connects == 1
        assert await brought(source, by=by, tenant="other") == first
        assert host.connects == 2


async def test_what_failed_is_tried_again() -> None:
    answers = [answer(b"", status="503 Busy"), answer(png())]

    async def behave(head: bytes, writer: Writer) -> None:
        writer.write(answers.pop(0))

    async with hosting(behave) as host:
        source = ImageSource(f"http://127.0.0.1:{host.port}/")
        by = Attachments(egress(OPEN))
        assert "503" in (await refusal(source, by=by)).message
        assert await brought(source, by=by) == [PNG]


class Crowd:
    """A host that lets nobody go before it is told to, and tells when one more came than should."""

    def __init__(self, most: int) -> None:
        self._here = 0
        self._most = most
        self.full = asyncio.Event()
        self.crowded = asyncio.Event()
        self.opened = asyncio.Event()

    async def behave(self, head: bytes, writer: Writer) -> None:
        self._here += 1
        if self._here == self._most:
            self.full.set()
        elif self._here > self._most and not self.opened.is_set():
            self.crowded.set()
        await self.opened.wait()
        writer.write(answer(png()))


async def test_a_request_fetches_a_few_at_once_and_no_more() -> None:
    crowd = Crowd(most=4)
    async with asyncio.timeout(30), hosting(crowd.behave) as host:
        sources = [ImageSource(f"http://127.0.0.1:{host.port}/{number}") for number in range(12)]
        bringing = asyncio.ensure_future(brought(*sources))
        await crowd.full.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await crowd.crowded.wait()
        crowd.opened.set()
        assert len(await bringing) == host.connects == 12


async def test_all_that_a_prompt_shows_is_counted() -> None:
    limits = Limits(images=3, files=2)
    by = Attachments(egress(), limits)
    text = FileSource("a.txt", b64encode(b"abc").decode())
    assert "shows 4 images; at most 3" in (await refusal(ImageSource(PNG), by=by, times=4)).message
    assert "shows 3 files; at most 2" in (await refusal(text, by=by, times=3)).message
    assert await brought(ImageSource(PNG), text, by=by, times=2)


async def test_what_is_shown_often_weighs_as_much_as_an_engine_gets_of_it() -> None:
    by = Attachments(egress(), Limits(attached_bytes=10 * len(PNG)))
    assert await brought(ImageSource(PNG), by=by, times=10)
    refused = await refusal(ImageSource(PNG), by=by, times=11)
    assert isinstance(refused, InvalidValue)
    assert "together" in refused.message


async def test_a_file_is_shown_with_its_name_between_marks() -> None:
    plain = b64encode("Größe".encode()).decode()
    for data in (plain, f"data:application/octet-stream;base64,{plain}", f"data:text/plain;base64,{plain}"):
        assert await brought(FileSource("../notes.txt", data)) == ['<file name="notes.txt">\nGröße\n</file>']
    assert await brought(FileSource("", "")) == ['<file name="file">\n\n</file>']


async def test_a_file_that_a_url_names_is_read_and_named_after_it() -> None:
    async with hosting(saying(pdf("Hello"), "Content-Type: text/plain")) as host:
        url = f"http://127.0.0.1:{host.port}/reports/May%20Report.pdf?x=y"
        by = Attachments(egress(OPEN))
        assert await brought(FileSource(url=url), by=by) == ['<file name="May Report.pdf">\n[page 1]\nHello\n</file>']
        assert await brought(FileSource("b.pdf", url=url), by=by) == ['<file name="b.pdf">\n[page 1]\nHello\n</file>']
        assert host.connects == 1


async def test_a_file_that_cannot_be_had_or_read_names_its_field() -> None:
    assert isinstance(await refusal(FileSource(url="http://10.0.0.1/")), UrlRefused)
    assert isinstance(await refusal(FileSource(url="http://nobody.example/")), FetchFailed)
    assert isinstance(await refusal(FileSource("a", "%%%")), InvalidFile)
    assert isinstance(await refusal(FileSource("a", b64encode(png()).decode())), InvalidFile)
    small = Attachments(egress(), Limits(file_bytes=10))
    assert "at most 10" in (await refusal(FileSource("a", b64encode(bytes(11)).decode()), by=small)).message


async def test_a_pdf_that_every_turn_shows_is_read_once() -> None:
    by = Attachments(egress())
    source = FileSource("a.pdf", b64encode(pdf("Hello")).decode())
    first = await brought(source, by=by)
    children = OUTCOMES.total()
    for _ in range(20):
        assert await brought(source, by=by) == first
    assert OUTCOMES.total() == children


async def test_what_was_refused_leaves_no_cycles_behind() -> None:
    """A picture may be large: it does not wait for a search for them."""
    with errors_in_cycles() as found:
        for source in (ImageSource("data:image/png;base64,AAAA"), FileSource("a", b64encode(png()).decode())):
            with suppress(BadRequest):
                await Attachments(egress()).bring("t", wanting(source))
    assert not found


async def test_one_that_fails_stops_the_others() -> None:
    async def never(head: bytes, writer: Writer) -> None:
        await asyncio.sleep(30)

    async with asyncio.timeout(30), hosting(never) as host:
        slow = ImageSource(f"http://127.0.0.1:{host.port}/")
        refused = await refusal(slow, ImageSource("http://10.0.0.1/"))
        assert refused.param == "input[1]"


def led(host: "list[Host]") -> Behaviour:
    async def behave(head: bytes, writer: Writer) -> None:
        writer.write(moved(f"http://127.0.0.2:{host[0].port}/secret.png"))

    return behave


async def test_a_redirect_to_what_is_closed_gets_nothing() -> None:
    async with hosting(saying(png()), "127.0.0.2") as canary, hosting(led([canary])) as host:
        refused = await refusal(ImageSource(f"http://127.0.0.1:{host.port}/"))
        assert "--allow-egress 127.0.0.2" in refused.message
        assert canary.connects == 0

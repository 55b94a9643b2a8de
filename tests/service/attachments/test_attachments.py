"""Attachments of a prompt are loaded: validated, limited, and cached for a few minutes. Hosts are local test
servers.
"""

import asyncio
from base64 import b64encode
from contextlib import suppress

import pytest

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
from antiphon.offload import MAX_INLINE_BYTES, OUTCOMES
from antiphon.protocol.types.parts import InputImage
from antiphon.render.content import (
    AttachmentLookup,
    AttachmentRequest,
    AttachmentSource,
    ContentRenderer,
    FileAttachment,
    ImageAttachment,
)
from antiphon.service.attachments.attachments import Attachments
from tests.egress.hosts import (
    Behaviour,
    Host,
    build_redirect,
    build_response,
    make_egress_client,
    respond_with,
    run_host,
)
from tests.support.local_servers import Writer
from tests.support.media_files import animated_webp, encode_data_url, gif, huge_png, jpeg, pdf, png, webp
from tests.support.reference_cycles import collect_cyclic_errors

pytestmark = pytest.mark.anyio

ALLOWED_HOST = "127.0.0.1"
PNG_URL = encode_data_url(png())


def make_lookup(*sources: AttachmentSource, times: int = 1) -> AttachmentLookup:
    lookup = AttachmentLookup()
    lookup.missing = {source: AttachmentRequest(f"input[{number}]", times) for number, source in enumerate(sources)}
    return lookup


async def load(
    *sources: AttachmentSource, attachments: Attachments | None = None, tenant: str = "t", times: int = 1
) -> list[str]:
    lookup = make_lookup(*sources, times=times)
    async with asyncio.timeout(60):
        await (attachments or Attachments(make_egress_client(ALLOWED_HOST))).load(tenant, lookup)
    assert not lookup.missing
    return [lookup.found[source] for source in sources]


async def expect_refusal(
    *sources: AttachmentSource, attachments: Attachments | None = None, times: int = 1
) -> BadRequest:
    with pytest.raises(BadRequest) as refused:
        await load(*sources, attachments=attachments, times=times)
    assert refused.value.status == 400
    assert refused.value.param
    assert "0x" not in refused.value.message
    return refused.value


async def test_an_image_with_the_right_media_type_is_unchanged() -> None:
    for body, kind in ((png(), "png"), (jpeg(), "jpeg"), (gif(), "gif"), (webp(), "webp")):
        url = encode_data_url(body, f"image/{kind}")
        (image,) = await load(ImageAttachment(url))
        assert image is url


@pytest.mark.parametrize("declared", ["image/jpeg", "image/svg+xml", "video/jpeg", "text/html", "", "IMAGE/PNG"])
async def test_the_media_type_of_an_image_is_corrected(declared: str) -> None:
    assert await load(ImageAttachment(encode_data_url(png(), declared))) == [PNG_URL]


async def test_base64_is_normalised() -> None:
    loose = PNG_URL.replace("+", "-").replace("/", "_").rstrip("=").replace("data:image_png", "data:image/png") + "\n"
    assert await load(ImageAttachment(loose)) == [PNG_URL]


@pytest.mark.parametrize(("size", "deferred"), [(10, False), (MAX_INLINE_BYTES, True)])
@pytest.mark.parametrize("ending", ["", "\n"])
async def test_only_large_images_are_corrected_by_the_request_to_the_engine(
    size: int, deferred: bool, ending: str
) -> None:
    right = encode_data_url(png() + bytes(size))
    sent = right.replace("image/png", "image/jpeg") + ending
    lookup, source = make_lookup(ImageAttachment(sent)), ImageAttachment(sent)
    lookup.defers_corrections = True
    await Attachments(make_egress_client()).load("t", lookup)
    assert lookup.found[source] == (sent if deferred else right)
    assert [correction.apply(sent) for correction in lookup.corrections.values()] == [right] * deferred
    part = ContentRenderer(frozenset({"input_image"}), lookup).render([InputImage(image_url=sent)], "", lambda *_: "")
    assert part[0].get("correction") == lookup.corrections.get(source)  # type: ignore[union-attr]  # it is no text


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (encode_data_url(huge_png(30_000, 30_000)), "30000×30000"),
        (encode_data_url(gif(8, 8, frames=100_000)), "100000 frames"),
        (encode_data_url(animated_webp(2000, 2000, 200)), "in 200 frames"),
        (encode_data_url(png(1, 1)), "at least 4"),
        (encode_data_url(b"<svg/>", "image/svg+xml"), "not a PNG, JPEG, GIF or WebP"),
        (encode_data_url(b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(50), "image/jp2"), "not a PNG, JPEG, GIF or WebP"),
        (encode_data_url(png()[:30]), "broken"),
        ("data:video/jpeg," + ",".join(["AAAA"] * 10_000), "base64"),
        ("data:image/png;base64,%%%", "not base64"),
        (encode_data_url(png(2000, 2000) + bytes(100_000)), "more than the 50,000"),
    ],
)
async def test_image_bombs_and_broken_images_are_rejected_before_decoding(url: str, reason: str) -> None:
    limits = Limits(image_bytes=50_000) if "50,000" in reason else Limits()
    refused = await expect_refusal(ImageAttachment(url), attachments=Attachments(make_egress_client(), limits))
    assert isinstance(refused, InvalidImage)
    assert reason in refused.message


async def test_an_image_url_becomes_a_data_url() -> None:
    async with run_host(respond_with(jpeg(), "Content-Type: image/png")) as host:
        url = f"http://127.0.0.1:{host.port}/a.png"
        assert await load(ImageAttachment(url)) == [encode_data_url(jpeg(), "image/jpeg")]


async def test_a_failed_image_fetch_has_the_openai_error_code_and_a_reason() -> None:
    async with (
        run_host(respond_with(b"<html>", "Content-Type: text/html")) as page,
        run_host(respond_with(b"no picture")) as host,
    ):
        for url, reason in (
            ("http://169.254.169.254/latest/meta-data/", "--allow-egress 169.254.169.254."),
            ("file:///etc/passwd", "http://"),
            ("/etc/passwd", "http://"),
            (f"http://127.0.0.1:{page.port}/", "text/html"),
            ("http://nobody.example/x.png", "no host"),
        ):
            refused = await expect_refusal(ImageAttachment(url))
            assert isinstance(refused, InvalidImageUrl)
            assert refused.code == "invalid_image_url"
            assert reason in refused.message
        assert isinstance(await expect_refusal(ImageAttachment(f"http://127.0.0.1:{host.port}/")), InvalidImage)


async def test_a_recent_fetch_is_cached_per_tenant() -> None:
    async with run_host(respond_with(png())) as host:
        source = ImageAttachment(f"http://127.0.0.1:{host.port}/a.png?signature=secret")
        attachments = Attachments(make_egress_client(ALLOWED_HOST))
        first = await load(source, attachments=attachments)
        assert await load(source, attachments=attachments) == first
        assert host.connects == 1
        assert await load(source, attachments=attachments, tenant="other") == first
        assert host.connects == 2


async def test_a_failed_fetch_is_not_cached() -> None:
    answers = [build_response(b"", status="503 Busy"), build_response(png())]

    async def behave(head: bytes, writer: Writer) -> None:
        writer.write(answers.pop(0))

    async with run_host(behave) as host:
        source = ImageAttachment(f"http://127.0.0.1:{host.port}/")
        attachments = Attachments(make_egress_client(ALLOWED_HOST))
        assert "503" in (await expect_refusal(source, attachments=attachments)).message
        assert await load(source, attachments=attachments) == [PNG_URL]


class GatedHost:
    """A host that holds all requests until `opened` is set, and signals when the limit is reached or exceeded."""

    def __init__(self, limit: int) -> None:
        self._active = 0
        self._limit = limit
        self.limit_reached = asyncio.Event()
        self.limit_exceeded = asyncio.Event()
        self.opened = asyncio.Event()

    async def behave(self, head: bytes, writer: Writer) -> None:
        self._active += 1
        if self._active == self._limit:
            self.limit_reached.set()
        elif self._active > self._limit and not self.opened.is_set():
            self.limit_exceeded.set()
        await self.opened.wait()
        writer.write(build_response(png()))


async def test_concurrent_fetches_of_a_request_are_bounded() -> None:
    gated = GatedHost(limit=4)
    async with asyncio.timeout(30), run_host(gated.behave) as host:
        sources = [ImageAttachment(f"http://127.0.0.1:{host.port}/{number}") for number in range(12)]
        loading = asyncio.ensure_future(load(*sources))
        await gated.limit_reached.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await gated.limit_exceeded.wait()
        gated.opened.set()
        assert len(await loading) == host.connects == 12


async def test_the_numbers_of_images_and_files_are_limited() -> None:
    limits = Limits(images=3, files=2)
    attachments = Attachments(make_egress_client(), limits)
    text = FileAttachment("a.txt", b64encode(b"abc").decode())
    assert (
        "contains 4 images; at most 3"
        in (await expect_refusal(ImageAttachment(PNG_URL), attachments=attachments, times=4)).message
    )
    assert "contains 3 files; at most 2" in (await expect_refusal(text, attachments=attachments, times=3)).message
    assert await load(ImageAttachment(PNG_URL), text, attachments=attachments, times=2)


async def test_every_repetition_of_an_attachment_counts_towards_the_size_limit() -> None:
    attachments = Attachments(make_egress_client(), Limits(attached_bytes=10 * len(PNG_URL)))
    assert await load(ImageAttachment(PNG_URL), attachments=attachments, times=10)
    refused = await expect_refusal(ImageAttachment(PNG_URL), attachments=attachments, times=11)
    assert isinstance(refused, InvalidValue)
    assert "together" in refused.message


async def test_a_file_is_rendered_with_its_name_between_markers() -> None:
    plain = b64encode("Größe".encode()).decode()
    for data in (plain, f"data:application/octet-stream;base64,{plain}", f"data:text/plain;base64,{plain}"):
        assert await load(FileAttachment("../notes.txt", data)) == ['<file name="notes.txt">\nGröße\n</file>']
    assert await load(FileAttachment("", "")) == ['<file name="file">\n\n</file>']


async def test_a_file_url_is_read_and_named_after_its_path() -> None:
    async with run_host(respond_with(pdf("Hello"), "Content-Type: text/plain")) as host:
        url = f"http://127.0.0.1:{host.port}/reports/May%20Report.pdf?x=y"
        attachments = Attachments(make_egress_client(ALLOWED_HOST))
        assert await load(FileAttachment(url=url), attachments=attachments) == [
            '<file name="May Report.pdf">\n[page 1]\nHello\n</file>'
        ]
        assert await load(FileAttachment("b.pdf", url=url), attachments=attachments) == [
            '<file name="b.pdf">\n[page 1]\nHello\n</file>'
        ]
        assert host.connects == 1


async def test_an_unreachable_or_unreadable_file_is_rejected_with_its_field() -> None:
    assert isinstance(await expect_refusal(FileAttachment(url="http://10.0.0.1/")), UrlRefused)
    assert isinstance(await expect_refusal(FileAttachment(url="http://nobody.example/")), FetchFailed)
    assert isinstance(await expect_refusal(FileAttachment("a", "%%%")), InvalidFile)
    assert isinstance(await expect_refusal(FileAttachment("a", b64encode(png()).decode())), InvalidFile)
    small = Attachments(make_egress_client(), Limits(file_bytes=10))
    assert (
        "at most 10"
        in (await expect_refusal(FileAttachment("a", b64encode(bytes(11)).decode()), attachments=small)).message
    )


async def test_a_pdf_repeated_in_every_turn_is_read_once() -> None:
    attachments = Attachments(make_egress_client())
    source = FileAttachment("a.pdf", b64encode(pdf("Hello")).decode())
    first = await load(source, attachments=attachments)
    children = OUTCOMES.total()
    for _ in range(20):
        assert await load(source, attachments=attachments) == first
    assert OUTCOMES.total() == children


async def test_a_rejected_attachment_leaves_no_reference_cycles() -> None:
    """Images may be large, so their memory must not wait for the garbage collector."""
    with collect_cyclic_errors() as found:
        for source in (ImageAttachment("data:image/png;base64,AAAA"), FileAttachment("a", b64encode(png()).decode())):
            with suppress(BadRequest):
                await Attachments(make_egress_client()).load("t", make_lookup(source))
    assert not found


async def test_a_failed_attachment_cancels_the_others() -> None:
    async def never(head: bytes, writer: Writer) -> None:
        await asyncio.sleep(30)

    async with asyncio.timeout(30), run_host(never) as host:
        slow = ImageAttachment(f"http://127.0.0.1:{host.port}/")
        refused = await expect_refusal(slow, ImageAttachment("http://10.0.0.1/"))
        assert refused.param == "input[1]"


def make_redirect(host: "list[Host]") -> Behaviour:
    """Return a behaviour that redirects to this host."""

    async def behave(head: bytes, writer: Writer) -> None:
        writer.write(build_redirect(f"http://127.0.0.2:{host[0].port}/secret.png"))

    return behave


async def test_a_redirect_to_a_blocked_address_is_not_followed() -> None:
    async with run_host(respond_with(png()), "127.0.0.2") as canary, run_host(make_redirect([canary])) as host:
        refused = await expect_refusal(ImageAttachment(f"http://127.0.0.1:{host.port}/"))
        assert "--allow-egress 127.0.0.2" in refused.message
        assert canary.connects == 0

"""Images are recognised by their bytes, and the size that a decoder would allocate is read before decoding."""

import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.data_urls import UnreadableMedia
from antiphon.core.images import ImageInfo, measure_data_url, read_image_info
from drills.bombs.images import SIDE_DATA, make_expanding_png
from tests.support.cpu import cpu_timer
from tests.support.media_files import animated_webp, encode_data_url, gif, huge_png, jpeg, png, png_chunk, webp

APP0 = b"\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
LOSSY = b"RIFF\x16\0\0\0WEBPVP8 \x0a\0\0\0\x10\0\0\x9d\x01\x2a\x80\x02\xe0\x01"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (png(8, 6), ImageInfo("image/png", 8, 6)),
        (huge_png(30_000, 30_000), ImageInfo("image/png", 30_000, 30_000)),
        (png(8, 6, png_chunk(b"acTL", b"\0\x01\x86\xa0\0\0\0\0")), ImageInfo("image/png", 8, 6, 100_000)),
        (png(8, 6, *[png_chunk(b"fcTL", bytes(26))] * 3), ImageInfo("image/png", 8, 6, 3)),
        (jpeg(640, 480), ImageInfo("image/jpeg", 640, 480)),
        (jpeg(65_500, 65_500, before=APP0 + b"\xff\xff"), ImageInfo("image/jpeg", 65_500, 65_500)),
        (gif(20, 10), ImageInfo("image/gif", 20, 10)),
        (gif(20, 10, frames=1000), ImageInfo("image/gif", 20, 10, 1000)),
        (webp(16_384, 16_384), ImageInfo("image/webp", 16_384, 16_384)),
        (animated_webp(20, 10, 7), ImageInfo("image/webp", 20, 10, 7)),
        (LOSSY, ImageInfo("image/webp", 640, 480)),
        # a frame that is smaller, and one that is larger than its canvas of 20 × 10
        (animated_webp(20, 10, 1).replace(webp(20, 10)[12:], webp(6, 9)[12:]), ImageInfo("image/webp", 20, 10)),
        (animated_webp(20, 10, 1).replace(webp(20, 10)[12:], webp(60, 90)[12:]), ImageInfo("image/webp", 60, 90)),
    ],
)
def test_kind_and_size_and_frames_are_read_from_the_headers(body: bytes, expected: ImageInfo) -> None:
    assert read_image_info(body) == expected


def test_a_gif_may_end_after_a_block_of_its_frame() -> None:
    assert read_image_info(gif()[:-2]) == ImageInfo("image/gif", 8, 6, 1)


def test_a_frame_larger_than_its_screen_determines_the_size() -> None:
    small = gif(4, 4)
    frame = gif(5000, 4000)[19:]
    assert read_image_info(small[:19] + frame) == ImageInfo("image/gif", 5000, 4000)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"\0\0\0\x0cjP  \r\n\x87\n",
        b"II*\0",
        b"BM" + bytes(60),
        b"%PDF-1.4",
        b"\x89PNG\r\n\x1a\n",
        png()[:20],
        png()[:33],
        png(0, 6),
        jpeg(0, 0),
        jpeg()[:12],
        b"\xff\xd8\xff",
        jpeg(scans=1000),
        gif()[:13],
        gif(frames=0),
        webp()[:20],
        b"RIFF\x04\0\0\0WEBP",
        b"\xff\xd8\xff" + b"\xff" * 400_000,
        gif(8, 6)[:19] + (b"\x21\xfe" + b"\x01a" * 400_000 + b"\0") + gif(8, 6)[19:],
    ],
)
def test_invalid_and_broken_images_are_rejected_with_a_readable_error(body: bytes) -> None:
    with pytest.raises(UnreadableMedia) as refused:
        read_image_info(body)
    assert str(refused.value).endswith(".")
    assert "0x" not in str(refused.value)


@pytest.mark.parametrize("name", [b"iCCP", b"zTXt", b"iTXt"])
def test_decompression_bombs_in_text_and_profile_chunks_are_rejected(name: bytes) -> None:
    """The chunk inflates from a hundred kilobytes to a hundred megabytes."""
    begin, bomb = SIDE_DATA[name], make_expanding_png(name)
    with cpu_timer() as spent, pytest.raises(UnreadableMedia):
        read_image_info(bomb)
    assert spent.seconds < 1.0
    modest = begin + zlib.compress(b"a profile" * 100)
    assert read_image_info(png(8, 6, png_chunk(name, modest))).width == 8
    assert read_image_info(png(8, 6, png_chunk(name, begin + b"nonsense"))).width == 8


@pytest.mark.parametrize("body", [animated_webp(8, 8, 60_000), png(8, 6, *[png_chunk(b"tEXt", b"")] * 60_000)])
def test_an_image_with_too_many_chunks_is_rejected_quickly(body: bytes) -> None:
    with cpu_timer() as spent, pytest.raises(UnreadableMedia):
        read_image_info(body)
    assert spent.seconds < 0.25


SAMPLES = [png(), jpeg(), gif(frames=2), webp(), animated_webp(9, 9, 2), LOSSY]


@given(
    body=st.sampled_from(SAMPLES),
    edits=st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=8)), max_size=6),
    end=st.integers(0, 200),
)
def test_a_corrupted_image_raises_no_error_but_unreadable_media(
    body: bytes, edits: list[tuple[int, bytes]], end: int
) -> None:
    changed = bytearray(body)
    for at, put in edits:
        changed[at : at + len(put)] = put
    try:
        info = read_image_info(bytes(changed[:-end] if end else changed))
    except UnreadableMedia:
        return
    assert info.width > 0
    assert info.height > 0
    assert info.frames > 0


@given(
    st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\0\0\0\0WEBP"]), st.binary(max_size=400)
)
def test_noise_after_a_valid_signature_raises_no_other_error(begin: bytes, noise: bytes) -> None:
    with suppress(UnreadableMedia):
        read_image_info(begin + noise)


@pytest.mark.parametrize(
    "piece",
    [
        png_chunk(b"tEXt", b""),
        b"\x21\xfe\x01a\0",
        b"\x2c" + bytes(9) + b"\x02\x01a\0",
        b"\xff\xfe\x00\x02",
        b"ANMF\0\0\0\0",
        b"\xff\xda",
    ],
)
def test_reading_time_is_linear_in_the_size(piece: bytes) -> None:
    for begin in (png()[:-12], jpeg()[:2], gif()[:19], webp()):
        took = []
        for megabytes in (1, 4):
            body = begin + piece * (megabytes * 1024 * 1024 // len(piece))
            with cpu_timer() as spent, suppress(UnreadableMedia):
                read_image_info(body)
            took.append(spent.seconds)
        assert took[1] < max(0.25, took[0] * 12)


@pytest.mark.parametrize("body", [png(40, 30), jpeg(40, 30), gif(40, 30), webp(40, 30)])
@pytest.mark.shows("E1.2")
def test_a_data_url_is_measured_by_its_head_or_else_as_a_whole(body: bytes) -> None:
    profile = png_chunk(b"tEXt", b"a" * 100_000)
    for image in (body, body + bytes(200_000), png(40, 30, profile)):
        for url in (encode_data_url(image), encode_data_url(image).replace("base64,", "base64,\n")):
            info = measure_data_url(url)
            assert (info.width, info.height) == (40, 30)

"""Invalid, expanding and endless images, in every field that accepts an image."""

import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from drills.bombs.bomb import MEDIA_SECONDS, Bomb, create_bomb, post_bomb
from tests.faults.raw_client import build_body
from tests.support.media_files import animated_webp, encode_data_url, gif, huge_png, jpeg, png, png_chunk, webp

MIB = 1024 * 1024
_JPEG2000 = b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypjp2 \0\0\0\0jp2 \0\0\0-jp2h" + bytes(range(200))
SIDE_DATA = {b"iCCP": b"icc\0\0", b"zTXt": b"text\0\0", b"iTXt": b"text\0\x01\0en\0word\0"}


def make_expanding_png(chunk_name: bytes, megabytes: int = 100) -> bytes:
    """Return an image with a text or profile that is a thousand times larger when decompressed."""
    return png(8, 6, png_chunk(chunk_name, SIDE_DATA[chunk_name] + zlib.compress(bytes(megabytes * MIB), 9)))


def _exif(size: int) -> bytes:
    """Return a JPEG with meaningless EXIF segments in front of the image."""
    segment = b"\xff\xe1" + struct.pack(">H", 65_535) + b"Exif\0\0" + b"MM\0*" + bytes(65_523)
    return jpeg(before=segment * (size // len(segment)))


IMAGES: dict[str, Callable[[], bytes]] = {
    "30,000 x 30,000": lambda: huge_png(30_000, 30_000),
    "2^31 x 2^31": lambda: huge_png(2**31 - 1, 2**31 - 1),
    "a JPEG of 65,500 x 65,500": lambda: jpeg(65_500, 65_500),
    "a WebP of 16,384 x 16,384": lambda: webp(16_384, 16_384),
    "a GIF of 65,535 x 65,535": lambda: gif(65_535, 65_535),
    "a GIF of 100,000 frames": lambda: gif(8, 8, frames=100_000),
    "a WebP of 100,000 frames": lambda: animated_webp(8, 8, 100_000),
    "a WebP of 200 large frames": lambda: animated_webp(2000, 2000, 200),
    "a PNG that promises 100,000 frames": lambda: png(8, 6, png_chunk(b"acTL", b"\0\x01\x86\xa0\0\0\0\0")),
    "a PNG of 50,000 frames": lambda: png(8, 6, *[png_chunk(b"fcTL", bytes(26))] * 50_000),
    "one pixel": lambda: png(1, 1),
    "no pixel": lambda: png(0, 6),
    "one row": lambda: png(5_000, 1),
    "a profile that swells": lambda: make_expanding_png(b"iCCP"),
    "a text that swells": lambda: make_expanding_png(b"zTXt"),
    "an international text that swells": lambda: make_expanding_png(b"iTXt"),
    "a JPEG of 1,000 scans": lambda: jpeg(scans=1_000),
    "fill bytes without end": lambda: b"\xff\xd8\xff" + b"\xff" * 400_000,
    "a GIF of 400,000 blocks": lambda: gif()[:19] + b"\x21\xfe" + b"\x01a" * 400_000 + b"\0" + gif()[19:],
    "a PNG of 400,000 chunks": lambda: png(8, 6, *[png_chunk(b"tEXt", b"")] * 400_000),
    "half a PNG": lambda: png()[:33],
    "a PNG without data": lambda: png()[:33] + png_chunk(b"IEND", b""),
    "half a JPEG": lambda: jpeg()[:12],
    "half a WebP": lambda: webp()[:20],
    "a broken JPEG 2000": lambda: _JPEG2000,
    "a TIFF": lambda: b"II*\0" + bytes(100),
    "a bitmap": lambda: b"BM" + bytes(60),
    "SVG": lambda: b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    "a billion laughs": lambda: b'<!DOCTYPE x [<!ENTITY a "ha">%b]><svg>&j;</svg>'
    % b"".join(b'<!ENTITY %c "%b">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(9)),
    "noise": lambda: bytes(range(256)) * 400,
    "nothing": lambda: b"",
}  # fmt: skip
URLS = {
    "no base64": "data:image/png;base64,%%%",
    "no data": "data:image/png",
    "ten thousand frames of a video": "data:video/jpeg," + ",".join(["AAAA"] * 10_000),
    "a video": "data:video/mp4;base64," + b64encode(b"\0\0\0\x18ftypmp42" + bytes(999)).decode(),
    "a head without end": "data:image/png;" + "x" * 100_000 + ";base64,QUJD",
    "blanks alone": "data:image/png;base64," + " " * 1_000_000,
    "a file": "file:///etc/passwd",
    "this machine": "http://127.0.0.1:1/x.png",
    "metadata": "http://169.254.169.254/latest/meta-data/",
}


def image_fields(url: str) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}


def image_body(make: Callable[[], bytes]) -> bytes:
    """Return a request body with the image."""
    return build_body(**image_fields(encode_data_url(make())))


def images() -> Iterator[Bomb]:
    field = "input[0].content[0].image_url"
    for name, make in IMAGES.items():
        yield post_bomb(f"an image: {name}", partial(image_body, make), param=field, max_seconds=MEDIA_SECONDS)
    for name, url in URLS.items():
        yield create_bomb(f"an image URL: {name}", image_fields(url), param=field, max_seconds=MEDIA_SECONDS)
    for name in ("30,000 x 30,000", "a GIF of 100,000 frames", "a profile that swells", "half a JPEG"):
        yield from _other_fields(name, IMAGES[name])
    yield from _large_inputs()


def _other_fields(name: str, make: Callable[[], bytes]) -> Iterator[Bomb]:
    """Yield the image in other fields and in other APIs."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}

    def output() -> bytes:
        part = {"type": "input_image", "image_url": encode_data_url(make())}
        return build_body(input=[call, {"type": "function_call_output", "call_id": "c", "output": [part]}])

    def chat() -> bytes:
        part = {"type": "image_url", "image_url": {"url": encode_data_url(make())}}
        return build_body(messages=[{"role": "user", "content": [part]}])

    def messages() -> bytes:
        source = {"type": "base64", "media_type": "image/png", "data": b64encode(make()).decode()}
        return build_body(max_tokens=9, messages=[{"role": "user", "content": [{"type": "image", "source": source}]}])

    yield post_bomb(f"a tool's image: {name}", output, param="input[1].output[0].image_url", max_seconds=MEDIA_SECONDS)
    yield post_bomb(
        f"a chat's image: {name}",
        chat,
        "/v1/chat/completions",
        param="messages[0].content[0]",
        max_seconds=MEDIA_SECONDS,
    )
    yield post_bomb(f"a message's image: {name}", messages, "/v1/messages", max_seconds=MEDIA_SECONDS, anthropic=True)
    yield post_bomb(
        f"an image to be counted: {name}",
        partial(image_body, make),
        "/v1/responses/input_tokens",
        param="input[0].content[0].image_url",
        max_seconds=MEDIA_SECONDS,
    )


def _large_inputs() -> Iterator[Bomb]:
    part = {"type": "input_image", "image_url": encode_data_url(png())}
    yield create_bomb(
        "101 images",
        {"input": [{"role": "user", "content": [part] * 101}]},
        max_seconds=MEDIA_SECONDS,
        param="input[0].content[0]",
    )

    def noise() -> bytes:
        return build_body(**image_fields(encode_data_url(b"\x89PNG\r\n\x1a\n" + bytes(15 * MIB - 2_000))))

    yield post_bomb(
        "15 MiB that begin like an image", noise, param="input[0].content[0].image_url", max_seconds=MEDIA_SECONDS
    )

    def large() -> bytes:
        """Return a body of the maximum size."""
        return build_body(**image_fields(encode_data_url(png() + bytes(15 * MIB - 2_000))), store=False)

    yield post_bomb(
        "an image of 15 MiB, mostly data after its end",
        large,
        answers=(200, 400),
        max_seconds=MEDIA_SECONDS,
        reaches=True,
    )

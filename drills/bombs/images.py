"""Pictures that promise more than they hold, swell, have no end, or are none; in every field that shows one."""

import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from drills.bombs.bomb import LOOKED_AT, Bomb, asked, posted
from tests.faults.raw_client import body
from tests.support.media_files import animated_webp, as_url, chunk, gif, huge_png, jpeg, png, webp

MIB = 1024 * 1024
_JPEG2000 = b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypjp2 \0\0\0\0jp2 \0\0\0-jp2h" + bytes(range(200))
SIDE_DATA = {b"iCCP": b"icc\0\0", b"zTXt": b"text\0\0", b"iTXt": b"text\0\x01\0en\0word\0"}


def swollen(name: bytes, megabytes: int = 100) -> bytes:
    """A text or a profile that is a thousand times as large once it is inflated."""
    return png(8, 6, chunk(name, SIDE_DATA[name] + zlib.compress(bytes(megabytes * MIB), 9)))


def _exif(size: int) -> bytes:
    """Segments of nonsense about the picture before it begins."""
    segment = b"\xff\xe1" + struct.pack(">H", 65_535) + b"Exif\0\0" + b"MM\0*" + bytes(65_523)
    return jpeg(before=segment * (size // len(segment)))


BOMBS: dict[str, Callable[[], bytes]] = {
    "30,000 x 30,000": lambda: huge_png(30_000, 30_000),
    "2^31 x 2^31": lambda: huge_png(2**31 - 1, 2**31 - 1),
    "a JPEG of 65,500 x 65,500": lambda: jpeg(65_500, 65_500),
    "a WebP of 16,384 x 16,384": lambda: webp(16_384, 16_384),
    "a GIF of 65,535 x 65,535": lambda: gif(65_535, 65_535),
    "a GIF of 100,000 frames": lambda: gif(8, 8, frames=100_000),
    "a WebP of 100,000 frames": lambda: animated_webp(8, 8, 100_000),
    "a WebP of 200 large frames": lambda: animated_webp(2000, 2000, 200),
    "a PNG that promises 100,000 frames": lambda: png(8, 6, chunk(b"acTL", b"\0\x01\x86\xa0\0\0\0\0")),
    "a PNG of 50,000 frames": lambda: png(8, 6, *[chunk(b"fcTL", bytes(26))] * 50_000),
    "one pixel": lambda: png(1, 1),
    "no pixel": lambda: png(0, 6),
    "one row": lambda: png(5_000, 1),
    "a profile that swells": lambda: swollen(b"iCCP"),
    "a text that swells": lambda: swollen(b"zTXt"),
    "an international text that swells": lambda: swollen(b"iTXt"),
    "a JPEG of 1,000 scans": lambda: jpeg(scans=1_000),
    "fill bytes without end": lambda: b"\xff\xd8\xff" + b"\xff" * 400_000,
    "a GIF of 400,000 blocks": lambda: gif()[:19] + b"\x21\xfe" + b"\x01a" * 400_000 + b"\0" + gif()[19:],
    "a PNG of 400,000 chunks": lambda: png(8, 6, *[chunk(b"tEXt", b"")] * 400_000),
    "half a PNG": lambda: png()[:33],
    "a PNG without data": lambda: png()[:33] + chunk(b"IEND", b""),
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


def shown(url: str) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}


def showing(make: Callable[[], bytes]) -> bytes:
    """A body."""
    return body(**shown(as_url(make())))


def images() -> Iterator[Bomb]:
    field = "input[0].content[0].image_url"
    for name, make in BOMBS.items():
        yield posted(f"a picture: {name}", partial(showing, make), param=field, most=LOOKED_AT)
    for name, url in URLS.items():
        yield asked(f"a picture's URL: {name}", shown(url), param=field, most=LOOKED_AT)
    for name in ("30,000 x 30,000", "a GIF of 100,000 frames", "a profile that swells", "half a JPEG"):
        yield from _elsewhere(name, BOMBS[name])
    yield from _many()


def _elsewhere(name: str, make: Callable[[], bytes]) -> Iterator[Bomb]:
    """Other fields, and other APIs."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}

    def output() -> bytes:
        part = {"type": "input_image", "image_url": as_url(make())}
        return body(input=[call, {"type": "function_call_output", "call_id": "c", "output": [part]}])

    def chat() -> bytes:
        part = {"type": "image_url", "image_url": {"url": as_url(make())}}
        return body(messages=[{"role": "user", "content": [part]}])

    def messages() -> bytes:
        source = {"type": "base64", "media_type": "image/png", "data": b64encode(make()).decode()}
        return body(max_tokens=9, messages=[{"role": "user", "content": [{"type": "image", "source": source}]}])

    yield posted(f"a tool's picture: {name}", output, param="input[1].output[0].image_url", most=LOOKED_AT)
    yield posted(f"a chat's picture: {name}", chat, "/v1/chat/completions", param="messages[0].content[0]",
                 most=LOOKED_AT)  # fmt: skip
    yield posted(f"a message's picture: {name}", messages, "/v1/messages", most=LOOKED_AT, anthropic=True)
    yield posted(f"a picture to be counted: {name}", partial(showing, make),
                 "/v1/responses/input_tokens", param="input[0].content[0].image_url", most=LOOKED_AT)  # fmt: skip


def _many() -> Iterator[Bomb]:
    part = {"type": "input_image", "image_url": as_url(png())}
    yield asked("101 pictures", {"input": [{"role": "user", "content": [part] * 101}]}, most=LOOKED_AT,
                param="input[0].content[0]")  # fmt: skip

    def noise() -> bytes:
        return body(**shown(as_url(b"\x89PNG\r\n\x1a\n" + bytes(15 * MIB - 2_000))))

    yield posted("15 MiB that begin like a picture", noise, param="input[0].content[0].image_url", most=LOOKED_AT)

    def large() -> bytes:
        """As large as a body may be."""
        return body(**shown(as_url(png() + bytes(15 * MIB - 2_000))), store=False)

    yield posted("a picture of 15 MiB, most of it behind its end", large, answers=(200, 400), most=LOOKED_AT,
                 reaches=True)  # fmt: skip

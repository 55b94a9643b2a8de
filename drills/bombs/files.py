"""Files that are not what they say, swell, or keep a reader busy; what a PDF does is done to a child process."""

import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from drills.bombs.bomb import LOOKED_AT, READ, Bomb, asked, posted
from tests.faults.raw_client import body
from tests.support.media_files import pdf, png

MIB = 1024 * 1024


def swollen_pdf(megabytes: int = 150) -> bytes:
    """A page of so much that is less than one in the file."""
    stream = zlib.compress(b"BT /F1 1 Tf (a) Tj ET\n" + b" " * (megabytes * 1_000_000), 1)
    plain = pdf("x").replace(b"<< /Length 36 >>", b"<< /Length %d /Filter /FlateDecode >>" % len(stream))
    head, _, rest = plain.partition(b"stream\n")
    return head + b"stream\n" + stream + b"\nendstream" + rest.partition(b"endstream")[2]


BROKEN_PDFS = (
    b"%PDF-1.4",
    b"%PDF-1.4\n" + bytes(range(256)) * 40,
    pdf("hello")[:150],
    pdf("hello").replace(b"/Kids [4 0 R]", b"/Kids [2 0 R]"),
    pdf("hello").replace(b"/Pages 2 0 R", b"/Pages 1 0 R"),
)
PDFS: dict[str, Callable[[], bytes]] = {
    **{f"broken {number}": partial(bytes, each) for number, each in enumerate(BROKEN_PDFS)},
    "a page that swells": swollen_pdf,
    "501 pages": lambda: pdf(*["a"] * 501),
    "no text": lambda: pdf("", ""),
    "pages within pages": lambda: pdf("x").replace(b"/Kids [4 0 R]", b"/Kids [" + b"2 0 R " * 5_000 + b"]"),
    "a million brackets": lambda: b"%PDF-1.4\n1 0 obj\n" + b"[" * 1_000_000,
    "a million objects": lambda: b"%PDF-1.4\n" + b"1 0 obj\n<<>>\nendobj\n" * 300_000,
}  # fmt: skip
OTHERS: dict[str, Callable[[], bytes]] = {
    "a picture": png,
    "a ZIP": lambda: b"PK\x03\x04" + bytes(100),
    "gzip": lambda: zlib.compress(bytes(MIB)),
    "ELF": lambda: b"\x7fELF" + bytes(100),
    "noise": lambda: bytes(range(256)) * 400,
    "15 MiB of noise": lambda: (bytes(range(256)) * (15 * MIB // 256))[:-2_000],
    "five million characters": lambda: b"x" * 5_000_000,
}  # fmt: skip
NAMES = ("../../x", "/etc/passwd", "a\0b", "x" * 100_000, "..\\..\\x", "\r\nSet-Cookie: a=b")


def attached(data: str, name: str = "a.pdf") -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [{"type": "input_file", "filename": name, "file_data": data}]}]}


def files() -> Iterator[Bomb]:
    field = "input[0].content[0].file_data"
    for name, make in OTHERS.items():
        yield posted(f"a file: {name}", partial(_attaching, "", make), param=field, most=LOOKED_AT)
    yield asked("a file: no base64", attached("%%%"), param=field)
    yield asked("a file by id", {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "../x"}]}]},
                param="input[0].content[0].file_id")  # fmt: skip
    for url in ("file:///etc/passwd", "http://127.0.0.1:1/x", "http://169.254.169.254/", "ftp://127.0.0.1/x", ""):
        part = {"type": "input_file", "file_url": url}
        yield asked(f"a file at {url}", {"input": [{"role": "user", "content": [part]}]},
                    param="input[0].content[0].file_")  # fmt: skip
    text = b64encode(b"plain").decode()
    for name in NAMES:
        yield asked(f"a file called {name[:20]!r}", attached(text, name), answers=(200, 400), reaches=True)
    part = {"type": "input_file", "filename": "a", "file_data": text}
    yield asked("51 files", {"input": [{"role": "user", "content": [part] * 51}]}, param="input[0].content[0]")


def pdfs() -> Iterator[Bomb]:
    field = "input[0].content[0].file_data"
    for name, make in PDFS.items():
        sent = partial(_attaching, "data:application/pdf;base64,", make)
        yield posted(f"a PDF: {name}", sent, param=field, most=READ)


def _attaching(head: str, make: Callable[[], bytes]) -> bytes:
    """A body."""
    return body(**attached(head + b64encode(make()).decode()))

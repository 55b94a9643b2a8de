"""Files of another type than declared, and files that expand or are slow to parse; PDFs, office documents and
HTML are parsed by a child process.
"""

import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from drills.bombs.bomb import DOCUMENT_SECONDS, MEDIA_SECONDS, Bomb, create_bomb, post_bomb
from tests.faults.raw_client import build_body
from tests.support.media_files import pdf, png
from tests.support.office_files import archive, docx, paragraph, xlsx

MIB = 1024 * 1024


def make_expanding_pdf(megabytes: int = 150) -> bytes:
    """Return a PDF of less than a megabyte whose page has `megabytes` when decompressed."""
    stream = zlib.compress(b"BT /F1 1 Tf (a) Tj ET\n" + b" " * (megabytes * 1_000_000), 1)
    plain = pdf("x").replace(b"<< /Length 36 >>", b"<< /Length %d /Filter /FlateDecode >>" % len(stream))
    head, _, tail = plain.partition(b"stream\n")
    return head + b"stream\n" + stream + b"\nendstream" + tail.partition(b"endstream")[2]


_ENTITIES = (
    "<!DOCTYPE x ["
    + "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "lol"}">' for n in range(10))
    + "]><x>&e9;</x>"
)
BROKEN_PDFS = (
    b"%PDF-1.4",
    b"%PDF-1.4\n" + bytes(range(256)) * 40,
    pdf("hello")[:150],
    pdf("hello").replace(b"/Kids [4 0 R]", b"/Kids [2 0 R]"),
    pdf("hello").replace(b"/Pages 2 0 R", b"/Pages 1 0 R"),
)
DOCUMENTS: dict[str, Callable[[], bytes]] = {
    **{f"broken {number}": partial(bytes, each) for number, each in enumerate(BROKEN_PDFS)},
    "a page that swells": make_expanding_pdf,
    "501 pages": lambda: pdf(*["a"] * 501),
    "no text": lambda: pdf("", ""),
    "pages within pages": lambda: pdf("x").replace(b"/Kids [4 0 R]", b"/Kids [" + b"2 0 R " * 5_000 + b"]"),
    "a million brackets": lambda: b"%PDF-1.4\n1 0 obj\n" + b"[" * 1_000_000,
    "a docx that unpacks to 300 MB": lambda: archive({"word/document.xml": bytes(300_000_000)}),
    "a docx with 10,001 files": lambda: archive({"word/document.xml": "", **{f"{n}.xml": "" for n in range(10_000)}}),
    "a docx whose entities multiply": lambda: archive({"word/document.xml": _ENTITIES}),
    "a docx that is cut": lambda: docx(paragraph("hello"))[:-40],
    "a ZIP with paths to other folders": lambda: archive({"../../../etc/passwd": "x", "/etc/passwd": "x"}),
    "a page of half a tag": lambda: b"<html>" + b"<a " * 300_000,
    "a page of comments without an end": lambda: b"<html>" + b"<!--" * 200_000,
    "a page without text": lambda: b"<html><script>x()</script>",
    "a million objects": lambda: b"%PDF-1.4\n" + b"1 0 obj\n<<>>\nendobj\n" * 300_000,
}  # fmt: skip
OTHER_FILES: dict[str, Callable[[], bytes]] = {
    "a picture": png,
    "a ZIP": lambda: b"PK\x03\x04" + bytes(100),
    "gzip": lambda: zlib.compress(bytes(MIB)),
    "ELF": lambda: b"\x7fELF" + bytes(100),
    "noise": lambda: bytes(range(256)) * 400,
    "15 MiB of noise": lambda: (bytes(range(256)) * (15 * MIB // 256))[:-2_000],
    "five million characters": lambda: b"x" * 5_000_000,
}  # fmt: skip
FILE_NAMES = ("../../x", "/etc/passwd", "a\0b", "x" * 100_000, "..\\..\\x", "\r\nSet-Cookie: a=b")


def file_fields(data: str, name: str = "a.pdf") -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [{"type": "input_file", "filename": name, "file_data": data}]}]}


def files() -> Iterator[Bomb]:
    field = "input[0].content[0].file_data"
    for name, make in OTHER_FILES.items():
        yield post_bomb(f"a file: {name}", partial(_file_body, "", make), param=field, max_seconds=MEDIA_SECONDS)
    yield create_bomb("a file: not base64", file_fields("%%%"), param=field)
    yield create_bomb(
        "a file by id",
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "../x"}]}]},
        param="input[0].content[0].file_id",
    )
    for url in ("file:///etc/passwd", "http://127.0.0.1:1/x", "http://169.254.169.254/", "ftp://127.0.0.1/x", ""):
        part = {"type": "input_file", "file_url": url}
        yield create_bomb(f"a file at {url}", {"input": [{"role": "user", "content": [part]}]},
                    param="input[0].content[0].file_")  # fmt: skip
    text = b64encode(b"plain").decode()
    for name in FILE_NAMES:
        yield create_bomb(f"a file called {name[:20]!r}", file_fields(text, name), answers=(200, 400), reaches=True)
    part = {"type": "input_file", "filename": "a", "file_data": text}
    yield create_bomb("51 files", {"input": [{"role": "user", "content": [part] * 51}]}, param="input[0].content[0]")


def documents() -> Iterator[Bomb]:
    field = "input[0].content[0].file_data"
    for name, make in DOCUMENTS.items():
        sent = partial(_file_body, "data:application/pdf;base64,", make)
        yield post_bomb(f"a document: {name}", sent, param=field, max_seconds=DOCUMENT_SECONDS)
    sheet = xlsx({"wide": "<row>" + "<c><v>1</v></c>" * 10_000 + "</row>"}, [])
    yield create_bomb("a sheet of 10,000 columns", file_fields(b64encode(sheet).decode(), "a.xlsx"),
                answers=(200, 400), reaches=True, max_seconds=DOCUMENT_SECONDS)  # fmt: skip


def _file_body(head: str, make: Callable[[], bytes]) -> bytes:
    """Return a request body with the file."""
    return build_body(**file_fields(head + b64encode(make()).decode()))

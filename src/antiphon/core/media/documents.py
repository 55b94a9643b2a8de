"""What a file holds, by its bytes and not by its name or type; and how its text stands in a prompt.

Text is UTF-8, UTF-16 or UTF-32 without the control characters of binary files. In a prompt it is ordinary text
between two marks that do not occur in it.
"""

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from hashlib import blake2b
from typing import Final

_MARKS: Final = (
    (BOM_UTF8, "utf-8-sig"),
    (BOM_UTF32_LE, "utf-32"),  # begins like UTF-16's
    (BOM_UTF32_BE, "utf-32"),
    (BOM_UTF16_LE, "utf-16"),
    (BOM_UTF16_BE, "utf-16"),
)
_LOOKED_AT: Final = 65_536  # bytes by which the kind of a text is told
_BINARY: Final = [chr(code) for code in (*range(0x08), *range(0x0E, 0x1B), *range(0x1C, 0x20), 0x7F)]
_SOME: Final = 0.01  # of all characters: old text files have a few of these
_LONGEST_NAME: Final = 128
_PDF: Final = b"%PDF-"
_PDF_WITHIN: Final = 1024  # bytes that may stand before it
_KINDS: Final = (
    (b"PK\x03\x04", "a ZIP archive or an office document"),
    (b"\xd0\xcf\x11\xe0", "an old office document"),
    (b"\x89PNG", "a picture, which is to be sent as an input_image"),
    (b"\xff\xd8\xff", "a picture, which is to be sent as an input_image"),
    (b"GIF8", "a picture, which is to be sent as an input_image"),
    (b"RIFF", "a picture or a sound"),
    (b"\x1f\x8b", "a gzip archive"),
)


def is_pdf(body: bytes) -> bool:
    return _PDF in body[:_PDF_WITHIN]


def text_in(body: bytes) -> str | None:
    """None if it is no text."""
    encoding = next((encoding for mark, encoding in _MARKS if body.startswith(mark)), None) or _guessed(body)
    head = body[:_LOOKED_AT].decode(encoding, "ignore")  # before all of it is, which may be large
    if sum(map(head.count, _BINARY)) > _SOME * len(head):
        return None
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def kind_of(body: bytes) -> str:
    """What else it is, for a sentence."""
    return next((kind for mark, kind in _KINDS if body.startswith(mark)), "something else")


def fenced(name: str, text: str) -> str:
    """As a prompt shows it. Whoever wrote the file cannot write its end: a mark that occurs in it gets its digest."""
    tag = "file"
    if "</file" in text:
        tag = f"file-{blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
    end = "" if text.endswith("\n") else "\n"
    return f'<{tag} name="{name}">\n{text}{end}</{tag}>'


def clean_name(name: str) -> str:
    """The last part of a path, without what could end the mark that it stands in."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    kept = "".join([char for char in last[:_LONGEST_NAME] if char.isprintable() and char not in '"<>'])
    return kept or "file"


def _guessed(body: bytes) -> str:
    """Latin text in UTF-16 has a zero in every other byte, and UTF-8 has none."""
    head = body[:_LOOKED_AT]
    even, odd = head[::2].count(0), head[1::2].count(0)
    if odd > len(head) // 4 and not even:
        return "utf-16-le"
    if even > len(head) // 4 and not odd:
        return "utf-16-be"
    return "utf-8"

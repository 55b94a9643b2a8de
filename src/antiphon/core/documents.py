"""Recognises a file's content by its bytes, not by its name or declared type, and fences its text for a prompt.

Text is UTF-8, UTF-16 or UTF-32 without the control characters of binary files. In a prompt it is ordinary text between
two markers that do not occur in it.
"""

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from hashlib import blake2b
from typing import Final

_BOMS: Final = (
    (BOM_UTF8, "utf-8-sig"),
    (BOM_UTF32_LE, "utf-32"),  # must precede UTF-16: its BOM starts with that of UTF-16 LE
    (BOM_UTF32_BE, "utf-32"),
    (BOM_UTF16_LE, "utf-16"),
    (BOM_UTF16_BE, "utf-16"),
)
_SAMPLE_BYTES: Final = 65_536  # bytes inspected to recognise text
_CONTROL_CHARS: Final = [chr(code) for code in (*range(0x08), *range(0x0E, 0x1B), *range(0x1C, 0x20), 0x7F)]
_MAX_CONTROL_RATIO: Final = 0.01  # fraction of control characters tolerated: old text files contain a few
_MAX_NAME_CHARS: Final = 128
_MAX_PATH_BYTES: Final = 255  # of a file in a folder
_NOT_IN_PATHS: Final = '/"<>'  # the path is part of a marker
CONTAINER_FOLDER: Final = "/mnt/data/"
_PDF_MAGIC: Final = b"%PDF-"
_PDF_SEARCH_BYTES: Final = 1024  # the PDF header may follow up to this many bytes of other data
_HTML_NAMES: Final = (".html", ".htm", ".xhtml")
_HTML_STARTS: Final = (b"<!doctype html", b"<html", b"<head", b"<body")
_HTML_PADDING: Final = b"\xef\xbb\xbf\xff\xfe \t\r\n"  # byte order marks and whitespace
_HTML_SEARCH_BYTES: Final = 1024
_ARCHIVE_MAGIC: Final = b"PK\x03\x04"
_KINDS_BY_MAGIC: Final = (
    (_ARCHIVE_MAGIC, "a ZIP archive"),
    (b"\xd0\xcf\x11\xe0", "an old office document"),
    (b"\x89PNG", "a picture, which is to be sent as an input_image"),
    (b"\xff\xd8\xff", "a picture, which is to be sent as an input_image"),
    (b"GIF8", "a picture, which is to be sent as an input_image"),
    (b"RIFF", "a picture or a sound"),
    (b"\x1f\x8b", "a gzip archive"),
)


def is_pdf(body: bytes) -> bool:
    return _PDF_MAGIC in body[:_PDF_SEARCH_BYTES]


def is_archive(body: bytes) -> bool:
    """Return whether the content is a ZIP archive, as office documents are."""
    return body.startswith(_ARCHIVE_MAGIC)


def is_html(name: str, body: bytes) -> bool:
    """Return whether the content is HTML: by its beginning or, since it may be a part of a page, by its name."""
    head = body[:_HTML_SEARCH_BYTES].replace(b"\0", b"").lstrip(_HTML_PADDING).lower()  # without the zeros of UTF-16
    return head.startswith(_HTML_STARTS) or name.lower().endswith(_HTML_NAMES)


def decode_text(body: bytes) -> str | None:
    """Decode text. Returns None if the content is not text."""
    encoding = next((encoding for bom, encoding in _BOMS if body.startswith(bom)), None) or _guess_encoding(body)
    head = body[:_SAMPLE_BYTES].decode(encoding, "ignore")  # checked first, since the body may be large
    if sum(map(head.count, _CONTROL_CHARS)) > _MAX_CONTROL_RATIO * len(head):
        return None
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def describe_kind(body: bytes) -> str:
    """Describe content that is not text, as part of an error message."""
    return next(
        (kind for magic, kind in _KINDS_BY_MAGIC if body.startswith(magic)),
        "binary data, or text in another encoding than Unicode",
    )


def fence_text(name: str, text: str, path: str = "") -> str:
    """Enclose a file's text in markers for a prompt. `path`: where code finds the file.

    The author of the file cannot forge the end marker: if the text contains it, the markers have a digest of the text.
    """
    tag = "file"
    if "</file" in text:
        tag = f"file-{blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
    end = "" if text.endswith("\n") else "\n"
    attribute = f' path="{path}"' if path else ""
    return f'<{tag} name="{name}"{attribute}>\n{text}{end}</{tag}>'


def clean_name(name: str) -> str:
    """Return the last path component without characters that could break out of the marker."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    cleaned = "".join([char for char in last[:_MAX_NAME_CHARS] if char.isprintable() and char not in '"<>'])
    return cleaned or "file"


def name_in_container(prefix: str, filename: str) -> str:
    """Return the name of a file in a container's folder. Its beginning is cut off if it is too long."""
    plain = "".join([char if char.isprintable() and char not in _NOT_IN_PATHS else "_" for char in filename])
    room = _MAX_PATH_BYTES - len(prefix) - 1
    return f"{prefix}-{plain.encode()[-room:].decode(errors='ignore')}"


def name_sent_file(body: bytes, filename: str) -> str:
    """Return the name in a container of a file that was sent with a request. The same content has the same name."""
    return name_in_container(blake2b(body, digest_size=8).hexdigest(), filename or "file")


def _guess_encoding(body: bytes) -> str:
    """Guess the encoding: Latin text in UTF-16 has a zero in every other byte, and UTF-8 has none."""
    head = body[:_SAMPLE_BYTES]
    even, odd = head[::2].count(0), head[1::2].count(0)
    if odd > len(head) // 4 and not even:
        return "utf-16-le"
    if even > len(head) // 4 and not odd:
        return "utf-16-be"
    return "utf-8"

"""Minimal valid images and documents for tests, built byte by byte."""

import struct
import zlib
from base64 import b64encode


def png(width: int = 8, height: int = 6, *extra: bytes) -> bytes:
    """Return a valid PNG in one colour, with the `extra` chunks between header and data."""
    rows = zlib.compress(b"".join(b"\0" + b"\x80\x40\x20" * width for _ in range(height)))
    return _png_file(width, height, *extra, png_chunk(b"IDAT", rows))


def huge_png(width: int, height: int) -> bytes:
    """Return a PNG whose header declares more pixels than its data contain."""
    return _png_file(width, height, png_chunk(b"IDAT", zlib.compress(bytes(64))))


def _png_file(width: int, height: int, *chunks: bytes) -> bytes:
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + png_chunk(b"IEND", b"")


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def jpeg(width: int = 8, height: int = 6, before: bytes = b"", scans: int = 1) -> bytes:
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\x00"
    scan = b"\xff\xda" + struct.pack(">HB", 8, 1) + b"\x01\x00\x00\x3f\x00" + b"\x12\x34"
    return b"\xff\xd8" + before + frame + scan * scans + b"\xff\xd9"


def gif(width: int = 8, height: int = 6, frames: int = 1) -> bytes:
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x4c\x01\x00"
    return screen + frame * frames + b"\x3b"


def webp(width: int = 8, height: int = 6) -> bytes:
    return _riff(_vp8l_chunk(width, height))


def animated_webp(width: int, height: int, frames: int) -> bytes:
    canvas = _riff_chunk(b"VP8X", b"\x02\0\0\0" + _uint24(width - 1) + _uint24(height - 1))
    frame = _riff_chunk(
        b"ANMF", bytes(6) + _uint24(width - 1) + _uint24(height - 1) + bytes(4) + _vp8l_chunk(width, height)
    )
    return _riff(canvas + frame * frames)


def _vp8l_chunk(width: int, height: int) -> bytes:
    return _riff_chunk(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14))


def _uint24(number: int) -> bytes:
    return number.to_bytes(3, "little")


def _riff(chunks: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WEBP" + chunks


def _riff_chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) & 1)


def encode_data_url(body: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{b64encode(body).decode()}"


def pdf(*pages: str) -> bytes:
    """Return a PDF with one line of ASCII text per page."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>")
    objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for number, text in enumerate(pages):
        content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else ""
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R"
            " /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    return _pdf_file(objects)


def _pdf_file(objects: list[str]) -> bytes:
    """Assemble a PDF from its objects, with the cross-reference table and the trailer."""
    out, offsets = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode("latin-1")
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    start = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}".encode()
    out += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n".encode()
    return bytes(out)

"""A WAV file and the multipart form that uploads it. Both are pure ASCII, because recordings store them in JSON."""

from collections.abc import Mapping

BOUNDARY = "a-part-of-the-form"
RATE = 8000  # samples per second, one byte each


def build_wav(samples: bytes) -> str:
    """Build a WAV file with 8-bit samples. The sizes in its header must be ASCII bytes, too."""
    size = len(samples).to_bytes(4, "little")
    content = b"WAVEfmt \x10\0\0\0\x01\0\x01\0" + RATE.to_bytes(4, "little") * 2 + b"\x01\0\x08\0data" + size + samples
    return (b"RIFF" + len(content).to_bytes(4, "little") + content).decode("ascii")


def build_form(fields: Mapping[str, object], audio: str) -> str:
    head = "Content-Disposition: form-data; name="
    parts = [f'{head}"{name}"\r\n\r\n{value}' for name, value in fields.items()]
    file = f'{head}"file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n{audio}'
    return "".join(f"--{BOUNDARY}\r\n{part}\r\n" for part in [*parts, file]) + f"--{BOUNDARY}--\r\n"

"""A file of audio and the form that brings it to a server that hears, both in ASCII alone: they are kept in JSON."""

from collections.abc import Mapping

BOUNDARY = "a-part-of-the-form"
RATE = 8000  # samples a second, of one byte each


def wav(samples: bytes) -> str:
    """Its header has the sizes of what follows, in bytes that have to be letters, too."""
    size = len(samples).to_bytes(4, "little")
    sound = b"WAVEfmt \x10\0\0\0\x01\0\x01\0" + RATE.to_bytes(4, "little") * 2 + b"\x01\0\x08\0data" + size + samples
    return (b"RIFF" + len(sound).to_bytes(4, "little") + sound).decode("ascii")


def form(fields: Mapping[str, object], audio: str) -> str:
    head = "Content-Disposition: form-data; name="
    parts = [f'{head}"{name}"\r\n\r\n{value}' for name, value in fields.items()]
    file = f'{head}"file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n{audio}'
    return "".join(f"--{BOUNDARY}\r\n{part}\r\n" for part in [*parts, file]) + f"--{BOUNDARY}--\r\n"

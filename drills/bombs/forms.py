"""Multipart forms: without an end, with too many parts, with invalid boundaries, and with file names that are paths."""

from collections.abc import Iterator
from functools import partial

from drills.bombs.bomb import Bomb, raw_bomb
from tests.faults.raw_client import build_request

MIB = 1024 * 1024
PATH = "/v1/audio/transcriptions"
BOUNDARY = "----------x"


def form(*fields: tuple[str, str], file: bytes = b"RIFF\r\n--x\0", name: str = "a.wav", end: str = "--") -> bytes:
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n' for field, value in fields
    ]
    audio = f'Content-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: audio/wav'
    return (
        "".join(parts).encode()
        + f"--{BOUNDARY}\r\n{audio}\r\n\r\n".encode()
        + file
        + f"\r\n--{BOUNDARY}{end}\r\n".encode()
    )


def post(content: bytes, boundary: str = BOUNDARY, length: int | None = None) -> bytes:
    kind = ("Content-Type", f"multipart/form-data; boundary={boundary}")
    size = ("Content-Length", str(len(content) if length is None else length))
    return build_request(content, path=PATH, headers=[kind, size])


def forms() -> Iterator[Bomb]:
    yield raw_bomb("not a form", post(b"nothing"))
    yield raw_bomb("an empty form", post(b""))
    yield raw_bomb("a form without an end", post(form(("model", "fake"), end="")))
    yield raw_bomb("a form without a model", post(form()), param="model")
    yield raw_bomb("a form with two models", post(form(("model", "a"), ("model", "b"))), param="model")
    yield raw_bomb("80 fields", post(form(*[(f"f{number}", "") for number in range(80)])))
    yield Bomb(name="100,000 parts", make=lambda: post(form(*[(f"f{number}", "") for number in range(100_000)])))
    yield Bomb(name="10 MB of empty lines first", make=lambda: post(b"\r\n" * (5 * MIB) + form(("model", "fake"))),
               answers=(200, 400))  # fmt: skip
    yield Bomb(name="10 MB of dashes first", make=lambda: post(b"--" * (5 * MIB) + form(("model", "fake"))),
               answers=(200, 400))  # fmt: skip
    yield Bomb(name="20 MB that are nearly a boundary", make=lambda: post(b"\r\n------" * (2 * MIB) + b"x"))
    for name, value in {
        "semicolons": ";" * MIB,
        "quotes": '"' * MIB,
        "backslashes": "\\" * MIB,
        "parameters": "".join(f"; a{n}=b" for n in range(90_000)),
        "continuations": "".join(f"; name*{n}=b" for n in range(90_000)),
        "charsets": "; name*=utf-8''" + "%41" * 300_000,
    }.items():
        yield Bomb(name=f"1 MB of {name} in a part", make=partial(_post_with_header, value), answers=(200, 400))
    yield Bomb(
        name="1 MB of a part's headers", make=partial(_post_with_header, "x\r\nX: y" * 150_000), answers=(200, 400)
    )
    for name in ("../../x", "/etc/passwd", "a\0b", "x" * 100_000):
        yield raw_bomb(
            f"an audio file called {name[:20]!r}", post(form(("model", "fake"), name=name)), answers=(200, 400)
        )
    for name, boundary in {
        "nothing": "", "71 characters": "x" * 71, "60 KB of dashes": "-" * 60_000, "a quote": '"', "blanks": '"   "',
        "another alphabet": "\xe9\xe9", "semicolons": ";" * 60_000, "equals": "=" * 60_000,
    }.items():  # fmt: skip
        yield raw_bomb(f"a boundary of {name}", post(form(("model", "fake")), boundary), answers=(400, 415))
    yield Bomb(name="a boundary of 1 MB", make=lambda: post(form(), "-" * MIB), answers=(400, 431))
    yield raw_bomb("2 GB of audio declared", post(form(("model", "fake")), length=2 << 30), answers=(413,))
    yield Bomb(name="a field of 50 MB in chunks", make=_make_chunks, answers=(413,))
    kind = ("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")
    yield raw_bomb("a form instead of JSON", build_request(form(), headers=[kind]), answers=(415,))


def _post_with_header(value: str) -> bytes:
    return post(_form_with_header(value))


def _form_with_header(value: str) -> bytes:
    """Return a form with a part whose Content-Disposition continues with `value`."""
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; name=model{value}\r\n\r\nfake\r\n"
    return head.encode("latin-1") + form()


def _make_chunks() -> bytes:
    kind = ("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")
    head = build_request(b"", path=PATH, headers=[kind, ("Content-Length", ""), ("Transfer-Encoding", "chunked")])
    prefix = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="model"\r\n\r\n'.encode()
    return head + b"%x\r\n%b\r\n" % (len(prefix), prefix) + (b"100000\r\n" + b"x" * MIB + b"\r\n") * 50

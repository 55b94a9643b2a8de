"""Forms with files in them: without an end, in too many parts, divided by nothing, and named after other files."""

from collections.abc import Iterator
from functools import partial

from drills.bombs.bomb import Bomb, given
from tests.faults.raw_client import request

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


def sent(content: bytes, boundary: str = BOUNDARY, length: int | None = None) -> bytes:
    kind = ("Content-Type", f"multipart/form-data; boundary={boundary}")
    size = ("Content-Length", str(len(content) if length is None else length))
    return request(content, path=PATH, headers=[kind, size])


def forms() -> Iterator[Bomb]:
    yield given("no form", sent(b"nothing"))
    yield given("an empty form", sent(b""))
    yield given("a form without an end", sent(form(("model", "fake"), end="")))
    yield given("a form without a model", sent(form()), param="model")
    yield given("a form with two models", sent(form(("model", "a"), ("model", "b"))), param="model")
    yield given("80 fields", sent(form(*[(f"f{number}", "") for number in range(80)])))
    yield Bomb(name="100,000 parts", make=lambda: sent(form(*[(f"f{number}", "") for number in range(100_000)])))
    yield Bomb(name="10 MB of empty lines first", make=lambda: sent(b"\r\n" * (5 * MIB) + form(("model", "fake"))),
               answers=(200, 400))  # fmt: skip
    yield Bomb(name="10 MB of dashes first", make=lambda: sent(b"--" * (5 * MIB) + form(("model", "fake"))),
               answers=(200, 400))  # fmt: skip
    yield Bomb(name="20 MB that are nearly a boundary", make=lambda: sent(b"\r\n------" * (2 * MIB) + b"x"))
    for name, value in {
        "semicolons": ";" * MIB,
        "quotes": '"' * MIB,
        "backslashes": "\\" * MIB,
        "parameters": "".join(f"; a{n}=b" for n in range(90_000)),
        "continuations": "".join(f"; name*{n}=b" for n in range(90_000)),
        "charsets": "; name*=utf-8''" + "%41" * 300_000,
    }.items():
        yield Bomb(name=f"1 MB of {name} in a part", make=partial(_sent_headed, value), answers=(200, 400))
    yield Bomb(name="1 MB of a part's headers", make=partial(_sent_headed, "x\r\nX: y" * 150_000), answers=(200, 400))
    for name in ("../../x", "/etc/passwd", "a\0b", "x" * 100_000):
        yield given(
            f"a file of audio called {name[:20]!r}", sent(form(("model", "fake"), name=name)), answers=(200, 400)
        )
    for name, boundary in {
        "nothing": "", "71 characters": "x" * 71, "60 KB of dashes": "-" * 60_000, "a quote": '"', "blanks": '"   "',
        "another alphabet": "\xe9\xe9", "semicolons": ";" * 60_000, "equals": "=" * 60_000,
    }.items():  # fmt: skip
        yield given(f"a boundary of {name}", sent(form(("model", "fake")), boundary), answers=(400, 415))
    yield Bomb(name="a boundary of 1 MB", make=lambda: sent(form(), "-" * MIB), answers=(400, 431))
    yield given("2 GB of audio announced", sent(form(("model", "fake")), length=2 << 30), answers=(413,))
    yield Bomb(name="a field of 50 MB in chunks", make=_chunks, answers=(413,))
    kind = ("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")
    yield given("a form where JSON belongs", request(form(), headers=[kind]), answers=(415,))


def _sent_headed(value: str) -> bytes:
    return sent(_headed(value))


def _headed(value: str) -> bytes:
    """A part whose disposition goes on like this."""
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; name=model{value}\r\n\r\nfake\r\n"
    return head.encode("latin-1") + form()


def _chunks() -> bytes:
    kind = ("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")
    head = request(b"", path=PATH, headers=[kind, ("Content-Length", ""), ("Transfer-Encoding", "chunked")])
    begun = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="model"\r\n\r\n'.encode()
    return head + b"%x\r\n%b\r\n" % (len(begun), begun) + (b"100000\r\n" + b"x" * MIB + b"\r\n") * 50
